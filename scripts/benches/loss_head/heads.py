"""Implementations of the fused loss head behind one interface: ours and plain PyTorch; peer_heads.py has the others.
Each `head.run(problem)` does forward and backward and returns a Result of the mean loss."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from loss_head.exact import Result

DIVERGENCES = ("jsd", "forward_kl", "reverse_kl")


@dataclass
class Head:
    name: str
    kinds: tuple  # of the problems it can do: those of DIVERGENCES, ce
    run: Callable


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
        if problem.kind != "ce":
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
    return Head(name, (*DIVERGENCES, "ce"), Ours(buffers or Buffers(), **arguments))


def plain_heads():
    return [
        Head("plain, fp32 logits", (*DIVERGENCES, "ce"), plain(torch.float32)),
        Head("plain, bf16 logits", (*DIVERGENCES, "ce"), plain(torch.bfloat16)),
    ]
