"""The kernels on logits that the caller has, forward and backward, compared with PyTorch's own cross-entropy."""

import torch

from loss_head.timing import interleaved

# Numbers for each element that forward and backward must read and write.
FORWARD_CE, BACKWARD_CE = 1, 2
FORWARD_JSD, BACKWARD_JSD = 2, 3


def bench_logits(vocab, dtype, reps):
    """`dtype`: of the logits. Rows have no padding: those of an odd vocabulary begin at any multiple of its size."""
    rows = max(512, int(1.5e9 / (vocab * dtype.itemsize)))
    student = torch.randn(rows, vocab, device="cuda", dtype=dtype, requires_grad=True)
    teacher = torch.randn(rows, vocab, device="cuda", dtype=dtype)
    targets = torch.randint(0, vocab, (rows,), device="cuda")
    forward = {
        "cross_entropy": lambda: torch.ops.distill.cross_entropy(student, targets, reduction="sum")[0],
        "jsd": lambda: torch.ops.distill.jsd(student, teacher, targets, reduction="sum")[0],
        "torch cross_entropy": lambda: torch.nn.functional.cross_entropy(student, targets, reduction="sum"),
    }
    moved = {
        "cross_entropy": (FORWARD_CE, BACKWARD_CE),
        "jsd": (FORWARD_JSD, BACKWARD_JSD),
        "torch cross_entropy": (FORWARD_CE, BACKWARD_CE),
    }
    source = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    backward = {}

    def backward_of(name):
        loss = forward[name]()
        return lambda: torch.autograd.grad(loss, student, retain_graph=True)

    for name in forward:
        backward[name + ", backward"] = backward_of(name)
    times = interleaved({"copy": lambda: target.copy_(source), **forward, **backward}, reps)
    copy = 2 * source.numel() / times["copy"][0] / 1e6
    name_of_dtype = str(dtype).removeprefix("torch.")
    print(f"\nkernels on given logits, {name_of_dtype}, {rows} rows of {vocab}, copy {copy:.0f} GB/s", flush=True)
    results = []
    for name in forward:
        for part, numbers in zip((name, name + ", backward"), moved[name]):
            if part not in times:
                continue
            rate = rows * vocab * numbers * dtype.itemsize / times[part][0] / 1e6
            print(
                f"  {part:30s} {times[part][0]:8.3f} ms  {rate:7.0f} GB/s  {100 * rate / copy:5.1f} % of copy",
                flush=True,
            )
            results.append(
                {
                    "v": vocab,
                    "dtype": name_of_dtype,
                    "rows": rows,
                    "name": part,
                    "ms": times[part][0],
                    "gb_s": rate,
                    "of_copy": rate / copy,
                }
            )
    return results
