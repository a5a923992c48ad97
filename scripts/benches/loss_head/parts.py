"""What the head's time is made of: its kernels in a trace, beside the products alone at their best chunk.

The head runs, for each chunk of tokens, the student's and the teacher's logits products and the row kernel, and for
each group of chunks the two gradient products; so the order of the kernels tells which product one of them is.
"""

import re
import statistics
from typing import NamedTuple

import torch

from loss_head import heads
from loss_head.head_times import problem_of
from loss_head.products import Products
from loss_head.timing import DEVICE, interleaved

CAP = 1024  # MiB
TRACES = 3
CHUNKS = (1024, 2048, 4096)
# At most this many times the products under CAP, from a hidden size of 1024 to one of 2560; with a softcap.
BAR, SOFTCAP_BAR = 1.25, 1.30
ROWS = re.compile(r"rows_cluster|\brows\b|streaming4rows")  # with names as the compiler mangles them too
PRODUCT = re.compile(r"gemm|nvjet|cutlass|xmma|matmul", re.IGNORECASE)
REDUCTION = re.compile(r"split_?k.*reduce", re.IGNORECASE)  # the second kernel of a product that sums in pieces


class Kernel(NamedTuple):
    """A kernel of a trace: its name, begin and duration in milliseconds."""

    name: str
    begin: float
    ms: float


def kernels_of(function):
    """The Kernels of one call, in order; none on a CPU."""
    if DEVICE == "cpu":
        function()
        return []
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CPU, activity.CUDA]) as trace:
        function()
        torch.cuda.synchronize()
    on_device = [event for event in trace.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    found = [Kernel(e.name, e.time_range.start / 1e3, e.time_range.elapsed_us() / 1e3) for e in on_device]
    return sorted(found, key=lambda kernel: kernel.begin)


def parts_of(kernels, sides):
    """Milliseconds of each part of a call, and its numbers of chunks and groups; `sides` have logits products.

    Raises ValueError where the kernels are not in the head's order.
    """
    parts = {"logits": 0.0, "gradients": 0.0, "rows": 0.0, "other": 0.0}
    chunks = gradient_products = 0
    waiting = []  # the products since the last row kernel, in milliseconds

    def take(name, count):
        taken = [waiting.pop(0) for _ in range(count)]
        parts[name] += sum(taken)
        return count

    for kernel in kernels:
        if ROWS.search(kernel.name):
            if len(waiting) not in (sides, sides + 2):
                raise ValueError(f"expected {sides} or {sides + 2} products before a row kernel, found {len(waiting)}")
            gradient_products += take("gradients", len(waiting) - sides)
            take("logits", sides)
            parts["rows"] += kernel.ms
            chunks += 1
        elif REDUCTION.search(kernel.name) and waiting:
            waiting[-1] += kernel.ms
        elif PRODUCT.search(kernel.name):
            waiting.append(kernel.ms)
        else:
            parts["other"] += kernel.ms
    if len(waiting) != 2:
        raise ValueError(f"expected 2 products after the last row kernel, found {len(waiting)}")
    gradient_products += take("gradients", 2)
    span = kernels[-1].begin + kernels[-1].ms - kernels[0].begin
    idle = max(0.0, span - sum(kernel.ms for kernel in kernels))
    return parts | {"idle": idle, "chunks": chunks, "groups": gradient_products // 2}


def by_name(kernels):
    """{name: (count, milliseconds)}, the longest first."""
    totals = {}
    for kernel in kernels:
        count, ms = totals.get(kernel.name, (0, 0.0))
        totals[kernel.name] = count + 1, ms + kernel.ms
    return dict(sorted(totals.items(), key=lambda entry: -entry[1][1]))


def traced(head, problem):
    """The median parts of several calls, and the kernels of the last one by name; ({}, {}) where there is no trace."""
    traces = [kernels_of(lambda: head.run(problem)) for _ in range(TRACES)]
    if not all(traces):
        return {}, {}
    try:
        found = [parts_of(kernels, 1 if problem.teacher_hidden is None else 2) for kernels in traces]
    except ValueError as error:
        print(f"  no parts: {error}", flush=True)
        return {}, by_name(traces[-1])
    return {key: statistics.median(parts[key] for parts in found) for key in found[0]}, by_name(traces[-1])


def bench_parts(case, reps):
    """The result of one case: times of the head and of the products alone, and the parts of each form of the head."""
    problem = problem_of(case)
    chunks = sorted({min(chunk, case.tokens) for chunk in CHUNKS})
    products = Products(problem, max(chunks), fp32=True)
    alone = {
        "all": {},
        "logits": {"gradients": False},
        "fp32 logits": {"gradients": False, "fp32": True},
        "gradients": {"logits": False},
    }
    functions = {
        (name, chunk): (lambda chunk=chunk, options=options: products.run(chunk, **options))
        for name, options in alone.items()
        for chunk in chunks
    }
    buffers = heads.Buffers()
    forms = {metrics: heads.ours(buffers, metrics=metrics, memory_cap_mb=CAP) for metrics in ("loss", "all")}
    functions |= {("head", metrics): (lambda head=head: head.run(problem)) for metrics, head in forms.items()}
    times = interleaved(functions, reps)
    best = {name: min((times[name, chunk][0], chunk) for chunk in chunks) for name in alone}
    products = None
    functions.clear()
    result = {**case._asdict(), "alone": {name: {"ms": ms, "chunk": chunk} for name, (ms, chunk) in best.items()}}
    for metrics, head in forms.items():
        ms = times["head", metrics][0]
        parts, kernels = traced(head, problem)
        result[metrics] = {"ms": ms, "ratio": ms / best["all"][0], "parts": parts, "kernels": kernels}
    print("\n" + "\n".join(lines_of(result)), flush=True)
    return result


def bar_of(result):
    """The bar for a case; None where there is none."""
    if not 1024 <= result["hidden"] <= 2560:
        return None
    return SOFTCAP_BAR if result["softcap"] else BAR


def lines_of(result):
    """The breakdown of one case as text."""
    alone, tokens = result["alone"], result["tokens"]
    yield (
        f"{result['models']}: N {tokens}, V {result['vocab']}, H {result['hidden']}, G {result['teacher_hidden']}, "
        f"softcap {result['softcap']}, cap {CAP} MiB"
    )
    best = alone["all"]
    yield f"  products alone {best['ms']:.2f} ms (chunk {best['chunk']})"
    for metrics in ("loss", "all"):
        form = result[metrics]
        parts = form["parts"]
        yield f"  head, {metrics} metrics: {form['ms']:.2f} ms, {form['ratio']:.3f} times the products"
        if not parts:
            continue
        logits, fp32, gradients = (alone[name] for name in ("logits", "fp32 logits", "gradients"))
        yield (
            f"    logits products {parts['logits']:.2f} ms in {parts['chunks']:.0f} chunks of "
            f"{tokens / parts['chunks']:.0f} tokens; alone {logits['ms']:.2f} (bf16, chunk {logits['chunk']}), "
            f"{fp32['ms']:.2f} (fp32, chunk {fp32['chunk']})"
        )
        yield (
            f"    gradient products {parts['gradients']:.2f} ms in {parts['groups']:.0f} groups of "
            f"{tokens / parts['groups']:.0f} tokens; alone {gradients['ms']:.2f} (chunk {gradients['chunk']})"
        )
        yield f"    row kernel {parts['rows']:.2f} ms, other kernels {parts['other']:.2f}, idle {parts['idle']:.2f}"


def parts_table(results):
    """The breakdown as a Markdown table, a line for each case and form of the head."""
    lines = [
        f"| under {CAP} MiB, JSD | metrics | ms | times the products (bar) | products alone | logits products: chunks, "
        "ms | alone: bf16, fp32 | gradient products: groups, ms | alone | row kernel | other, idle |",
        "|" + " --- |" * 11,
    ]
    for result in results:
        alone, bar = result["alone"], bar_of(result)
        softcap = f", softcap {result['softcap']}" if result["softcap"] else ""
        name = f"{result['models']}: V {result['vocab']}, H {result['hidden']} / {result['teacher_hidden']}{softcap}"
        for metrics in ("loss", "all"):
            form = result[metrics]
            parts = form["parts"]
            cells = [name, metrics, f"{form['ms']:.2f}", f"{form['ratio']:.3f}" + (f" ({bar:.2f})" if bar else "")]
            cells.append(f"{alone['all']['ms']:.2f}")
            if parts:
                mean_chunk, mean_group = (result["tokens"] / parts[key] for key in ("chunks", "groups"))
                logits = f"{parts['chunks']:.0f} of {mean_chunk:.0f}: {parts['logits']:.2f}"
                gradients = f"{parts['groups']:.0f} of {mean_group:.0f}: {parts['gradients']:.2f}"
                rest = [f"{parts['rows']:.2f}", f"{parts['other']:.2f}, {parts['idle']:.2f}"]
            else:
                logits, gradients, rest = "", "", ["", ""]
            cells += [logits, f"{alone['logits']['ms']:.2f}, {alone['fp32 logits']['ms']:.2f}"]
            cells += [gradients, f"{alone['gradients']['ms']:.2f}", *rest]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
