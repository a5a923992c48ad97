"""The PyTorch operators against plain PyTorch in fp64: values, gradients, reductions, torch.compile."""
import os
import sys

import pytest
import torch

LIBRARY = os.environ.get("DISTILL_LOSSES_LIBRARY", "build/release/losses/libdistill_losses.so")
torch.ops.load_library(os.path.abspath(LIBRARY))
ops = torch.ops.distill
IGNORE = -100


def problem(dtype=torch.float64, tokens=23, vocab=57, hidden=16, teacher_hidden=24):
    torch.manual_seed(3)
    x = torch.randn(tokens, hidden, dtype=dtype, requires_grad=True)
    w = torch.randn(vocab, hidden, dtype=dtype, requires_grad=True)
    b = torch.randn(vocab, dtype=dtype, requires_grad=True)
    tx, tw = torch.randn(tokens, teacher_hidden, dtype=dtype), torch.randn(vocab, teacher_hidden, dtype=dtype)
    y = torch.randint(0, vocab, (tokens,))
    y[::4] = IGNORE
    return x, w, b, tx, tw, y


def plain(x, w, b, tx, tw, y, beta=0.3, hard_weight=0.5):
    """Per-token loss in plain PyTorch."""
    q = torch.log_softmax(x @ w.t() + (0 if b is None else b), -1)
    valid = y != IGNORE
    loss = hard_weight * torch.nn.functional.nll_loss(q, y, reduction="none", ignore_index=IGNORE)
    if tx is not None:
        p = torch.log_softmax(tx @ tw.t(), -1)
        m = torch.log(beta * p.exp() + (1 - beta) * q.exp())
        loss = loss + beta * (p.exp() * (p - m)).sum(-1) + (1 - beta) * (q.exp() * (q - m)).sum(-1)
    return loss * valid


def gradients(loss, *leaves):
    return torch.autograd.grad(loss, leaves, retain_graph=True)


def close(ours, expected, tolerance=1e-9):
    for a, e in zip(ours, expected):
        assert (a - e).norm() <= tolerance * e.norm()


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "count"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_jsd(reduction, with_bias):
    x, w, b, tx, tw, y = problem()
    bias = b if with_bias else None
    leaves = (x, w, b) if with_bias else (x, w)
    count = 7.0 if reduction == "count" else None
    loss, rows = ops.linear_jsd(
        x, w, tx, tw, y, bias=bias, beta=0.3, hard_weight=0.5, chunk_size=5, num_tokens=count,
        reduction="mean" if reduction == "count" else reduction)
    expected = plain(x, w, bias, tx, tw, y)
    torch.testing.assert_close(rows[0], expected.detach())
    incoming = torch.randn_like(expected)
    if reduction == "none":
        close(gradients((loss * incoming).sum(), *leaves), gradients((expected * incoming).sum(), *leaves))
        return
    scale = {"sum": 1.0, "mean": 1 / (y != IGNORE).sum().item(), "count": 1 / 7.0}[reduction]
    torch.testing.assert_close(loss, expected.sum() * scale)
    close(gradients(3.0 * loss, *leaves), gradients(3.0 * expected.sum() * scale, *leaves))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_linear_cross_entropy(reduction):
    x, w, b, _, _, y = problem()
    loss, _ = ops.linear_cross_entropy(x, w, y, bias=b, reduction=reduction, chunk_size=4)
    expected = torch.nn.functional.cross_entropy(x @ w.t() + b, y, ignore_index=IGNORE, reduction=reduction)
    incoming = torch.randn_like(expected)
    torch.testing.assert_close(loss, expected)
    close(gradients((loss * incoming).sum(), x, w, b), gradients((expected * incoming).sum(), x, w, b))


def test_second_backward_gives_the_same():
    x, w, _, tx, tw, y = problem()
    loss, _ = ops.linear_jsd(x, w, tx, tw, y)
    first = gradients(2.5 * loss, x, w)
    second = gradients(2.5 * loss, x, w)
    assert all(torch.equal(a, b) for a, b in zip(first, second))


def test_frozen_lm_head_gets_no_gradient():
    x, w, _, tx, tw, y = problem()
    loss, _ = ops.linear_jsd(x, w.detach(), tx, tw, y)
    loss.backward()
    assert x.grad is not None and w.grad is None


def test_known_count_of_valid_tokens_changes_nothing():
    x, w, _, tx, tw, y = problem()
    a, rows_a = ops.linear_jsd(x, w, tx, tw, y)
    b, rows_b = ops.linear_jsd(x, w, tx, tw, y, valid_tokens=int((y != IGNORE).sum()))
    torch.testing.assert_close(rows_a, rows_b)
    close(gradients(a, x, w), gradients(b, x, w))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_given_logits(reduction):
    x, w, _, tx, tw, y = problem()
    student, teacher = (x @ w.t()).detach().requires_grad_(True), tx @ tw.t()
    eye = torch.eye(student.shape[1], dtype=student.dtype)
    expected = plain(student, eye, None, teacher, eye, y)
    loss, _ = ops.jsd(student, teacher, y, beta=0.3, hard_weight=0.5, reduction=reduction)
    incoming = torch.randn_like(expected)
    if reduction == "none":
        close(gradients((loss * incoming).sum(), student), gradients((expected * incoming).sum(), student))
    else:
        close(gradients(loss, student), gradients(expected.sum() / (y != IGNORE).sum(), student))
    ce, _ = ops.cross_entropy(student, y, reduction=reduction)
    torch_ce = torch.nn.functional.cross_entropy(student, y, ignore_index=IGNORE, reduction=reduction)
    torch.testing.assert_close(ce, torch_ce)
    close(gradients(ce.sum(), student), gradients(torch_ce.sum(), student))


def test_gradient_in_place_of_the_logits():
    x, w, _, _, _, y = problem(torch.float32)
    logits = (x @ w.t()).detach()
    expected = logits.clone().requires_grad_(True)
    torch.nn.functional.cross_entropy(expected, y, ignore_index=IGNORE, reduction="sum").backward()
    options = [0.0, 0.5, 0.1, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    ops._logits_rows(logits, None, y, None, options, logits)
    close([logits], [expected.grad], 1e-5)


def test_torch_compile_traces_the_operators():
    x, w, b, tx, tw, y = problem(torch.float32)

    def step(x, w, b):
        loss, rows = ops.linear_jsd(x * 2, w, tx, tw, y, bias=b, hard_weight=0.5)
        return loss * 3, rows

    loss, rows = step(x, w, b)
    compiled_loss, compiled_rows = torch.compile(step, backend="aot_eager", fullgraph=True)(x, w, b)
    torch.testing.assert_close(loss, compiled_loss)
    torch.testing.assert_close(rows, compiled_rows)
    close(gradients(compiled_loss, x, w, b), gradients(loss, x, w, b), 1e-5)


def test_mistakes_name_the_argument():
    x, w, _, tx, tw, y = problem()
    for message, call in {
        "divergence: expected": lambda: ops.linear_jsd(x, w, tx, tw, y, divergence="kl"),
        "reduction: expected": lambda: ops.linear_jsd(x, w, tx, tw, y, reduction="average"),
        "beta: expected": lambda: ops.linear_jsd(x, w, tx, tw, y, beta=1.5),
        "targets_N: expected Long": lambda: ops.linear_cross_entropy(x, w, y.int()),
        "smallest value that works": lambda: ops.linear_cross_entropy(
            torch.zeros(1, 1), torch.zeros(300000, 1), torch.zeros(1, dtype=torch.long), memory_cap_mb=1),
    }.items():
        with pytest.raises(RuntimeError, match=message):
            call()


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
