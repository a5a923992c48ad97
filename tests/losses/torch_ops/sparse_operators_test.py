"""The PyTorch operators on top-k and samples of a teacher, against plain PyTorch in fp64."""

import os
import sys

import pytest
import torch

LIBRARY = os.environ.get("DISTILL_LOSSES_LIBRARY", "build/release/losses/libdistill_losses.so")
torch.ops.load_library(os.path.abspath(LIBRARY))
ops = torch.ops.distill
IGNORE = -100


def problem(dtype=torch.float64, tokens=23, vocab=57, hidden=16):
    torch.manual_seed(3)
    x = torch.randn(tokens, hidden, dtype=dtype, requires_grad=True)
    w = torch.randn(vocab, hidden, dtype=dtype, requires_grad=True)
    b = torch.randn(vocab, dtype=dtype, requires_grad=True)
    tx, tw = torch.randn(tokens, 24, dtype=dtype), torch.randn(vocab, 24, dtype=dtype)
    y = torch.randint(0, vocab, (tokens,))
    y[::4] = IGNORE
    return x, w, b, tx, tw, y


def topk_of(tx, tw, k=6):
    ids, log_probs, tail = ops.capture_topk(tx, tw, k, chunk_size=5)
    log_p = torch.log_softmax(tx @ tw.t(), -1)
    torch.testing.assert_close(log_probs, log_p.topk(k).values)
    torch.testing.assert_close(tail, 1 - log_probs.exp().sum(-1))
    return ids, log_probs, tail


def hard_loss(logits, y, weight):
    return weight * torch.nn.functional.cross_entropy(logits, y, reduction="none", ignore_index=IGNORE)


def plain_topk(x, w, b, ids, log_probs, tail, y, hard_weight=0.5):
    logits = x @ w.t() + b
    log_q = torch.log_softmax(logits, -1)
    entries = log_q.gather(1, ids.long())
    tail_q = torch.log1p(-entries.exp().sum(-1))
    soft = (log_probs.exp() * (log_probs - entries)).sum(-1) + tail * (tail.log() - tail_q)
    return (soft + hard_loss(logits, y, hard_weight)) * (y != IGNORE)


def plain_sampled(x, w, b, ids, weights, y, hard_weight=0.5):
    logits = x @ w.t() + b
    soft = -(weights * torch.log_softmax(logits, -1).gather(1, ids.long())).sum(-1)
    return (soft + hard_loss(logits, y, hard_weight)) * (y != IGNORE)


def check(loss, expected, reduction, leaves, y):
    """Loss and gradients of an operator against those of the loss of each token."""
    scale = {"none": 1.0, "sum": 1.0, "mean": 1 / (y != IGNORE).sum()}[reduction]
    expected = expected * scale if reduction == "none" else expected.sum() * scale
    torch.testing.assert_close(loss, expected)
    incoming = torch.randn_like(loss)
    found = torch.autograd.grad((loss * incoming).sum(), leaves, retain_graph=True)
    again = torch.autograd.grad((loss * incoming).sum(), leaves)
    wanted = torch.autograd.grad((expected * incoming).sum(), leaves)
    for a, second, e in zip(found, again, wanted):
        torch.testing.assert_close(a, e)
        torch.testing.assert_close(second, a, rtol=0, atol=0)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_linear_topk(reduction):
    x, w, b, tx, tw, y = problem()
    teacher = topk_of(tx, tw)
    loss, rows = ops.linear_topk(x, w, *teacher, y, bias=b, hard_weight=0.5, chunk_size=5, reduction=reduction)
    expected = plain_topk(x, w, b, *teacher, y)
    check(loss, expected, reduction, (x, w, b), y)
    torch.testing.assert_close(rows[0], expected.detach())


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_linear_sampled(reduction):
    x, w, b, tx, tw, y = problem()
    ids, weights = ops.capture_samples(tx, tw, torch.arange(len(y)), 40, seed=1, exponent=0.8)
    loss, _ = ops.linear_sampled(x, w, ids, weights, y, bias=b, hard_weight=0.5, chunk_size=5, reduction=reduction)
    check(loss, plain_sampled(x, w, b, ids, weights.double(), y), reduction, (x, w, b), y)


def test_all_tokens_of_the_vocabulary_give_the_loss_of_the_hidden_states():
    x, w, _, tx, tw, y = problem()
    ids, log_probs, tail = ops.capture_topk(tx, tw, 57)
    for divergence in ("jsd", "forward_kl", "reverse_kl", "total_variation"):
        whole, _ = ops.linear_jsd(x, w, tx, tw, y, divergence=divergence)
        listed, _ = ops.linear_topk(x, w, ids, log_probs, tail, y, divergence=divergence)
        torch.testing.assert_close(listed, whole)
        for a, e in zip(torch.autograd.grad(listed, (x, w)), torch.autograd.grad(whole, (x, w))):
            torch.testing.assert_close(a, e)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_known_count_and_low_precision(dtype):
    x, w, b, tx, tw, y = problem(dtype)
    ids, log_probs, tail = ops.capture_topk(tx, tw, 6)
    log_probs = log_probs.half()
    exact = [t.detach().double().requires_grad_(True) for t in (x, w, b)]
    expected = plain_topk(*exact, ids, log_probs.double(), tail.double(), y, hard_weight=0).sum()
    loss, _ = ops.linear_topk(
        x, w, ids, log_probs, tail, y, bias=b, reduction="sum", valid_tokens=int((y != IGNORE).sum())
    )
    torch.testing.assert_close(
        loss.double(), expected, rtol=2e-3, atol=0
    )  # fp16's log-probabilities do not add up to 1
    tolerance = 2e-2 if dtype == torch.bfloat16 else 5e-3
    for a, e in zip(torch.autograd.grad(loss, (x, w, b)), torch.autograd.grad(expected, exact)):
        assert (a.double() - e).norm() < tolerance * e.norm()


def test_autocast_around_a_capture_changes_nothing():
    tx, tw = (t.float() for t in problem()[3:5])
    keys = torch.arange(len(tx))
    expected = [*ops.capture_topk(tx, tw, 6), *ops.capture_samples(tx, tw, keys, 40, exponent=0.8)]
    with torch.autocast("cpu", torch.bfloat16):
        found = [*ops.capture_topk(tx, tw, 6), *ops.capture_samples(tx, tw, keys, 40, exponent=0.8)]
    for a, e in zip(found, expected):
        torch.testing.assert_close(a, e, rtol=0, atol=0)


def test_linear_head_into_takes_entries():
    x, w, b, tx, tw, y = (t.detach() for t in problem())
    ids, log_probs, tail = topk_of(tx, tw)
    leaves = [t.clone().requires_grad_(True) for t in (x, w)]
    plain_topk(*leaves, 0, ids, log_probs, tail, y).sum().backward()
    hidden_gradient, weight_gradient = torch.empty_like(x), torch.empty_like(w)
    ops.linear_head_into(
        x,
        w,
        None,
        None,
        y,
        hidden_gradient=hidden_gradient,
        weight_gradient=weight_gradient,
        accumulate=False,
        divergence="forward_kl",
        hard_weight=0.5,
        teacher_ids=ids,
        teacher_values=log_probs,
        teacher_tail=tail,
    )
    torch.testing.assert_close(hidden_gradient, leaves[0].grad)
    torch.testing.assert_close(weight_gradient, leaves[1].grad)


def test_torch_compile_traces_the_operators():
    x, w, b, tx, tw, y = problem(torch.float32)
    ids, weights = ops.capture_samples(tx, tw, torch.arange(len(y)), 8)

    def step(x, w, b):
        entries = ops.capture_topk(tx, tw, 6)
        topk, rows = ops.linear_topk(x * 2, w, *entries, y, bias=b, hard_weight=0.5)
        return topk * 3 + ops.linear_sampled(x, w, ids, weights, y)[0], rows

    loss, rows = step(x, w, b)
    compiled, compiled_rows = torch.compile(step, backend="aot_eager", fullgraph=True)(x, w, b)
    torch.testing.assert_close(compiled, loss)
    torch.testing.assert_close(compiled_rows, rows)
    for a, e in zip(torch.autograd.grad(compiled, (x, w, b)), torch.autograd.grad(loss, (x, w, b))):
        torch.testing.assert_close(a, e)


def test_operators_do_what_their_schemas_and_shape_functions_say():
    x, w, _, tx, tw, y = (t.detach() for t in problem(torch.float32))
    ids, log_probs, tail = ops.capture_topk(tx, tw, 6)
    options = [2.0, 0.5, 0.1, 1.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    sizes = [0, -1, 5, 16, 256]
    entries = (ids, log_probs, tail, 1.0)
    calls = {
        "_linear_head": (x, w, None, None, y, None, None, None, options, sizes, [1, 1, 0], *entries),
        "_linear_head_into": (x, w, None, None, y, None, options, sizes, 0.5, False, torch.empty_like(x), None, None)
        + entries,
        "capture_topk": (tx, tw, 6),
        "capture_samples": (tx, tw, torch.arange(len(y)), 8),
    }
    for name, arguments in calls.items():
        torch.library.opcheck(getattr(ops, name).default, arguments, test_utils=("test_schema", "test_faketensor"))


def test_mistakes_name_the_argument():
    x, w, _, tx, tw, y = problem()
    ids, log_probs, tail = topk_of(tx, tw)
    for message, call in {
        "temperature: the teacher's kind topk": lambda: ops.linear_topk(x, w, ids, log_probs, tail, y, temperature=2.0),
        "topk_ids_NK: expected Int": lambda: ops.linear_topk(x, w, ids.long(), log_probs, tail, y),
        "sample_weights_NS: expected shape": lambda: ops.linear_sampled(x, w, ids, log_probs[:, :2], y),
        "ids: expected -1": lambda: ops.linear_topk(x, w, ids + 57, log_probs, tail, y),
        "to be distinct": lambda: ops.linear_topk(x, w, torch.zeros_like(ids), log_probs, tail, y),
        "k: expected": lambda: ops.capture_topk(tx, tw, 0),
        "exponent: expected": lambda: ops.capture_samples(tx, tw, torch.arange(len(y)), 4, exponent=2.0),
    }.items():
        with pytest.raises(RuntimeError, match=message):
            call()


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
