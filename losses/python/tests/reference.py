"""The losses in plain PyTorch, on logits, for comparison: one formula each, no chunks, autograd's gradients."""

import torch
import torch.nn.functional as F

IGNORE = -100


def divergence(student, teacher, beta, temperature=1.0):
    """Generalised JSD of logits [N, V] for each token, [N]."""
    q, p = (F.log_softmax(logits / temperature, -1) for logits in (student, teacher))
    if beta == 0:
        return (p.exp() * (p - q)).sum(-1)
    if beta == 1:
        return (q.exp() * (q - p)).sum(-1)
    m = (beta * p.exp() + (1 - beta) * q.exp()).log()
    return beta * (p.exp() * (p - m)).sum(-1) + (1 - beta) * (q.exp() * (q - m)).sum(-1)


def reduced(loss_N, labels, reduction, ignore_index=IGNORE):
    """none, sum, or the mean over the labels that are not ignored."""
    valid = torch.ones_like(loss_N, dtype=torch.bool) if labels is None else labels.flatten() != ignore_index
    loss_N = torch.where(valid, loss_N, 0.0)
    return {"none": loss_N, "sum": loss_N.sum(), "mean": loss_N.sum() / valid.sum().clamp_min(1)}[reduction]


class Problem:
    """Hidden states [B, S, H], heads, biases and labels for both sides; leaves that require a gradient first."""

    def __init__(self, dtype=torch.float64, batch=3, length=7, vocab=57, hidden=16, teacher_hidden=24, seed=3):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        self.x = normal(batch, length, hidden).requires_grad_()
        self.w = normal(vocab, hidden).requires_grad_()
        self.b = normal(vocab).requires_grad_()
        self.tx, self.tw, self.tb = normal(batch, length, teacher_hidden), normal(vocab, teacher_hidden), normal(vocab)
        self.y = torch.randint(0, vocab, (batch, length), generator=generator)
        self.y[:, ::4] = IGNORE

    def logits(self):
        """The student's [N, V], differentiable."""
        return F.linear(self.x, self.w, self.b).flatten(0, 1)

    def teacher_logits(self):
        return F.linear(self.tx, self.tw, self.tb).flatten(0, 1)

    def gradients(self, loss, incoming=None, retain_graph=True):
        """Of the leaves, as fp64; `incoming` for losses that are not scalars."""
        found = torch.autograd.grad(loss, (self.x, self.w, self.b), incoming, retain_graph=retain_graph)
        return [gradient.double() for gradient in found]


def assert_near(found, expected, tolerance):
    """Relative error in the Frobenius norm, for each tensor."""
    for a, b in zip(found, expected, strict=True):
        error = (a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-300)
        assert error <= tolerance, f"relative error {error:.2e}, expected at most {tolerance:.0e}"
