#!/usr/bin/env python3
"""Measures the trainer and the peer on the pairs of models that people distil, in turn, and writes a table.

  scripts/benches/bench_pairs.py OUT                                 every pair that the visible GPUs are enough for
  scripts/benches/bench_pairs.py OUT llama-1b-8b qwen3-4b-32b        some, in this order
  scripts/benches/bench_pairs.py OUT --gpus 2,3 llama-8b-8b          on these GPUs
  scripts/benches/bench_pairs.py --list                              the pairs and the number of GPUs that they take
  scripts/benches/bench_pairs.py OUT --dry                           prints the commands, and runs nothing

Weights and tokens are random, of the real models' shapes (scripts/benches/bench_inputs.py). For each pair
scripts/benches/bench_trainer.sh runs first and bench_trainer_peer.py after it, which keeps its activations where they
fit and computes them again otherwise. OUT receives pairs.md (a line for each pair: tok/s per GPU, the ratio, GiB as
planned and measured, GPU hours for 10^9 tokens, the command), pairs.json, and the log of each run; both are written
again after each pair. DISTILL names a program other than the build's. For tests, without a GPU:

  bench_pairs.py OUT --device cpu --pair tiny:tiny --vocab 1000 --sequence 64 --steps 2 --peer-steps 2
"""

import script_path

import json
import signal
import sys
import time
from pathlib import Path

from pairs.runs import BATCH, Runs
from pairs.table import PAIRS, Pair, table
from shared.command_line import argument_parser, at_least, fail
from shared.gpus import visible_gpus


def own_pair(text):
    """A Pair of one GPU of STUDENT:TEACHER, shapes of bench_inputs.py."""
    student, _, teacher = text.partition(":")
    return Pair(f"{student}-{teacher}", f"{student} <- {teacher}", 1, student, teacher)


def parse_arguments(arguments=None):
    parser = argument_parser(__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("names", nargs="*", help="pairs; default: all")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument(
        "--pair", type=own_pair, action="append", default=[], metavar="STUDENT:TEACHER", help="another pair, on one GPU"
    )
    parser.add_argument("--gpus", type=lambda text: text.split(","), help="default: all that are visible")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=at_least(2), default=10)
    parser.add_argument("--peer-steps", type=at_least(2), default=8)
    parser.add_argument("--sequence", type=at_least(1), default=4096, help="tokens of a sequence")
    parser.add_argument("--vocab", type=at_least(1), help="tokens; default: those of the student's family")
    parser.add_argument("--no-peer", dest="peer", action="store_false")
    parser.add_argument("--limit", type=at_least(1), default=300, help="seconds of one run")
    parser.add_argument("--seconds", type=at_least(1), help="begin no pair later than this")
    options = parser.parse_intermixed_args(arguments)
    if options.out is None and not options.list:
        parser.error("expected the folder OUT for the results, found none")
    known = {pair.name: pair for pair in PAIRS}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"expected names of pairs ({', '.join(known)}), found {', '.join(unknown)}")
    options.pairs = [known[name] for name in options.names] + options.pair
    options.pairs = options.pairs or PAIRS
    return options


def device_name(options):
    import torch

    return "CPU" if options.device == "cpu" else f"{len(options.gpus)} x {torch.cuda.get_device_name()}"


def save(options, report):
    (options.out / "pairs.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "pairs.md").write_text(table(report))


def main():
    options = parse_arguments()
    if options.list:
        for pair in PAIRS:
            print(f"{pair.name:20s} {pair.gpus} GPU(s)  {pair.models:32s} {' '.join(pair.settings)}")
        return
    if options.device == "cpu":
        options.gpus = []
    elif options.gpus is None and not options.dry:
        options.gpus = visible_gpus()
    elif options.gpus is None:
        options.gpus = [str(number) for number in range(max(pair.gpus for pair in options.pairs))]
    runs = Runs(options)
    if options.dry:
        for pair in options.pairs:
            print(f"# {pair.models}, {runs.ranks(pair)} GPU(s)", *runs.dry_lines(pair), sep="\n")
        return
    if options.device == "cuda" and not options.gpus:
        fail("expected a GPU, found none; --dry prints the commands, --device cpu is for tests")
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and end what runs
    begin, report = time.monotonic(), {"device": device_name(options), "batch": BATCH, "rows": []}
    report |= {key: getattr(options, key) for key in ("sequence", "steps", "peer_steps")}
    for pair in options.pairs:
        if options.seconds and time.monotonic() - begin > options.seconds:
            print(f"{pair.name}: not begun within {options.seconds} s", flush=True)
            continue
        row = runs.measure(pair, options.peer)
        report["versions"] = (row["peer"] or {}).get("versions") or report.get("versions", {})
        report["rows"].append(row)
        save(options, report)
        print(table(report).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
