"""The row kernel alone, every geometry, against the copy bandwidth measured in the same run."""

import torch

from loss_head.timing import interleaved

STREAMING, CLUSTER = 2, 1
LAUNCHES = 5
BYTES_JSD, BYTES_CE = 10, 6  # per element: fp32 logits of each side read, a bf16 gradient written
GRADIENT_BYTES = 2
DIVERGENCES = ["none", "jsd", "forward_kl", "reverse_kl", "skew_forward_kl", "skew_reverse_kl", "total_variation"]
METRICS = ["all", "loss"]

# What docs/loss_head.md compares: by the dtype of the logits, the arguments of `options`.
LOSSES = {
    "float32": [
        {"metrics": "loss"},
        {},
        {"temperature": 2.0},
        {"softcap": 30.0, "metrics": "loss"},
        {"softcap": 30.0},
        {"softcap": 30.0, "temperature": 2.0},
        {"smoothing": 0.1},
        {"divergence": "forward_kl"},
        {"divergence": "skew_forward_kl"},
        {"divergence": "skew_reverse_kl"},
        {"divergence": "total_variation"},
    ],
    "bfloat16": [{}, {"temperature": 2.0}, {"smoothing": 0.1}],
}


def options(
    divergence="jsd",
    beta=0.5,
    temperature=1.0,
    hard_weight=0.0,
    soft_weight=1.0,
    smoothing=0.0,
    softcap=0.0,
    metrics="all",
):
    """The option list of distill::_logits_rows."""
    kind = float(DIVERGENCES.index(divergence))
    return [
        kind,
        beta,
        0.1,
        temperature,
        0.0,
        hard_weight,
        soft_weight,
        smoothing,
        0.0,
        softcap,
        softcap,
        0.0,
        METRICS.index(metrics),
    ]


def bench_rows(vocab, teacher, reps, kernels=("automatic", "streaming", "clusters"), dtype=torch.float32, loss=None):
    """`kernels`: clusters are the sizes that give a block 5 to 10 tiles, which every loss is compiled for. `dtype`: of
    the logits. `loss`: arguments of `options` that
    replace those of JSD with labels, and of cross-entropy where there is no teacher."""
    loss = dict(loss or {})
    rows = max(512, int(1.5e9 / (vocab * 4)) // 132 * 132)
    padded = (vocab + 63) // 64 * 64

    def buffer(dtype):
        return torch.randn(rows, padded, device="cuda", dtype=dtype)[:, :vocab]

    student, teacher_logits = buffer(dtype), buffer(dtype) if teacher else None
    gradient = torch.empty(rows, padded, device="cuda", dtype=torch.bfloat16)[:, :vocab]
    targets = torch.randint(0, vocab, (rows,), device="cuda")
    of_kind = {"hard_weight": 0.5} if teacher else {"divergence": "none", "hard_weight": 1.0, "soft_weight": 0.0}
    opts = options(**of_kind | (loss if teacher else {k: v for k, v in loss.items() if k != "divergence"}))
    source = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    functions = {"copy": lambda: [target.copy_(source) for _ in range(LAUNCHES)]}

    def add(name, strategy, cluster):
        def launches():  # several, so that the time between launches does not count
            for _ in range(LAUNCHES):
                torch.ops.distill._logits_rows(
                    student, teacher_logits, targets, None, opts, gradient, strategy, cluster
                )

        functions[name] = launches

    add("automatic", 0, 0)
    if "streaming" in kernels:
        add("streaming", STREAMING, 0)
    if "clusters" in kernels:
        for cluster in (2, 3, 4, 5, 6, 7, 8, 16):
            columns = -(-vocab // cluster)  # of one block, rounded up
            if 5 <= -(-columns // 2048) <= 10:
                add(f"cluster {cluster}", CLUSTER, cluster)
    times = interleaved(functions, reps)
    copy = LAUNCHES * 2 * source.numel() / times["copy"][0] / 1e6
    moved = rows * vocab * (dtype.itemsize * (2 if teacher else 1) + GRADIENT_BYTES)
    what = f"{'JSD' if teacher else 'CE'}, {str(dtype).removeprefix('torch.')}"
    what += "".join(f", {name} {value}" for name, value in loss.items())
    print(f"\nrow kernel, {what}, {rows} rows of {vocab}, copy {copy:.0f} GB/s", flush=True)
    results = []
    for name, (median, low, _) in times.items():
        if name == "copy":
            continue
        median, low = median / LAUNCHES, low / LAUNCHES
        rate = moved / median / 1e6
        print(f"  {name:20s} {median:8.3f} ms  {rate:7.0f} GB/s  {100 * rate / copy:5.1f} % of copy", flush=True)
        results.append(
            {
                "v": vocab,
                "rows": rows,
                "teacher": teacher,
                "dtype": str(dtype).removeprefix("torch."),
                "loss": loss,
                "name": name,
                "ms": median,
                "min": low,
                "gb_s": rate,
                "of_copy": rate / copy,
                "copy_gb_s": copy,
            }
        )
    return results


def bench_losses(vocabs, reps):
    """The kernel that a call takes and the streaming one, at each vocabulary, with each of LOSSES: results as of
    bench_rows."""
    found = []
    for dtype, losses in LOSSES.items():
        for loss in losses:
            for teacher in (True, False) if "divergence" not in loss else (True,):
                for vocab in vocabs:
                    kernels = ("automatic", "streaming")
                    found += bench_rows(vocab, teacher, reps, kernels, getattr(torch, dtype), loss)
                    torch.cuda.empty_cache()
    return found


def losses_table(results, vocabs):
    """The shares of the copy as a Markdown table with a line for each loss of LOSSES."""
    lines = [
        f"| % of the copy at {', '.join(map(str, vocabs))} | JSD or divergence | CE | streaming kernel: JSD | CE |",
        "| --- | --- | --- | --- | --- |",
    ]
    for dtype, losses in LOSSES.items():
        for loss in losses:
            cells = []
            for kernel in ("automatic", "streaming"):
                for teacher in (True, False):
                    asked = dtype, loss, teacher, kernel
                    of = [r for r in results if (r["dtype"], r["loss"], r["teacher"], r["name"]) == asked]
                    cells.append(" / ".join(f"{100 * r['of_copy']:.0f}" for r in of))
            name = ", ".join([dtype] + [f"{key}={value}" for key, value in loss.items()])
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def bench_widths(count, low=30000, high=320000, reps=3):
    """The kernel alone at `count` vocabularies, evenly spread, most of them odd, with the loss as its only metric.

    Returns (vocab, share of the copy for JSD with labels, for CE). The copy bandwidth is measured before and after; the
    smallest time of `reps` counts.
    """
    elements = int(0.15e9)
    source = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    student, teacher = (torch.randn(elements, device="cuda") for _ in range(2))
    gradient = torch.empty(elements, device="cuda", dtype=torch.bfloat16)

    def copy_rate():
        times = interleaved({"copy": lambda: [target.copy_(source) for _ in range(LAUNCHES)]}, 8)
        return LAUNCHES * 2 * source.numel() / times["copy"][0] / 1e6

    def rate(logits, teacher_logits, grads, labels):
        """GB/s of the smallest time."""
        kind = {"hard_weight": 0.5} if teacher_logits is not None else {"divergence": "none", "hard_weight": 1.0}
        opts = options(**kind, metrics="loss")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(reps + 1):
            start.record()
            torch.ops.distill._logits_rows(logits, teacher_logits, labels, None, opts, grads, 0, 0)
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        return (BYTES_CE if teacher_logits is None else BYTES_JSD) * logits.numel() / min(times[1:]) / 1e6

    before = copy_rate()
    found = []
    for k in range(count):
        vocab = low + k * (high - low) // max(1, count - 1)
        stride = (vocab + 63) // 64 * 64
        rows = elements // stride
        logits, teacher_logits, grads = (
            x[: rows * stride].view(rows, stride)[:, :vocab] for x in (student, teacher, gradient)
        )
        labels = torch.randint(0, vocab, (rows,), device="cuda")
        found.append((vocab, rate(logits, teacher_logits, grads, labels), rate(logits, None, grads, labels)))
    copy = (before + copy_rate()) / 2
    return [{"v": v, "jsd_of_copy": jsd / copy, "ce_of_copy": ce / copy} for v, jsd, ce in found]
