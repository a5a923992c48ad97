#!/usr/bin/env python3
"""Times the loss head on one GPU against the matrix products alone and against peers, interleaved in one run.

  head     forward + backward of JSD and cross-entropy: time, ratio to the fastest matrix products, peak
           memory beyond inputs and gradients; with --errors also the errors against fp64 on the first tokens
  rows     the row kernel alone in every geometry, against the copy bandwidth measured in the same run
  losses   the row kernel alone with each loss that docs/loss_head.md compares, as a table
  widths   the row kernel alone at 1000 vocabularies from 30000 to 320000, with a plot
  logits   the kernels on given logits, forward and backward, against PyTorch's cross-entropy and a copy

--peers also times Liger-Kernel and cut-cross-entropy, if Python can import them. --sweep runs a grid of tokens,
vocabularies, hidden sizes and chunks instead of one case. The script needs one GPU, and of this repository only
scripts/ and libdistill_losses.so. It writes OUT.json and OUT.png.

Example: scripts/benches/bench_loss_head.py --what head --cap 1024,4096 --reps 20 --peers --errors --out results/head
"""

import script_path

import itertools
import json
import os
import sys

sys.path.append(os.path.join(script_path.FOLDER, "benches", "loss_head"))

import torch

import heads
from exact import errors, exact
from given_logits import bench_logits
from problem import load_operators, random_problem
from report import first_line, pyplot
from row_kernel import bench_losses, bench_rows, bench_widths, losses_table
from shared.command_line import argument_parser
from timing import extra_peak_mib, interleaved

SWEEP = {
    "tokens": [4096, 16384],
    "vocab": [32000, 128256, 262144],
    "shapes": "jsd:2048:2048,jsd:2048:4096,jsd:4096:4096,ce:2048:0,ce:4096:0",
    "chunk": [512, 1024, 2048, 4096],
    "cap": [1024, 4096],
}
UNCAPPED = 1 << 20  # MiB, for explicit chunks


def products(problem, chunk, gradient_chunk):
    """The matrix products that every head needs, in bf16; the weight gradient accumulates in fp32."""
    x, w, tx, tw = problem.hidden, problem.weight, problem.teacher_hidden, problem.teacher_weight
    logits = torch.empty(chunk, problem.vocab, device="cuda", dtype=x.dtype)
    gradient = torch.randn(gradient_chunk, problem.vocab, device="cuda", dtype=x.dtype) * 1e-3
    d_hidden, d_weight = torch.empty_like(x), torch.empty_like(w, dtype=torch.float32)

    def run():
        for start in range(0, problem.tokens, gradient_chunk):
            rows = slice(start, min(start + gradient_chunk, problem.tokens))
            for c in range(rows.start, rows.stop, chunk):
                part = slice(c, min(c + chunk, rows.stop))
                torch.mm(x[part], w.t(), out=logits[: part.stop - part.start])
                if tx is not None:
                    torch.mm(tx[part], tw.t(), out=logits[: part.stop - part.start])
            g = gradient[: rows.stop - rows.start]
            torch.mm(g, w, out=d_hidden[rows])
            if start == 0:
                torch.mm(g.t(), x[rows], out_dtype=torch.float32, out=d_weight)
            else:
                torch.addmm(d_weight, g.t(), x[rows], out_dtype=torch.float32, out=d_weight)

    return run


def competitors(args, kind):
    """name -> (head, memory cap in MiB or None, chunk or None)."""
    found, buffers = {}, heads.Buffers()

    def add(name, cap, chunk, **arguments):
        for metrics, logits in itertools.product(args.metrics, args.logits):
            suffix = "" if metrics == "loss" else f", {metrics} metrics"
            suffix += "" if logits == "float32" else f", {logits} logits"
            rounds = logits == "bfloat16"
            found[name + suffix] = heads.ours(buffers, metrics=metrics, bf16_logits=rounds, **arguments), cap, chunk

    for cap in args.cap:
        add(f"distill, cap {cap} MiB", cap, None, memory_cap_mb=cap)
    for chunk in args.chunk:
        add(f"distill, chunk {chunk}", None, chunk, memory_cap_mb=UNCAPPED, chunk_size=chunk)
    for cap, chunk in args.cap_chunk:
        add(f"distill, cap {cap} MiB, chunk {chunk}", cap, chunk, memory_cap_mb=cap, chunk_size=chunk)
    if args.autograd:
        head = heads.Head("distill autograd", ("jsd", "ce"), heads.our_autograd(memory_cap_mb=args.cap[0]))
        found[f"distill autograd, cap {args.cap[0]} MiB"] = head, args.cap[0], None
    if args.peers:
        for head in heads.importable_peers(kind, on_gpu=True):
            found[head.name] = head, None, None
    return found


def peak_beyond_gradients(head, problem):
    """Peak memory in MiB without the gradients: ours exist before the call, the peers allocate theirs in it."""
    peak, result = extra_peak_mib(lambda: head.run(problem))
    made = 0 if isinstance(head.run, heads.Ours) else result.d_hidden.nbytes + result.d_weight.nbytes
    return peak - made / 2**20


def measured_errors(found, problem, tokens):
    """Errors against fp64 on the first tokens. Leaves out compiled peers: they would compile again for this shape."""
    part = problem.first(tokens)
    expected = exact(part)
    result = {}
    for name, (head, _, _) in found.items():
        if "compiled" not in name:
            try:
                result[name] = errors(head.run(part), expected)
            except Exception as error:
                print(f"  {name}: no errors measured, {first_line(error)}", flush=True)
    return result


def bench_head(args, kind, tokens, vocab, hidden, teacher_hidden, softcap):
    problem = random_problem(tokens, vocab, hidden, teacher_hidden, "cuda", softcap=softcap)
    cap = f" softcap={softcap:g}" if softcap else ""
    print(f"\n{kind} N={tokens} V={vocab} Hs={hidden} Ht={teacher_hidden}{cap}", flush=True)
    bound = {}
    for chunk in sorted({min(chunk, tokens) for chunk in args.products}):
        gradient_chunk = chunk if chunk >= 1024 else min(4096, tokens)
        bound[f"products alone, chunk {chunk}"] = products(problem, chunk, gradient_chunk)
    found = competitors(args, kind)
    run = {name: (lambda head=head: head.run(problem)) for name, (head, _, _) in found.items()}
    times = interleaved({**bound, **run}, args.reps)
    best = min(times[name][0] for name in bound)
    # Peak memory is measured after the timing, when the buffers of the products are free.
    bound.clear()
    ran = {name: entry for name, entry in found.items() if name in times}
    peaks = {name: peak_beyond_gradients(head, problem) for name, (head, _, _) in ran.items()}
    wrong = measured_errors(ran, problem, args.error_tokens) if args.errors else {}
    results = []
    for name, (median, low, high) in times.items():
        _, cap, chunk = found.get(name, (None, None, None))
        peak = f"{peaks[name]:8.0f} MiB" if name in peaks else ""
        error = "".join(f"  {k} {v:.1e}" for k, v in wrong.get(name, {}).items())
        print(
            f"  {name:44s} {median:8.2f} ms ({low:.2f} to {high:.2f})  x{median / best:.3f}  {peak}{error}", flush=True
        )
        results.append(
            {
                "kind": kind,
                "n": tokens,
                "v": vocab,
                "h": hidden,
                "ht": teacher_hidden,
                "softcap": softcap,
                "name": name,
                "cap_mib": cap,
                "chunk": chunk,
                "ms": median,
                "min": low,
                "max": high,
                "ratio": median / best,
                "extra_peak_mib": peaks.get(name),
                "errors": wrong.get(name),
            }
        )
    return results


def case_of(row):
    return row["kind"], row["n"], row["v"], row["h"], row["ht"], row.get("softcap", 0)


def table(rows):
    """The results as a Markdown table with a line for each case and implementation."""
    lines = ["| loss | N | V | Hs | Ht | cap | | ms | times the products | scratch, MiB |", "|" + " --- |" * 10]
    for row in rows:
        peak = "" if row["extra_peak_mib"] is None else f"{row['extra_peak_mib']:.0f}"
        lines.append(
            "| "
            + " | ".join([*map(str, case_of(row)), row["name"], f"{row['ms']:.1f}", f"{row['ratio']:.3f}", peak])
            + " |"
        )
    return "\n".join(lines)


def plot(path, rows):
    """For each case, draws the times, and the ratio to the products over the scratch memory."""
    plt = pyplot()
    if plt is None:
        return
    cases = list(dict.fromkeys(case_of(row) for row in rows))
    figure, axes = plt.subplots(len(cases), 2, figsize=(15, 3.2 * len(cases)), squeeze=False)
    for (times, memory), case in zip(axes, cases):
        of_case = [row for row in rows if case_of(row) == case]
        colours = [
            "tab:gray" if "products" in row["name"] else "tab:blue" if "distill" in row["name"] else "tab:orange"
            for row in of_case
        ]
        times.barh([row["name"] for row in of_case], [row["ms"] for row in of_case], color=colours)
        times.invert_yaxis()
        times.tick_params(axis="y", labelsize=7)
        times.set_xlabel("ms, forward + backward")
        times.set_title("{}: N {}, V {}, Hs {}, Ht {}, softcap {}".format(*case), fontsize=9)
        for row, colour in zip(of_case, colours):
            if row["extra_peak_mib"] is not None:
                memory.scatter(row["extra_peak_mib"], row["ratio"], color=colour)
                memory.annotate(row["name"], (row["extra_peak_mib"], row["ratio"]), fontsize=6)
        memory.axhline(1, color="tab:gray", linewidth=0.8)
        memory.set_xlabel("MiB beyond inputs and gradients")
        memory.set_ylabel("times the products")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def plot_widths(path, rows, device):
    """The share of the copy bandwidth over the vocabulary."""
    plt = pyplot()
    if plt is None:
        return
    figure, axis = plt.subplots(figsize=(11, 4))
    for kind, name in (("jsd", "JSD with labels"), ("ce", "cross-entropy")):
        axis.plot([row["v"] for row in rows], [100 * row[f"{kind}_of_copy"] for row in rows], linewidth=1, label=name)
    axis.set_ylim(0, 100)
    axis.set_xlabel("vocabulary")
    axis.set_ylabel("% of the copy bandwidth")
    axis.set_title(f"row kernel alone, fp32 logits, bf16 gradient, {device}", fontsize=9)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)


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


SHAPES_HELP = (
    "kind:Hs:Ht[:V[:softcap]], comma-separated; models: the shapes of the vocabularies that users have. "
    "V replaces --vocab; the softcap is on both sides"
)
# Hidden sizes of a small and a large model of a family, and its vocabulary.
MODELS = [
    "2048:4096:32000",  # Llama 2
    "4096:4096:128256",  # Llama 3
    "2048:4096:151936",  # Qwen 3
    "3072:3072:200064",  # Phi-4-mini
    "2880:2880:201088",  # gpt-oss
    "2304:3584:256000",  # Gemma 2 without its softcap
    "2304:3584:256000:30",  # Gemma 2
    "2560:3840:262144",  # Gemma 3
    "2560:3840:262208",  # Gemma 3 with the columns for images
]


def shape_of(text):
    """(kind, Hs, Ht, V or None, softcap) of kind:Hs:Ht[:V[:softcap]]."""
    kind, *sizes = text.split(":")
    if kind not in ("jsd", "ce") or not 2 <= len(sizes) <= 4 or not all(size.isdigit() for size in sizes):
        raise ValueError(f"expected kind:Hs:Ht[:V[:softcap]] with kind jsd or ce, found {text}")
    hidden, teacher_hidden, vocab, softcap = [int(size) for size in sizes] + [None, 0][len(sizes) - 2 :]
    if (kind == "ce") != (teacher_hidden == 0):
        raise ValueError(f"Ht is 0 for ce, which has no teacher, and only there; found {text}")
    return kind, hidden, teacher_hidden, vocab, softcap


def shapes_of(text):
    """The shapes of the option --shapes."""
    if text == "models":
        jsd = [f"jsd:{sizes}" for sizes in MODELS]
        return [shape_of(shape) for shape in jsd + [of_labels(shape) for shape in jsd]]
    return [shape_of(shape) for shape in text.split(",")]


def of_labels(shape):
    """The shape of cross-entropy on the larger of the two models."""
    _, _, teacher_hidden, *rest = shape.split(":")
    return ":".join(["ce", teacher_hidden, "0", *rest])


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
    parser.add_argument("--errors", action="store_true", help="measure the errors against fp64 too")
    parser.add_argument("--error-tokens", type=int, default=256)
    parser.add_argument("--reps", type=int, default=20)
    parser.add_argument("--out", default="bench_loss_head", help="results: OUT.json and OUT.png")
    parser.add_argument("--plot", metavar="JSON", help="measure nothing; draw the PNG from this file of an earlier run")
    args = parser.parse_args()
    if args.sweep:
        for key, value in SWEEP.items():
            setattr(args, key, value)
    try:
        args.shapes = shapes_of(args.shapes)
    except ValueError as error:
        parser.error(f"--shapes: {error}")
    return args


def main():
    args = parse_arguments()
    if args.plot:
        with open(args.plot) as file:
            plot(os.path.splitext(args.plot)[0] + ".png", json.load(file)["head"])
        return
    if not torch.cuda.is_available():
        sys.exit("bench_loss_head.py needs a GPU, and PyTorch finds none on this machine")
    load_operators(args.library)
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}, {args.reps} repetitions, random data", flush=True)
    report = {
        "device": device,
        "torch": torch.__version__,
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
            kind, hidden, teacher_hidden, own_vocab, softcap = shape
            for tokens in args.tokens:
                for vocab in [own_vocab] if own_vocab else args.vocab:
                    report["head"] += bench_head(args, kind, tokens, vocab, hidden, teacher_hidden, softcap)
                    torch.cuda.empty_cache()
                    save()
        print("\n" + table(report["head"]))
        plot(args.out + ".png", report["head"])


if __name__ == "__main__":
    main()
