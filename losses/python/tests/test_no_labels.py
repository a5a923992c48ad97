"""Batches without a label, without tokens, and counts that are 0: the loss and its gradients are 0, and never NaN."""

import copy

import pytest
import torch
import torch.nn.functional as F

from distill_losses import JSD, CrossEntropy, LinearCrossEntropy, LinearJSD
from reference import IGNORE, Problem, assert_near, divergence

REDUCTIONS = ["none", "sum", "mean"]
# A loss of each problem p from its labels, and its keyword arguments for a call.
LOSSES = {
    "LinearJSD": (LinearJSD, {}, lambda f, p, **o: f(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb, **o)),
    "LinearJSD, hard": (
        LinearJSD,
        {"weight_hard_loss": 0.5, "label_smoothing": 0.1, "lse_square_scale": 1e-3, "softcap": 5.0},
        lambda f, p, **o: f(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb, **o),
    ),
    "LinearCrossEntropy": (LinearCrossEntropy, {}, lambda f, p, **o: f(p.w, p.x, p.y, p.b, **o)),
    "LinearCrossEntropy, classes": (
        LinearCrossEntropy,
        {"ce_weight": torch.rand(57)},
        lambda f, p, **o: f(p.w, p.x, p.y, p.b, **o),
    ),
    "JSD": (JSD, {"beta": 0.3}, lambda f, p, **o: f(logits(p), teacher_logits(p), p.y, **o)),
    "CrossEntropy": (CrossEntropy, {}, lambda f, p, **o: f(logits(p), p.y, **o)),
    "CrossEntropy, classes": (CrossEntropy, {"weight": torch.rand(57)}, lambda f, p, **o: f(logits(p), p.y, **o)),
    "CrossEntropy, all": (
        CrossEntropy,
        {"weight": torch.rand(57), "label_smoothing": 0.1, "lse_square_scale": 1e-3},
        lambda f, p, **o: f(logits(p), p.y, **o),
    ),
}
every_loss = pytest.mark.parametrize("name", LOSSES)


def logits(p):
    return F.linear(p.x, p.w, p.b)


def teacher_logits(p):
    return F.linear(p.tx, p.tw, p.tb)


def computed(name, p, reduction="mean", **call):
    module, options, function = LOSSES[name]
    return function(module(reduction=reduction, **options), p, **call)


def without_labels(dtype=torch.float32, **sizes):
    p = Problem(dtype, **sizes)
    p.y.fill_(IGNORE)
    return p


def assert_zero(p, loss):
    assert torch.equal(loss, torch.zeros_like(loss))
    for gradient in p.gradients(loss, torch.ones_like(loss)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


ZEROS = [
    0,
    0.0,
    torch.tensor(0),
    torch.tensor([0]),
    torch.tensor([[0.0]]),
    torch.tensor(0, dtype=torch.int32),
    torch.tensor(0.0, dtype=torch.bfloat16),
    torch.tensor(0.0, dtype=torch.float64, requires_grad=True),
]


@every_loss
@pytest.mark.parametrize("count", ZEROS, ids=repr)
def test_a_batch_without_labels_divided_by_its_count(name, count):
    p = without_labels()
    for reduction in REDUCTIONS:
        loss = computed(name, p, reduction, num_items_in_batch=count)
        assert loss.shape == (p.y.shape if reduction == "none" else ()) and loss.dtype == torch.float32
        assert_zero(p, loss)


@every_loss
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_batch_without_labels_in_other_dtypes(name, dtype):
    for count in (None, 0, torch.tensor(0)):
        p = without_labels(dtype)
        assert_zero(p, computed(name, p, num_items_in_batch=count))


@every_loss
def test_a_count_of_zero_is_an_empty_mean_whatever_the_labels_are(name):
    """Others count the labels: a batch that they call empty is not learned from, and nothing is divided by 0."""
    p = Problem(torch.float32)
    for count in (0, torch.tensor(0)):
        assert_zero(p, computed(name, p, num_items_in_batch=count))


@every_loss
@pytest.mark.parametrize("count", [11, 0.25, torch.tensor(11), torch.tensor([11]), torch.tensor([[0.25]])], ids=repr)
def test_a_count_divides_the_sum(name, count):
    p = Problem()
    expected = computed(name, p, "sum") / float(count)
    found = computed(name, p, num_items_in_batch=count)
    assert found.shape == () and found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert_near(p.gradients(found), p.gradients(expected), 1e-12)


@every_loss
@pytest.mark.parametrize(
    "count",
    [-1, -0.5, float("nan"), float("inf"), True, "3", [0], 1j]
    + [torch.tensor(value) for value in (-1, -0.5, float("nan"), float("inf"), True, 1j)]
    + [torch.tensor([1, 2]), torch.empty(0)],
    ids=repr,
)
def test_a_count_that_is_none_is_refused(name, count):
    p = Problem(torch.float32)
    for reduction in REDUCTIONS:
        with pytest.raises(
            ValueError, match="num_items_in_batch: expected a (finite number of at least 0|number, or a)"
        ):
            computed(name, p, reduction, num_items_in_batch=count)


@every_loss
@pytest.mark.parametrize("batch,length", [(0, 7), (3, 0), (0, 0)])
def test_no_tokens(name, batch, length):
    p = Problem(torch.float32, batch=batch, length=length)
    for reduction in REDUCTIONS:
        for count in (None, 0, 5, torch.tensor(0)):
            loss = computed(name, p, reduction, num_items_in_batch=count)
            assert loss.shape == ((batch, length) if reduction == "none" else ())
            assert_zero(p, loss)


def test_no_tokens_and_no_labels():
    p = Problem(torch.float32, batch=0)
    for reduction in REDUCTIONS:
        assert_zero(p, LinearJSD(reduction=reduction)(p.x, p.w, p.tx, p.tw, None, p.b, p.tb))
        assert_zero(p, JSD(reduction=reduction)(logits(p), teacher_logits(p)))


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "CrossEntropy, all"])
def test_weights_of_tokens_that_are_all_zero(name):
    p = Problem(torch.float32)
    for reduction in REDUCTIONS:
        for count in (None, 0, 5):
            weights = torch.zeros(p.y.shape)
            assert_zero(p, computed(name, p, reduction, token_weights=weights, num_items_in_batch=count))


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "CrossEntropy, all"])
def test_weights_of_tokens_are_numbers_where_there_is_a_label(name):
    p = Problem(torch.float32)
    weights = torch.rand(p.y.shape)
    weights[p.y != IGNORE] -= 0.5  # a weight may be negative
    expected = computed(name, p, token_weights=weights)
    weights[p.y == IGNORE] = torch.nan  # as of 0 / 0
    assert computed(name, p, token_weights=weights) == expected
    for bad in (torch.nan, torch.inf, -torch.inf):
        weights[0, 1] = bad
        with pytest.raises(ValueError, match="token_weights: expected finite numbers"):
            computed(name, p, token_weights=weights)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_weights_of_classes_that_are_all_zero(label_smoothing):
    p, weight = Problem(torch.float32), torch.zeros(57)
    for reduction in REDUCTIONS:
        assert_zero(p, CrossEntropy(weight, label_smoothing=label_smoothing, reduction=reduction)(logits(p), p.y))
        assert_zero(p, LinearCrossEntropy(weight, reduction=reduction)(p.w, p.x, p.y, p.b))


@pytest.mark.parametrize("bad", [-1.0, torch.nan, torch.inf])
def test_weights_of_classes_are_numbers_of_at_least_zero(bad):
    weight = torch.rand(57)
    weight[3] = bad
    for label_smoothing in (0.0, 0.1):
        with pytest.raises(ValueError, match="weight: expected finite numbers of at least 0"):
            CrossEntropy(weight, label_smoothing=label_smoothing)
    with pytest.raises(ValueError, match="ce_weight: expected finite numbers of at least 0"):
        LinearCrossEntropy(weight)


@every_loss
def test_micro_batches_of_which_one_has_no_label(name):
    """The gradients of both, divided by the labels of both, are those of one batch; so they are in either order."""
    whole = Problem(torch.float64)
    parts = [copy.deepcopy(whole) for _ in range(2)]
    parts[1].y.fill_(IGNORE)
    count = (whole.y != IGNORE).sum()
    expected = whole.gradients(computed(name, whole, "sum") / count)
    found = [part.gradients(computed(name, part, num_items_in_batch=count)) for part in parts]
    assert_near([a + b for a, b in zip(*found)], expected, 1e-12)
    assert all(gradient.abs().max() == 0 for gradient in found[1])


@every_loss
@pytest.mark.parametrize("count", [0, torch.tensor(0), torch.tensor(5)], ids=repr)
def test_in_one_graph(name, count):
    p = without_labels()
    module, options, function = LOSSES[name]
    compiled = torch.compile(module(**options), backend="aot_eager", fullgraph=True)
    assert_zero(p, function(compiled, p, num_items_in_batch=count))


def test_in_one_graph_a_count_that_is_none_is_refused():
    p = Problem(torch.float32)
    compiled = torch.compile(LinearCrossEntropy(), backend="aot_eager", fullgraph=True)
    for bad in (-1, torch.nan):
        with pytest.raises(RuntimeError, match="num_items_in_batch: expected a finite number of at least 0"):
            compiled(p.w, p.x, p.y, num_items_in_batch=torch.tensor(bad))


@pytest.mark.parametrize("num_tokens", [0.0, 4.0])
def test_the_operators(num_tokens):
    p = without_labels(torch.float64)
    x, tx, y = p.x.flatten(0, 1), p.tx.flatten(0, 1), p.y.flatten()
    ops, options = torch.ops.distill, dict(num_tokens=num_tokens, token_weights=torch.ones(21, dtype=torch.float64))
    topk = ops.capture_topk(tx, p.tw, 6)
    samples = ops.capture_samples(tx, p.tw, torch.arange(21), 9)
    calls = [
        lambda s: ops.linear_jsd(x[s], p.w, tx[s], p.tw, y[s], bias=p.b, **of(options, s)),
        lambda s: ops.linear_cross_entropy(x[s], p.w, y[s], bias=p.b, **of(options, s)),
        lambda s: ops.linear_topk(x[s], p.w, *(t[s] for t in topk), y[s], bias=p.b, **of(options, s)),
        lambda s: ops.linear_sampled(x[s], p.w, *(t[s] for t in samples), y[s], bias=p.b, **of(options, s)),
        lambda s: ops.jsd(F.linear(x[s], p.w, p.b), F.linear(tx[s], p.tw, p.tb), y[s], **of(options, s)),
        lambda s: ops.cross_entropy(F.linear(x[s], p.w, p.b), y[s], **of(options, s)),
    ]
    for call in calls:
        for part in (slice(None), slice(0, 0)):
            assert_zero(p, call(part)[0])


def of(options, part):
    return {**options, "token_weights": options["token_weights"][part]}


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_the_operators_refuse_a_number_that_is_no_count(bad):
    p = Problem(torch.float64)
    with pytest.raises(RuntimeError, match="num_tokens: expected a finite number of at least 0, found"):
        torch.ops.distill.linear_cross_entropy(p.x.flatten(0, 1), p.w, p.y.flatten(), num_tokens=bad)


def test_the_mean_of_divergences_has_no_labels_to_count():
    """The plain formula, where every token counts."""
    p = Problem()
    expected = divergence(p.logits(), p.teacher_logits(), 0.5).sum() / 4
    found = LinearJSD()(p.x, p.w, p.tx, p.tw, None, p.b, p.tb, num_items_in_batch=4)
    torch.testing.assert_close(found, expected)
