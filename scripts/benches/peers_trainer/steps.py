"""The peer's steps: tokens, one step of training, its time and memory."""

import contextlib
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention import SDPBackend, sdpa_kernel

GIB = 2**30


def random_tokens(options, step, rank, world):
    """tokens_BS of a rank in a step. Each sequence is drawn from the seed of its place among those of all ranks."""
    first = (step * world + rank) * options.batch
    rows = [
        torch.randint(options.vocab, (options.sequence,), generator=torch.Generator().manual_seed(sample))
        for sample in range(first, first + options.batch)
    ]
    return torch.stack(rows)


def attention_kernels(device):
    """cuDNN's attention before the others, on a GPU."""
    if device.type == "cpu":
        return contextlib.nullcontext()
    first = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    return sdpa_kernel([*first, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], set_priority=True)


def train_step(student, teacher, optimizer, tokens_BS):
    """One step of training, with the gradient clipped to a norm of 1; returns this rank's loss, a scalar tensor."""
    with torch.no_grad():
        teacher_hidden_NT, teacher_weight_VT = teacher(tokens_BS)
    labels_N = tokens_BS.roll(-1, 1).flatten()
    loss = student(tokens_BS, teacher_hidden_NT, teacher_weight_VT, labels_N)
    if isinstance(teacher.causal.lm_head, FSDPModule):
        teacher.causal.lm_head.reshard()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def measured_step(train, device):
    """Runs train() -> loss; returns its loss (mean over ranks), seconds and peak memory in GiB (of the worst rank)."""
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    begin = time.perf_counter()
    loss = train()
    if gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    peaks = [torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB] if gpu else [0, 0]
    mean, worst = loss.double(), torch.tensor([seconds, *peaks], dtype=torch.float64, device=device)
    dist.all_reduce(mean)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    seconds, allocated, reserved = worst.tolist()
    step = {"loss": mean.item() / dist.get_world_size(), "seconds": seconds}
    return step | ({"allocated_gib": allocated, "reserved_gib": reserved} if gpu else {})


def summary_of(steps, tokens):
    """The median time of the last half of the steps, their speed with `tokens` a step and GPU, their peak memory."""
    last = steps[len(steps) // 2 :]
    seconds = statistics.median(step["seconds"] for step in last)
    peaks = {key: max(step[key] for step in last) for key in last[0] if key.endswith("_gib")}
    return {"seconds": seconds, "tokens_per_second_per_gpu": tokens / seconds, **peaks}
