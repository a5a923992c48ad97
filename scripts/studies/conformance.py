#!/usr/bin/env python3
"""The same inputs through the distillation losses of several libraries, compared with fp64.

  scripts/studies/conformance.sh                 # makes an environment with the libraries, measures, writes the page
  conformance.py measure --out results.json      # with what this Python can import
  conformance.py measure --only distill,TRL --out results.json
  conformance.py page results.json               # writes docs/conformance.md

Each case is a small random batch in fp32 on the CPU: hidden states, lm_heads, labels. An implementation's step - the
losses of its micro-batches, as its trainer divides and adds them - is compared with the exact mean over all targets of
the step: the loss, and its gradients for hidden states and lm_head. Where it is not exact, other conventions are tried
(divided by all tokens, times T squared, a mean of means, ...), and the one that it follows to rounding is named.
"""

import script_path

import json
import os
import platform
import sys
from pathlib import Path

sys.path.append(os.path.join(script_path.FOLDER, "benches"))

import torch

from conformance.cases import CASES
from conformance.implementations import IMPLEMENTATIONS
from conformance.measure import measure
from conformance.page import page
from loss_head.problem import load_operators
from shared.command_line import argument_parser

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "conformance.md"


def main():
    parser = argument_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--only", help="names of implementations, comma-separated; all whose name begins so")
    one.add_argument(
        "--library",
        default=os.environ.get("DISTILL_LOSSES_LIBRARY", "build/release/losses/libdistill_losses.so"),
        help="libdistill_losses.so of a build",
    )
    two = commands.add_parser("page")
    two.add_argument("results", type=Path)
    options = parser.parse_args()
    if options.command == "page":
        PAGE.write_text(page(json.loads(options.results.read_text())))
        return
    load_operators(options.library)
    wanted = options.only.split(",") if options.only else [""]
    names = [one.name for one in IMPLEMENTATIONS if any(one.name.startswith(name) for name in wanted)]
    if not names:
        parser.error(f"--only: expected some of {', '.join(one.name for one in IMPLEMENTATIONS)}, found {options.only}")
    torch.set_num_threads(1)
    results = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "results": measure(CASES, names),
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    for name, found in results["results"].items():
        print(f"{name} {found['version'] or ('this tree' if name == 'distill' else 'is not installed')}")
        for case, cell in found["cases"].items():
            print(
                f"  {case}: {cell['text']}" + (f" ({cell['gradient_error']:.1e})" if "gradient_error" in cell else "")
            )


if __name__ == "__main__":
    main()
