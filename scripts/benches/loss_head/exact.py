"""The losses in fp64, a few tokens at a time: the reference for every implementation."""

import math
from dataclasses import dataclass

import torch

CHUNK = 64


@dataclass
class Result:
    """Of the mean loss over the tokens: per-token losses [N] (None where an implementation does not give them), the
    mean, and its gradients."""

    mean: torch.Tensor
    d_hidden: torch.Tensor
    d_weight: torch.Tensor
    tokens: torch.Tensor | None = None


def soft_rows(student, teacher, beta):
    """JSD(beta) of rows of logits, with beta 0 and 1 the two KLs: losses and the gradient for the student's logits."""
    q, p = torch.log_softmax(student, -1), torch.log_softmax(teacher, -1)
    if beta == 0:
        return (p.exp() * (p - q)).sum(-1), q.exp() - p.exp()
    if beta == 1:
        a = q - p
        loss = (q.exp() * a).sum(-1)
        return loss, q.exp() * (a - loss[:, None])
    m = torch.logaddexp(p + math.log(beta), q + math.log(1 - beta))
    a = q - m
    kl_q = (q.exp() * a).sum(-1)
    loss = beta * (p.exp() * (p - m)).sum(-1) + (1 - beta) * kl_q
    return loss, (1 - beta) * q.exp() * (a - kl_q[:, None])


def hard_rows(logits, targets):
    """Cross-entropy of rows of logits and its gradient."""
    q = torch.log_softmax(logits, -1)
    gradient = q.exp()
    gradient[torch.arange(len(targets), device=targets.device), targets] -= 1
    return -q.gather(1, targets[:, None])[:, 0], gradient


def capped(logits, softcap):
    """cap tanh(logits / cap) and its slope; a cap of 0 is none."""
    if softcap == 0:
        return logits, 1.0
    ratio = torch.tanh(logits / softcap)
    return softcap * ratio, 1 - ratio**2


def exact(problem, dtype=torch.float64):
    """The Result in fp64 from the problem's own inputs, or in another dtype."""
    weight = problem.weight.to(dtype)
    teacher_weight = None if problem.teacher_weight is None else problem.teacher_weight.to(dtype)
    losses, d_hidden, d_weight = [], [], torch.zeros_like(weight)
    for start in range(0, problem.tokens, CHUNK):
        rows = slice(start, start + CHUNK)
        hidden = problem.hidden[rows].to(dtype)
        logits, slope = capped(hidden @ weight.t(), problem.softcap)
        if teacher_weight is None:
            loss, gradient = hard_rows(logits, problem.targets[rows])
        else:
            teacher, _ = capped(problem.teacher_hidden[rows].to(dtype) @ teacher_weight.t(), problem.softcap)
            loss, gradient = soft_rows(logits, teacher, problem.beta)
        gradient *= slope / problem.tokens
        losses.append(loss)
        d_hidden.append(gradient @ weight)
        d_weight += gradient.t() @ hidden
    tokens = torch.cat(losses)
    return Result(tokens.mean(), torch.cat(d_hidden), d_weight, tokens)


def relative(found, expected):
    """||found - expected|| / ||expected|| in fp64; the plain norm where the expected is 0."""
    expected = expected.double()
    norm = expected.norm()
    return ((found.double() - expected).norm() / (norm if norm > 0 else 1)).item()


def errors(found, expected):
    """Relative errors of the mean loss and of both gradients, and the smallest loss of a token where it is known."""
    result = {
        "loss": relative(found.mean, expected.mean),
        "d_hidden": relative(found.d_hidden, expected.d_hidden),
        "d_weight": relative(found.d_weight, expected.d_weight),
    }
    if found.tokens is not None:
        result["smallest_token_loss"] = found.tokens.min().item()
    return result
