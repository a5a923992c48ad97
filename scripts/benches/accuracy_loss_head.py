#!/usr/bin/env python3
"""Measures the errors of the loss and its gradients against fp64 as the student approaches the teacher.

  jsd  the gap is the mean KL(teacher || student) in nats; the student's hidden states are the teacher's plus noise
  ce   the gap is the mean cross-entropy of the labels in nats, as their probability approaches 1

The inputs are bf16 (or --dtype float32). The fp64 reference starts from the same rounded inputs, so that every error
comes from the computation. The script also measures plain PyTorch with fp32 and with bf16 logits, and with --peers TRL,
Liger-Kernel, cut-cross-entropy, QuACK and PyTorch's own head if Python can import them (most of their kernels need a
GPU). It writes OUT.json and OUT.png.

Example: scripts/benches/accuracy_loss_head.py --peers --out results/accuracy
"""

import script_path

import json
import math
import os
import sys

import torch

from loss_head import heads
from loss_head.exact import errors, exact
from loss_head.peer_heads import importable_peers
from loss_head.problem import Problem, load_operators, random_problem
from loss_head.report import first_line, pyplot
from shared.command_line import argument_parser

GAPS = [3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001]


def mean_kl(problem):
    """KL(teacher || student) in fp64."""
    return exact(
        Problem(problem.hidden, problem.weight, problem.targets, problem.teacher_hidden, problem.teacher_weight, beta=0)
    ).mean.item()


def solved(make, measure, gap):
    """Returns make(x) and measure(make(x)) for an x whose measure is within 1 % of `gap`. The measure must grow with x.

    The search brackets log x and alternates between bisection and linear interpolation of the measure's logarithm.
    """
    low, high = math.log(1e-3), math.log(1e2)
    at_low = at_high = None  # log(measure / gap), where it was measured
    for step in range(40):
        middle = 0.5 * (low + high)
        if step % 2 and at_low is not None and at_high is not None:
            middle = low + (high - low) * at_low / (at_low - at_high)
        problem = make(math.exp(middle))
        reached = measure(problem)
        error = math.log(max(reached, 1e-30) / gap)
        if abs(error) < 0.01:
            break
        if error < 0:
            low, at_low = middle, error
        else:
            high, at_high = middle, error
    return problem, reached


def jsd_problem(base, gap, beta):
    """The teacher is `base`; the student is the same model with noise added to its hidden states."""
    noise = torch.randn(base.hidden.shape, generator=torch.Generator().manual_seed(1)).to(base.hidden.device)

    def make(x):
        hidden = (base.hidden.float() + x * noise).to(base.hidden.dtype)
        return Problem(hidden, base.weight, base.targets, base.hidden, base.weight, beta)

    return solved(make, mean_kl, gap)


def ce_problem(base, gap):
    """Hidden states moved towards the label's row of the weight, so that the cross-entropy is `gap`."""
    towards = base.weight[base.targets].float()
    towards = towards / towards.square().sum(-1, keepdim=True)

    def make(x):
        return Problem((base.hidden.float() + towards / x).to(base.hidden.dtype), base.weight, base.targets)

    return solved(make, lambda problem: exact(problem).mean.item(), gap)


def study(kind, base, gaps, implementations, beta):
    rows = []
    for gap in gaps:
        problem, reached = jsd_problem(base, gap, beta) if kind == "jsd" else ce_problem(base, gap)
        expected = exact(problem)
        print(f"\n{kind}, gap {reached:.3g} nat, loss {expected.mean.item():.4g}", flush=True)
        for head in implementations:
            try:
                found = errors(head.run(problem), expected)
            except Exception as error:  # a peer may not support this case
                print(f"  {head.name:42s} failed, {first_line(error)}", flush=True)
                continue
            print(
                f"  {head.name:42s} loss {found['loss']:.2e}  d_hidden {found['d_hidden']:.2e}  "
                f"d_weight {found['d_weight']:.2e}",
                flush=True,
            )
            rows.append(
                {
                    "kind": kind,
                    "gap": gap,
                    "reached": reached,
                    "exact_loss": expected.mean.item(),
                    "name": head.name,
                    **found,
                }
            )
    return rows


def plot(path, rows, title):
    plt = pyplot()
    if plt is None:
        return
    kinds = sorted({row["kind"] for row in rows}, reverse=True)
    measures = ["loss", "d_hidden", "d_weight"]
    figure, axes = plt.subplots(len(kinds), 3, figsize=(15, 4.2 * len(kinds)), squeeze=False)
    for line, kind in zip(axes, kinds):
        for axis, measure in zip(line, measures):
            for name in dict.fromkeys(row["name"] for row in rows if row["kind"] == kind):
                points = [(row["reached"], row[measure]) for row in rows if row["kind"] == kind and row["name"] == name]
                axis.loglog(
                    *zip(*points), marker="o", markersize=3, linewidth=2 if name == "distill" else 1, label=name
                )
            axis.invert_xaxis()
            axis.set_title(f"{kind}: {measure}")
            axis.set_xlabel("KL(teacher || student), nat" if kind == "jsd" else "cross-entropy, nat")
            axis.grid(True, which="major", alpha=0.3)
        line[0].set_ylabel("relative error against fp64")
        line[0].legend(fontsize=7)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--library", default="build/release/losses/libdistill_losses.so")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="of the inputs")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--logit-scale", type=float, default=3.0, help="standard deviation of the teacher's logits")
    parser.add_argument("--beta", type=float, default=0.5)
    parser.add_argument("--kinds", default="jsd,ce")
    parser.add_argument("--gaps", type=lambda text: [float(x) for x in text.split(",")], default=GAPS, help="nats")
    parser.add_argument("--peers", action="store_true", help="measure the peers that Python can import")
    parser.add_argument("--out", default="accuracy_loss_head", help="results: OUT.json and OUT.png")
    parser.add_argument("--plot", metavar="JSON", help="measure nothing; draw the PNG from this file of an earlier run")
    args = parser.parse_args()
    if args.plot:
        with open(args.plot) as file:
            report = json.load(file)
        plot(os.path.splitext(args.plot)[0] + ".png", report["rows"], report["title"])
        return
    device = args.device if args.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    load_operators(args.library)
    torch.backends.cuda.matmul.allow_tf32 = False
    base = random_problem(
        args.tokens, args.vocab, args.hidden, 0, device, getattr(torch, args.dtype), logit_scale=args.logit_scale
    )
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    title = (
        f"{where}, torch {torch.__version__}, {args.dtype} inputs, N {args.tokens}, V {args.vocab}, H {args.hidden}, "
        f"logits of scale {args.logit_scale:g}, beta {args.beta:g}"
    )
    print(title, flush=True)
    rows = []
    for kind in args.kinds.split(","):
        if kind not in ("jsd", "ce"):
            sys.exit(f"--kinds: expected jsd, ce or both, found {kind}")
        alone, all_metrics = heads.ours(metrics="loss"), heads.ours(metrics="all", name="distill, all metrics")
        implementations = [alone, all_metrics, *heads.plain_heads()]
        if args.peers:
            implementations += importable_peers(kind, device == "cuda", compiled=False)[0]
        rows += study(kind, base, args.gaps, implementations, args.beta)
    os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)
    with open(args.out + ".json", "w") as file:
        json.dump(
            {"title": title, "device": where, "torch": torch.__version__, "arguments": vars(args), "rows": rows},
            file,
            indent=1,
        )
    plot(args.out + ".png", rows, title)
    print(f"\nwrote {args.out}.json")


if __name__ == "__main__":
    main()
