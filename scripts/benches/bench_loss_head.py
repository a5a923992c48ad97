#!/usr/bin/env python3
"""Times the loss head on one GPU against the matrix products alone and against peers, interleaved in one run.

  head     forward + backward of divergences and cross-entropy: time, ratio to the fastest matrix products, peak
           memory beyond inputs and gradients; with --errors also the errors against fp64 on the first tokens
  table    the same for six pairs of models, with every peer and the errors, as a table in OUT.md
  parts    what the head's time is made of for students with small hidden sizes, under 1024 MiB: products, row
           kernel, other; each beside the products alone at their best chunk, as a table in OUT-parts.md
  rows     the row kernel alone in every geometry, against the copy bandwidth measured in the same run
  losses   the row kernel alone with each loss that docs/loss_head.md compares, as a table
  widths   the row kernel alone at 1000 vocabularies from 30000 to 320000, with a plot
  logits   the kernels on given logits, forward and backward, against PyTorch's cross-entropy and a copy

--peers also times TRL, Liger-Kernel, cut-cross-entropy, QuACK and PyTorch's own head, and says why where one is left
out. --sweep runs a grid of tokens, vocabularies, hidden sizes and chunks instead of one case. The script needs one GPU,
and of this repository only scripts/ and libdistill_losses.so. It writes OUT.json and OUT.png. With --rehearse the sizes
of table and parts are divided by 64, which works without a GPU and gives no figures worth keeping.

Example: scripts/benches/bench_loss_head.py --what head --cap 1024,4096 --reps 20 --peers --errors --out results/head
"""

import script_path

import itertools
import json
import os
import sys
import time

import torch

from loss_head.given_logits import bench_logits
from loss_head.head_report import peers_table, plot, plot_widths, table
from loss_head.head_times import bench_head
from loss_head.parts import bench_parts, parts_table
from loss_head.peer_heads import PEERS, versions
from loss_head.problem import load_operators
from loss_head.row_kernel import bench_losses, bench_rows, bench_widths, losses_table
from loss_head.shapes import SHAPES_HELP, cases_of, parts_cases, table_cases
from shared.command_line import argument_parser

SWEEP = {
    "tokens": [4096, 16384],
    "vocab": [32000, 128256, 262144],
    "shapes": "jsd:2048:2048,jsd:2048:4096,jsd:4096:4096,ce:2048:0,ce:4096:0",
    "chunk": [512, 1024, 2048, 4096],
    "cap": [1024, 4096],
}

BEGIN = time.monotonic()


def numbers(text):
    """The integers of a comma-separated list."""
    return [int(x) for x in text.split(",") if x]


def pairs(text):
    """The tuples of integers of a comma-separated list of a:b."""
    return [tuple(map(int, pair.split(":"))) for pair in text.split(",") if pair]


def dtypes(text):
    """The dtypes of the head's logits of a comma-separated list."""
    names = text.split(",")
    if not set(names) <= {"float32", "bfloat16"}:
        raise ValueError(f"expected float32 or bfloat16, comma-separated, found {text}")
    return names


def row_loss(text):
    """{name: value} of a comma-separated list of name=value, for row_kernel.options."""
    values = dict(pair.split("=", 1) for pair in text.split(",") if pair)
    return {name: value if name in ("divergence", "metrics") else float(value) for name, value in values.items()}


def parse_arguments():
    parser = argument_parser(__doc__)
    parser.add_argument("--library", default="build/release/losses/libdistill_losses.so")
    parser.add_argument("--what", default="rows,head")
    parser.add_argument("--tokens", type=numbers, default=[16384])
    parser.add_argument("--vocab", type=numbers, default=[128256])
    parser.add_argument("--shapes", default="jsd:4096:4096,jsd:2048:4096,ce:4096:0", help=SHAPES_HELP)
    parser.add_argument("--row-vocab", type=numbers, default=[32000, 49152, 128256, 151936, 262144])
    parser.add_argument(
        "--row-automatic", action="store_true", help="time the row kernel only in the geometry that it picks itself"
    )
    parser.add_argument(
        "--row-dtype", choices=("float32", "bfloat16"), default="float32", help="the row kernel's logits"
    )
    parser.add_argument(
        "--row-loss",
        type=row_loss,
        default={},
        metavar="NAME=VALUE,...",
        help="the row kernel's temperature, smoothing (of labels), softcap, divergence, beta, hard_weight, soft_weight",
    )
    parser.add_argument("--cap", type=numbers, default=[1024, 4096], help="memory_cap_mb values, automatic chunks")
    parser.add_argument(
        "--chunk", type=numbers, default=[], help="explicit chunk sizes to time as well, without a memory cap"
    )
    parser.add_argument(
        "--cap-chunk", type=pairs, default=[], help="cap:chunk, comma-separated: explicit chunks under a cap"
    )
    parser.add_argument(
        "--products", type=numbers, default=[1024, 2048, 4096], help="chunks of the matrix products alone"
    )
    parser.add_argument(
        "--metrics",
        type=lambda text: text.split(","),
        default=["loss", "all"],
        help="what our head and the row kernel compute of each token: loss, all, or both, comma-separated",
    )
    parser.add_argument(
        "--logits",
        type=dtypes,
        default=["float32"],
        help="our head's logits: float32, bfloat16, or both, comma-separated",
    )
    parser.add_argument("--sweep", action="store_true", help=f"the table over N, V, H and chunk: {SWEEP}")
    parser.add_argument("--peers", action="store_true", help="time the peers that Python can import")
    parser.add_argument("--autograd", action="store_true", help="time our operators under autograd too")
    parser.add_argument("--only", type=lambda text: text.split(";"), help="of the peers, those of these names: A;B")
    parser.add_argument("--errors", action="store_true", help="measure the errors against fp64 too")
    parser.add_argument("--error-tokens", type=int, default=256, help="0: all tokens, as in table")
    parser.add_argument("--seconds", type=float, help="begin no case of table or parts later than this")
    parser.add_argument("--rehearse", action="store_true", help="small sizes in table and parts")
    parser.add_argument("--reps", type=int, default=20)
    parser.add_argument("--out", default="bench_loss_head", help="results: OUT.json and OUT.png")
    parser.add_argument("--plot", metavar="JSON", help="measure nothing; draw the PNG from this file of an earlier run")
    args = parser.parse_args()
    if args.sweep:
        for key, value in SWEEP.items():
            setattr(args, key, value)
    try:
        args.shapes = cases_of(args.shapes)
    except ValueError as error:
        parser.error(f"--shapes: {error}")
    return args


def timely(args, report, cases):
    """The cases that begin before --seconds are over, of small sizes in a rehearsal. The report names the others."""
    for case in cases:
        if args.seconds and time.monotonic() - BEGIN > args.seconds:
            report.setdefault("not_begun", []).append(f"- not begun within {args.seconds:g} s: {case.models}, {case}")
            print(report["not_begun"][-1], flush=True)
            continue
        yield case.smaller() if args.rehearse else case
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def write(path, text):
    with open(path, "w") as file:
        file.write(text.rstrip() + "\n")


def main():
    args = parse_arguments()
    if args.plot:
        with open(args.plot) as file:
            plot(os.path.splitext(args.plot)[0] + ".png", json.load(file)["head"])
        return
    if not torch.cuda.is_available() and not args.rehearse:
        sys.exit("bench_loss_head.py needs a GPU, and PyTorch finds none on this machine")
    load_operators(args.library)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{device}, torch {torch.__version__}, {args.reps} repetitions, random data", flush=True)
    report = {
        "device": device,
        "torch": torch.__version__,
        "versions": versions(),
        "arguments": vars(args),
        "rows": [],
        "logits": [],
        "head": [],
    }
    os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)

    def save():
        with open(args.out + ".json", "w") as file:
            json.dump(report, file, indent=1)

    if "rows" in args.what:
        for vocab in args.row_vocab:
            for teacher, metrics in itertools.product((True, False), args.metrics):
                report["rows"] += bench_rows(
                    vocab,
                    teacher,
                    args.reps,
                    kernels=("automatic",) if args.row_automatic else ("automatic", "streaming", "clusters"),
                    dtype=getattr(torch, args.row_dtype),
                    loss={"metrics": metrics, **args.row_loss},
                )
                torch.cuda.empty_cache()
        save()
    if "losses" in args.what:
        report["losses"] = bench_losses(args.row_vocab, args.reps)
        save()
        print("\n" + losses_table(report["losses"], args.row_vocab))
    if "widths" in args.what:
        report["widths"] = bench_widths(1000)
        plot_widths(args.out + "-widths.png", report["widths"], device)
        save()
        for kind in ("jsd", "ce"):
            shares = sorted(row[f"{kind}_of_copy"] for row in report["widths"])
            worst = min(report["widths"], key=lambda row: row[f"{kind}_of_copy"])["v"]
            print(f"widths, {kind}: smallest {shares[0]:.3f} of the copy (at {worst}), median {shares[500]:.3f}")
    if "logits" in args.what:
        for vocab in args.row_vocab:
            for dtype in (torch.float32, torch.bfloat16):
                report["logits"] += bench_logits(vocab, dtype, args.reps)
            torch.cuda.empty_cache()
        save()
    if "head" in args.what:
        for shape in args.shapes:
            for tokens in args.tokens:
                for vocab in [shape.vocab] if shape.vocab else args.vocab:
                    report["head"] += bench_head(args, shape._replace(vocab=vocab, tokens=tokens))
                    torch.cuda.empty_cache()
                    save()
        print("\n" + table(report["head"]))
        plot(args.out + ".png", report["head"])
    if "parts" in args.what:
        report["parts"] = []
        for case in timely(args, report, parts_cases()):
            report["parts"].append(bench_parts(case, args.reps))
            save()
            write(args.out + "-parts.md", parts_table(report["parts"]))
        print("\n" + parts_table(report["parts"]))
    if "table" in args.what:
        args.peers = args.errors = True
        args.error_tokens = 0
        args.only = args.only or [peer.name for peer in PEERS if peer.in_table]
        report["table"] = []
        for case in timely(args, report, table_cases()):
            report["table"] += bench_head(args, case)
            save()
            write(args.out + ".md", peers_table(report))
        write(args.out + ".md", peers_table(report))
        print("\n" + peers_table(report))


if __name__ == "__main__":
    main()
