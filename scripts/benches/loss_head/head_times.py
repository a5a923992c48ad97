"""The head's times, scratch and errors beside those of the products alone and of the peers: --what head and table."""

import itertools

from loss_head import heads
from loss_head.exact import errors, exact
from loss_head.peer_heads import importable_peers
from loss_head.problem import random_problem
from loss_head.products import Products
from loss_head.report import first_line
from loss_head.shapes import Case
from loss_head.timing import DEVICE, extra_peak_mib, interleaved

UNCAPPED = 1 << 20  # MiB, for explicit chunks


def competitors(args, case):
    """({name: (head, memory cap in MiB or None, chunk or None)}, {name: reason} of the peers that are left out)."""
    found, left_out, buffers = {}, {}, heads.Buffers()

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
        kinds = (*heads.DIVERGENCES, "ce")
        head = heads.Head("distill autograd", kinds, heads.our_autograd(memory_cap_mb=args.cap[0]))
        found[f"distill autograd, cap {args.cap[0]} MiB"] = head, args.cap[0], None
    if args.peers:
        peers, left_out = importable_peers(case.kind, DEVICE == "cuda", softcap=case.softcap, only=args.only)
        found |= {head.name: (head, None, None) for head in peers}
    return found, left_out


def peak_beyond_gradients(head, problem):
    """Peak memory in MiB without the gradients: ours exist before the call, the peers allocate theirs in it."""
    peak, result = extra_peak_mib(lambda: head.run(problem))
    if peak is None or isinstance(head.run, heads.Ours):
        return peak
    return peak - (result.d_hidden.nbytes + result.d_weight.nbytes) / 2**20


def measured_errors(found, problem, tokens):
    """Errors against fp64 on the first tokens, or on all where `tokens` is 0. Of fewer tokens it leaves out compiled
    peers: they would compile again for this shape."""
    part = problem.first(tokens) if tokens else problem
    expected = exact(part)
    result = {}
    for name, (head, _, _) in found.items():
        if "compiled" not in name or not tokens:
            try:
                result[name] = errors(head.run(part), expected)
            except Exception as error:
                print(f"  {name}: no errors measured, {first_line(error)}", flush=True)
    return result


def problem_of(case):
    beta = 0 if case.kind == "forward_kl" else 0.5
    return random_problem(
        case.tokens, case.vocab, case.hidden, case.teacher_hidden, DEVICE, softcap=case.softcap, beta=beta
    )


def bench_head(args, case):
    """The results of one case, a dict for each implementation that ran and for each peer that did not."""
    problem = problem_of(case)
    print(f"\n{case}", flush=True)
    chunks = sorted({min(chunk, case.tokens) for chunk in args.products})
    products = Products(problem, chunks[-1])
    bound = {f"products alone, chunk {chunk}": (lambda chunk=chunk: products.run(chunk)) for chunk in chunks}
    found, left_out = competitors(args, case)
    run = {name: (lambda head=head: head.run(problem)) for name, (head, _, _) in found.items()}
    times = interleaved({**bound, **run}, args.reps, left_out)
    best = min(times[name][0] for name in bound)
    # Peak memory is measured after the timing, when the buffers of the products are free.
    products = None
    bound.clear()
    ran = {name: entry for name, entry in found.items() if name in times}
    peaks = {name: peak_beyond_gradients(head, problem) for name, (head, _, _) in ran.items()}
    wrong = measured_errors(ran, problem, args.error_tokens) if args.errors else {}
    of_case = {
        "kind": case.kind,
        "n": case.tokens,
        "v": case.vocab,
        "h": case.hidden,
        "ht": case.teacher_hidden,
        "softcap": case.softcap,
        "models": case.models,
    }
    results = []
    for name, (median, low, high) in times.items():
        _, cap, chunk = found.get(name, (None, None, None))
        peak = f"{peaks[name]:8.0f} MiB" if peaks.get(name) is not None else ""
        error = "".join(f"  {k} {v:.1e}" for k, v in wrong.get(name, {}).items())
        print(
            f"  {name:44s} {median:8.2f} ms ({low:.2f} to {high:.2f})  x{median / best:.3f}  {peak}{error}", flush=True
        )
        results.append(
            {
                **of_case,
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
    return results + [{**of_case, "name": name, "left_out": why} for name, why in left_out.items()]


def case_of_row(row):
    """The Case of a row of results, of this or an earlier version of the benchmark."""
    return Case(row["kind"], row["h"], row["ht"], row["v"], row.get("softcap", 0), row["n"], row.get("models", ""))


def measured(rows):
    """The rows with a time."""
    return [row for row in rows if "ms" in row]
