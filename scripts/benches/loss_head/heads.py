"""Implementations of the fused loss head behind one interface: ours, plain PyTorch, and peers where Python can import
them. Each `head.run(problem)` does forward and backward and returns a Result of the mean loss."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from exact import Result
from report import first_line


@dataclass
class Head:
    name: str
    kinds: tuple  # of the problems it can do: jsd, ce
    run: Callable
    needs_gpu: bool = False


def leaves(problem):
    return problem.hidden.detach().requires_grad_(True), problem.weight.detach().requires_grad_(True)


def of_autograd(loss_of):
    """A Head.run from a function (problem, hidden, weight) -> mean loss."""

    def run(problem):
        hidden, weight = leaves(problem)
        loss = loss_of(problem, hidden, weight)
        loss.backward()
        return Result(loss.detach(), hidden.grad, weight.grad)

    return run


class Buffers:
    """The two gradients of the last problem's shape, allocated once and reused, as a trainer does."""

    def __init__(self):
        self.d_hidden = self.d_weight = None

    def of(self, problem):
        if self.d_hidden is None or self.d_hidden.shape != problem.hidden.shape:
            self.d_hidden = torch.empty_like(problem.hidden)
        if self.d_weight is None or self.d_weight.shape != problem.weight.shape:
            self.d_weight = torch.empty_like(problem.weight, dtype=torch.float32)
        return self.d_hidden, self.d_weight


class Ours:
    """distill::linear_head_into."""

    def __init__(self, buffers, **arguments):
        self.buffers = buffers
        self.arguments = arguments

    def __call__(self, problem):
        d_hidden, d_weight = self.buffers.of(problem)
        rows = torch.ops.distill.linear_head_into(
            problem.hidden,
            problem.weight,
            problem.teacher_hidden,
            problem.teacher_weight,
            problem.targets,
            hidden_gradient=d_hidden,
            weight_gradient=d_weight,
            grad_scale=1.0 / problem.tokens,
            accumulate=False,
            **problem.loss_arguments(),
            **self.arguments,
        )
        return Result(rows[0].mean(), d_hidden, d_weight, rows[0])


def our_autograd(**arguments):
    def loss_of(problem, hidden, weight):
        if problem.kind == "jsd":
            return torch.ops.distill.linear_jsd(
                hidden, weight, problem.teacher_hidden, problem.teacher_weight, beta=problem.beta, **arguments
            )[0]
        return torch.ops.distill.linear_cross_entropy(hidden, weight, problem.targets, **arguments)[0]

    return of_autograd(loss_of)


def plain(logits_dtype):
    """The textbook computation on logits of this dtype, rounded to it before the softmax, all else in fp32."""

    def loss_of(problem, hidden, weight):
        student = logits_of(hidden, weight, logits_dtype)
        if problem.kind == "ce":
            return torch.nn.functional.cross_entropy(student, problem.targets)
        with torch.no_grad():
            teacher = logits_of(problem.teacher_hidden, problem.teacher_weight, logits_dtype)
        q, p = torch.log_softmax(student, -1), torch.log_softmax(teacher, -1)
        if problem.beta in (0, 1):
            a, b = (q, p) if problem.beta == 0 else (p, q)
            return torch.nn.functional.kl_div(a, b, reduction="batchmean", log_target=True)
        betas = torch.tensor([problem.beta, 1 - problem.beta], device=q.device).log()
        m = torch.logaddexp(p + betas[0], q + betas[1])

        def kl(log_x):
            return torch.nn.functional.kl_div(m, log_x, reduction="batchmean", log_target=True)

        return problem.beta * kl(p) + (1 - problem.beta) * kl(q)

    return of_autograd(loss_of)


def logits_of(hidden, weight, dtype):
    """Products of the inputs as they are, accumulated in fp32; with dtype bf16 rounded to it."""
    if dtype == torch.float32:
        return hidden.float() @ weight.float().t()
    return (hidden @ weight.t()).float()


def ours(buffers=None, *, name="distill", **arguments):
    return Head(name, ("jsd", "ce"), Ours(buffers or Buffers(), **arguments))


def plain_heads():
    return [
        Head("plain, fp32 logits", ("jsd", "ce"), plain(torch.float32)),
        Head("plain, bf16 logits", ("jsd", "ce"), plain(torch.bfloat16)),
    ]


def liger_chunked(chunk, compiled):
    from liger_kernel.chunked_loss.jsd_loss import LigerFusedLinearJSDLoss

    modules = {}

    def loss_of(problem, hidden, weight):
        module = modules.setdefault(
            problem.beta,
            LigerFusedLinearJSDLoss(
                weight_hard_loss=0.0, weight_soft_loss=1.0, beta=problem.beta, compiled=compiled, chunk_size=chunk
            ),
        )
        return module(hidden, weight, problem.teacher_hidden, problem.teacher_weight, problem.targets)

    return of_autograd(loss_of)


def liger_jsd(accumulation):
    from liger_kernel.ops.fused_linear_jsd import LigerFusedLinearJSDFunction

    return of_autograd(
        lambda problem, hidden, weight: LigerFusedLinearJSDFunction.apply(
            hidden, weight, problem.teacher_hidden, problem.teacher_weight, None, problem.beta, -100, 1.0, accumulation
        )
    )


def liger_cross_entropy(accumulation):
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    def loss_of(problem, hidden, weight):
        result = LigerFusedLinearCrossEntropyFunction.apply(
            hidden, weight, problem.targets, None, None, -100, 0.0, 0.0, "mean", None, False, accumulation
        )
        return result[0] if isinstance(result, tuple) else result

    return of_autograd(loss_of)


def cut_cross_entropy(implementation):
    from cut_cross_entropy import linear_cross_entropy

    return of_autograd(
        lambda problem, hidden, weight: linear_cross_entropy(hidden, weight, problem.targets, impl=implementation)
    )


# name, kinds, needs a GPU, how it is made. Each is looked up only when asked for.
PEERS = [
    ("Liger chunked_loss compiled, chunk 1024", ("jsd",), True, lambda: liger_chunked(1024, compiled=True)),
    ("Liger chunked_loss compiled, chunk 4096", ("jsd",), True, lambda: liger_chunked(4096, compiled=True)),
    ("Liger chunked_loss", ("jsd",), False, lambda: liger_chunked(1024, compiled=False)),
    ("Liger fused_linear_jsd", ("jsd",), True, lambda: liger_jsd(None)),
    ("Liger fused_linear_jsd, fp32 accumulation", ("jsd",), True, lambda: liger_jsd(torch.float32)),
    ("Liger FLCE", ("ce",), True, lambda: liger_cross_entropy(None)),
    ("Liger FLCE, fp32 accumulation", ("ce",), True, lambda: liger_cross_entropy(torch.float32)),
    ("cut-cross-entropy", ("ce",), True, lambda: cut_cross_entropy("cce")),
    ("cut-cross-entropy, Kahan full", ("ce",), True, lambda: cut_cross_entropy("cce_kahan_full_c")),
]


def importable_peers(kind, on_gpu, compiled=True):
    """The peers that Python can import and that this machine can run; says why where one is left out."""
    found = []
    for name, kinds, needs_gpu, make in PEERS:
        if kind not in kinds or (needs_gpu and not on_gpu):
            continue
        if on_gpu and ("compiled" in name) != compiled and "chunked_loss" in name:
            continue
        try:
            found.append(Head(name, kinds, make(), needs_gpu))
        except Exception as error:  # not installed, or not for this machine
            print(f"  {name}: left out, {first_line(error)}", flush=True)
    return found
