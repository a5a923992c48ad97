#!/usr/bin/env python3
"""Runs the tests that Liger-Kernel and cut-cross-entropy have for these losses through distill-losses.

The tests, their inputs and their tolerances are those of the peers' checkouts, and so are the references that they
compare with; only the peers' kernels are replaced (peers). Where ours differ on purpose, peers holds
the reason, and the test is expected to fail. The exit code is 1 if a test fails that is not explained, or an explained
one passes. distill-losses must be installed in this Python, or named by --package. A checkout may be an unpacked sdist
(pip download --no-deps --no-binary :all: liger-kernel cut-cross-entropy), which has the tests, too.

  scripts/benches/peer_tests.py --liger Liger-Kernel --cce ml-cross-entropy                       # on a GPU: everything
  peer_tests.py --liger Liger-Kernel --cce ml-cross-entropy --max-logits 1e7  # on a CPU: the smaller cases
"""

import script_path

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from shared.command_line import argument_parser, fail

ADAPTERS = Path(__file__).resolve().parent / "peers"
TESTS = {
    "liger": [
        "test/transformers/test_jsd.py",
        "test/transformers/test_fused_linear_jsd.py",
        "test/transformers/test_cross_entropy.py",
        "test/transformers/test_fused_linear_cross_entropy.py",
        "test/chunked_loss/test_jsd_loss.py",
    ],
    "cce": [
        "tests/test_cce_loss_forward.py",
        "tests/test_cce_loss_backward.py",
        "tests/test_cce_lse.py",
    ],
}
SOURCES = {"liger": "src", "cce": "."}


def run(peer, checkout, args):
    """Runs one peer's tests; returns a line of the results (--json)."""
    for test in TESTS[peer]:
        if not (checkout / test).is_file():
            fail(f"--{peer}: expected a checkout with {test}, found none in {checkout}")
    paths = [ADAPTERS, *args.package, checkout / SOURCES[peer], checkout]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(path.resolve()) for path in paths)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "peer_plugin",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-q",
        "-rfEX",
        "--tb=short",
    ]
    command += ["--rootdir", str(checkout), "--peer", peer, "--max-logits", str(args.max_logits), *args.pytest]
    if not args.cuda:
        command.append("--on-cpu")
    start = time.monotonic()
    done = subprocess.Popen([*command, *TESTS[peer]], cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True)
    last, failed = "", []
    for line in done.stdout:
        print(line, end="", flush=True)
        last = line if re.search(r"\d+ (passed|failed|xfailed|error)", line) else last
        failed += re.findall(r"^(?:FAILED|ERROR|XPASS) (\S+)", line)
    return {
        "peer": peer,
        "checkout": checkout.name,
        "summary": last.strip(" =\n") or "no tests ran",
        "counts": {name: int(count) for count, name in re.findall(r"(\d+) ([a-z]+)", last.split(" in ")[0])},
        "unexpected": failed,
        "exit_code": done.wait(),
        "seconds": round(time.monotonic() - start, 1),
    }


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--liger", type=Path, metavar="CHECKOUT", help="of Liger-Kernel")
    parser.add_argument("--cce", type=Path, metavar="CHECKOUT", help="of ml-cross-entropy")
    parser.add_argument(
        "--package", type=Path, action="append", default=[], help="folder that holds distill_losses, if not installed"
    )
    parser.add_argument("--max-logits", type=float, default=float("inf"), help="leave out tests with more logits")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    parser.add_argument("pytest", nargs="*", help="further arguments for pytest, after --")
    args = parser.parse_args()
    peers = [(name, getattr(args, name)) for name in TESTS if getattr(args, name) is not None]
    if not peers:
        parser.error("expected --liger, --cce or both")
    import torch

    args.cuda = torch.cuda.is_available()
    results = [run(name, checkout.resolve(), args) for name, checkout in peers]
    for result in results:
        print("{peer}: {summary} (exit code {exit_code}; xfailed: explained differences)".format(**result))
    if args.json:
        device = torch.cuda.get_device_name() if args.cuda else "CPU"
        facts = {"device": device, "torch": str(torch.__version__), "max_logits": str(args.max_logits)}
        args.json.write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")
    return 1 if any(result["exit_code"] != 0 for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
