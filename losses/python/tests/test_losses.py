"""Values and gradients of the four losses against plain PyTorch in fp64, and what the arguments promise."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from distill_losses import JSD, CrossEntropy, LinearCrossEntropy, LinearJSD, functional
from reference import IGNORE, Problem, assert_near, divergence, reduced

REDUCTIONS = ["none", "sum", "mean"]


def compare(problem, loss, expected):
    """Loss and gradients, with an incoming gradient that differs for each token."""
    expected = expected.reshape(loss.shape)
    torch.testing.assert_close(loss, expected)
    incoming = torch.rand_like(expected)
    assert_near(problem.gradients(loss, incoming), problem.gradients(expected, incoming), 1e-9)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_linear_jsd_with_labels(reduction, beta):
    p = Problem()
    loss = LinearJSD(
        beta=beta, temperature=2.0, weight_hard_loss=0.4, weight_soft_loss=0.6, reduction=reduction, chunk_size=5
    )(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)
    hard = F.cross_entropy(p.logits(), p.y.flatten(), reduction="none")
    soft = divergence(p.logits(), p.teacher_logits(), beta, 2.0)
    assert loss.shape == (p.y.shape if reduction == "none" else ())
    compare(p, loss, reduced(0.4 * hard + 0.6 * soft, p.y, reduction))


def test_without_labels_every_token_counts():
    p = Problem()
    loss = LinearJSD()(p.x, p.w, p.tx, p.tw, student_bias=p.b, teacher_bias=p.tb)
    compare(p, loss, divergence(p.logits(), p.teacher_logits(), 0.5).mean())


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_linear_cross_entropy_with_every_option(reduction):
    p = Problem()
    options = dict(label_smoothing=0.1, reduction=reduction, ignore_index=IGNORE)
    loss = LinearCrossEntropy(lse_square_scale=1e-2, softcap=5.0, **options)(p.w, p.x, p.y, p.b)
    capped = 5.0 * torch.tanh(p.logits() / 5.0)
    z_loss = reduced(1e-2 * capped.logsumexp(-1).square(), p.y, reduction)
    compare(p, loss, F.cross_entropy(capped, p.y.flatten(), **options) + z_loss)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_given_logits(reduction):
    p = Problem()
    options = dict(reduction=reduction, ignore_index=IGNORE)
    shape = (*p.y.shape, -1)
    loss = JSD(beta=0.3, temperature=0.7, reduction=reduction)(
        p.logits().view(shape), p.teacher_logits().view(shape), p.y
    )
    compare(p, loss, reduced(divergence(p.logits(), p.teacher_logits(), 0.3, 0.7), p.y, reduction))
    loss = CrossEntropy(label_smoothing=0.2, **options)(p.logits().view(shape), p.y)
    compare(p, loss, F.cross_entropy(p.logits(), p.y.flatten(), label_smoothing=0.2, **options))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("label_smoothing,lse_square_scale", [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.1, 1e-2)])
def test_class_weights(reduction, label_smoothing, lse_square_scale):
    p = Problem()
    weight = torch.rand(57, dtype=torch.float64)
    options = dict(label_smoothing=label_smoothing, reduction=reduction)
    expected = F.cross_entropy(p.logits(), p.y.flatten(), weight, ignore_index=IGNORE, **options)
    expected = expected + reduced(lse_square_scale * p.logits().logsumexp(-1).square(), p.y, reduction)
    of_logits = CrossEntropy(weight, lse_square_scale=lse_square_scale, **options)
    compare(p, of_logits(p.logits(), p.y.flatten()), expected)
    if label_smoothing or lse_square_scale:
        with pytest.raises(ValueError, match="ce_weight: expected label_smoothing 0 and lse_square_scale 0"):
            LinearCrossEntropy(weight, lse_square_scale=lse_square_scale, **options)
        return
    compare(p, LinearCrossEntropy(weight, **options)(p.w, p.x, p.y, p.b), expected)


@pytest.mark.parametrize("ignore_index", [0, 42, -1])
def test_ignore_index(ignore_index):
    p = Problem()
    p.y[p.y == IGNORE] = ignore_index
    expected = F.cross_entropy(p.logits(), p.y.flatten(), ignore_index=ignore_index)
    compare(p, LinearCrossEntropy(ignore_index=ignore_index)(p.w, p.x, p.y, p.b), expected)
    soft = divergence(p.logits(), p.teacher_logits(), 0.5)
    loss = LinearJSD(ignore_index=ignore_index)(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)
    compare(p, loss, reduced(soft, p.y, "mean", ignore_index))


def test_minus_100_is_no_label_where_another_index_is_ignored():
    p = Problem()
    with pytest.raises(RuntimeError, match="neither the ignore index"):
        LinearCrossEntropy(ignore_index=42)(p.w, p.x, p.y)


def test_all_ignored_is_zero_and_has_zero_gradients():
    p = Problem(torch.float32)
    p.y.fill_(IGNORE)
    for loss in (
        LinearJSD()(p.x, p.w, p.tx, p.tw, p.y, p.b),
        LinearCrossEntropy()(p.w, p.x, p.y, p.b),
        LinearCrossEntropy(torch.rand(57))(p.w, p.x, p.y, p.b),
        CrossEntropy()(p.logits(), p.y.flatten()),
    ):
        assert loss.item() == 0
        assert all(gradient.abs().max() == 0 for gradient in p.gradients(loss))


def test_num_items_in_batch_and_token_weights():
    p = Problem()
    weights = torch.rand(p.y.shape, dtype=torch.float64)
    soft = divergence(p.logits(), p.teacher_logits(), 0.5) * weights.flatten()
    for count in (11, 11.0, torch.tensor(11)):
        loss = LinearJSD()(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb, token_weights=weights, num_items_in_batch=count)
        compare(p, loss, reduced(soft, p.y, "sum") / 11)
    hard = F.cross_entropy(p.logits(), p.y.flatten(), reduction="sum")
    compare(p, LinearCrossEntropy()(p.w, p.x, p.y, p.b, num_items_in_batch=11), hard / 11)
    compare(p, CrossEntropy()(p.logits(), p.y.flatten(), num_items_in_batch=11), hard / 11)


def test_identical_models_have_a_loss_and_a_gradient_of_exactly_zero():
    p = Problem(torch.float32)
    loss = LinearJSD()(p.x, p.w, p.x, p.w, student_bias=p.b, teacher_bias=p.b)
    assert loss.item() == 0
    assert all(gradient.abs().max() == 0 for gradient in p.gradients(loss))


def test_padded_vocabularies_have_probability_zero():
    p = Problem()
    wide = torch.cat([p.tw, torch.full((7, 24), 9.0, dtype=torch.float64)])
    loss = LinearJSD()(p.x, p.w, p.tx, wide)
    torch.testing.assert_close(loss, LinearJSD()(p.x, p.w, p.tx, p.tw))


def test_metrics():
    p = Problem()
    loss, metrics = LinearJSD(weight_hard_loss=0.5, return_metrics=True)(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)
    valid = p.y != IGNORE
    assert all(row.shape == p.y.shape and not row.requires_grad for row in metrics)
    torch.testing.assert_close(metrics.loss.sum() / valid.sum(), loss.detach())
    torch.testing.assert_close(
        metrics.soft.flatten(), reduced(divergence(p.logits(), p.teacher_logits(), 0.5), p.y, "none").detach()
    )
    same = (p.logits().argmax(-1) == p.teacher_logits().argmax(-1)).view(p.y.shape)
    assert torch.equal(metrics.agreement, (same & valid).double())
    assert torch.equal(metrics.student_lse == 0, ~valid)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_metrics_are_computed_where_they_are_asked_for_and_change_nothing(monkeypatch, reduction, softcap):
    p, asked, names = Problem(torch.float32), [], ("linear_jsd", "linear_cross_entropy", "jsd", "cross_entropy")
    operators = {name: getattr(functional.ops, name) for name in names}

    def noting(name):
        def call(*arguments, metrics, **options):
            asked.append((name, metrics))
            return operators[name](*arguments, metrics=metrics, **options)

        return call

    monkeypatch.setattr(functional, "ops", SimpleNamespace(**{name: noting(name) for name in names}))
    labels = p.y.flatten()
    calls = {
        LinearJSD: lambda loss: loss(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb),
        LinearCrossEntropy: lambda loss: loss(p.w, p.x, p.y, p.b),
        JSD: lambda loss: loss(p.logits(), p.teacher_logits(), labels),
        CrossEntropy: lambda loss: loss(p.logits(), labels),
    }
    for name, (module, call) in zip(names, calls.items()):
        modules = [module(reduction=reduction, softcap=softcap, return_metrics=each) for each in (False, True)]
        asked.clear()
        expected, (found, metrics) = (call(each) for each in modules)
        assert asked == [(name, "loss"), (name, "all")]
        assert torch.equal(found, expected) and (metrics.student_entropy > 0).sum() == (labels != IGNORE).sum()
        incoming = torch.rand_like(expected)
        gradients = (p.gradients(loss, incoming) for loss in (found, expected))
        assert all(torch.equal(a, b) for a, b in zip(*gradients))


@pytest.mark.parametrize("module,shapes", [(LinearJSD, 4), (LinearCrossEntropy, 2), (JSD, 2), (CrossEntropy, 1)])
def test_frozen_inputs_get_no_gradient(module, shapes):
    p = Problem(torch.float32)
    arguments = {
        LinearJSD: (p.x, p.w.detach(), p.tx.requires_grad_(), p.tw),
        LinearCrossEntropy: (p.w.detach(), p.x, p.y),
        JSD: (p.x, p.x.detach().requires_grad_() * 2),
        CrossEntropy: (p.x, p.y.clamp(0, 15)),
    }[module]
    module()(*arguments).backward()
    assert p.x.grad is not None and p.w.grad is None and p.tx.grad is None


def test_bf16_and_fp16():
    """The error of half-precision inputs is that of rounding the gradients: logits and losses are fp32."""
    for dtype, tolerance in ((torch.bfloat16, 1e-2), (torch.float16, 1e-3)):
        p = Problem(dtype)
        loss = LinearJSD()(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)
        assert loss.dtype == torch.float32
        exact = Problem()
        for name in ("x", "w", "b", "tx", "tw", "tb"):
            getattr(exact, name).data = getattr(p, name).detach().double()
        expected = reduced(divergence(exact.logits(), exact.teacher_logits(), 0.5), p.y, "mean")
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
        found = torch.autograd.grad(loss, (p.x, p.w, p.b))
        assert all(gradient.dtype == dtype for gradient in found)
        assert_near(found, exact.gradients(expected), tolerance)


@pytest.mark.parametrize(
    "options,message",
    [
        (dict(beta=1.5), r"beta: expected a number in \[0, 1\].*found 1.5"),
        (dict(temperature=0.0), "temperature: expected"),
        (dict(reduction="avg"), "reduction: expected none, sum or mean, found 'avg'"),
        (dict(divergence="kl"), "divergence: expected none, jsd, .*, found kl"),
        (dict(memory_cap_mb=0), "memory_cap_mb: expected"),
        (dict(chunk_size=-1), "chunk_size: expected"),
        (dict(label_smoothing=2.0), "label_smoothing: expected"),
    ],
)
def test_an_option_that_no_call_accepts_is_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        LinearJSD(**options)


def test_wrong_shapes_and_dtypes_are_named():
    p = Problem(torch.float32)
    with pytest.raises(ValueError, match=r"student weight: expected shape \[V, 16\].*found \[57, 24\]"):
        LinearJSD()(p.x, p.tw, p.tx, p.tw)
    with pytest.raises(ValueError, match=r"teacher_input: expected shape \[3, 7, 'G'\], found \[2, 7, 24\]"):
        LinearJSD()(p.x, p.w, p.tx[:2], p.tw)
    with pytest.raises(ValueError, match=r"labels: expected shape \[3, 7\], found \[21\]"):
        LinearJSD()(p.x, p.w, p.tx, p.tw, p.y.flatten())
    with pytest.raises(ValueError, match="lm_head's weight: expected torch.float32, as .*, found torch.bfloat16"):
        LinearCrossEntropy()(p.w.bfloat16(), p.x, p.y)


@pytest.mark.parametrize("count", [56, 58])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_class_weights_of_another_number_than_the_classes_are_refused(count, label_smoothing):
    p = Problem(torch.float32)
    weight = torch.rand(count)
    with pytest.raises(
        ValueError, match=rf"weight: expected one weight for each class, shape \[57\], found \[{count}\]"
    ):
        CrossEntropy(weight, label_smoothing=label_smoothing)(p.logits(), p.y.flatten())
    with pytest.raises(ValueError, match=rf"ce_weight: expected one .* shape \[57\], found \[{count}\]"):
        LinearCrossEntropy(weight)(p.w, p.x, p.y)


def test_class_weights_of_a_padded_head():
    """One for each row, or one for each class that exists."""
    p, weight = Problem(torch.float32), torch.rand(57)
    found = []
    for count in (50, 57):
        labels = p.y.clamp(max=49)
        found.append(LinearCrossEntropy(weight[:count], vocab_size=50)(p.w, p.x, labels))
    assert found[0] == found[1]
    with pytest.raises(ValueError, match=r"shape \[50\] or \[57\], found \[51\]"):
        LinearCrossEntropy(weight[:51], vocab_size=50)(p.w, p.x, p.y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16])
def test_labels_that_are_no_integers_are_refused(dtype):
    p = Problem(torch.float32)
    labels = p.y.clamp(min=0)
    message = f"labels: expected integers, found {dtype}"
    with pytest.raises(ValueError, match=message):
        CrossEntropy()(p.logits(), labels.flatten().to(dtype))
    with pytest.raises(ValueError, match=message):
        LinearJSD()(p.x, p.w, p.tx, p.tw, labels.to(dtype))
    expected = CrossEntropy()(p.logits(), labels.flatten())
    assert torch.equal(CrossEntropy()(p.logits(), labels.flatten().to(torch.int32)), expected)
    assert torch.equal(CrossEntropy()(p.logits(), labels.flatten().to(torch.uint8)), expected)


def test_a_cap_too_small_for_one_token_is_an_error():
    p = Problem(torch.float32, vocab=30000, length=2)
    with pytest.raises(RuntimeError, match="memory_cap_mb"):
        LinearJSD(memory_cap_mb=1)(p.x, p.w.expand(30000, 16).repeat(10, 1), p.tx, p.tw.repeat(10, 1))


def test_in_place_writes_the_gradient_over_the_logits():
    p = Problem(torch.float32)
    logits = p.logits()
    before = logits.detach().clone()
    found = []
    logits.register_hook(lambda gradient: found.append(gradient.data_ptr() == logits.data_ptr()))
    JSD(inplace=True)(logits, p.teacher_logits()).backward()
    assert found == [True] and not torch.equal(before, logits)


@pytest.mark.parametrize("shape", [(21, 57), (3, 7, 57)])
def test_in_place_never_writes_over_a_leaf(shape):
    p = Problem(torch.float32)
    leaf = p.logits().detach().reshape(shape).requires_grad_()
    before, labels = leaf.detach().clone(), p.y.reshape(shape[:-1])
    with pytest.raises(ValueError, match="inplace: input is a leaf that requires a gradient"):
        CrossEntropy(inplace=True)(leaf, labels)
    with pytest.raises(ValueError, match="inplace: student_logits is a leaf that requires a gradient"):
        JSD(inplace=True)(leaf, p.teacher_logits().reshape(shape))
    with torch.no_grad():  # there is no gradient to write
        CrossEntropy(inplace=True)(leaf, labels)
    assert torch.equal(leaf, before)


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda logits: logits[:, :-1], r"found shape \[3, 6, 57\] with strides \[399, 57, 1\], which would be copied"),
        (lambda logits: logits.half(), "expected fp32, bf16 or fp64, found fp16"),
    ],
)
def test_in_place_is_refused_where_logits_would_be_copied(change, message):
    p = Problem(torch.float32)
    logits = change(p.logits().view(3, 7, 57))
    labels = p.y[:, : logits.shape[1]]
    with pytest.raises(ValueError, match=message):
        CrossEntropy(inplace=True)(logits, labels)
    with pytest.raises(ValueError, match=message):
        JSD(inplace=True)(logits, logits.detach(), labels)
    expected = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
    torch.testing.assert_close(CrossEntropy()(logits, labels), expected)


@pytest.mark.parametrize("part", [lambda x: x[:1, :-1], lambda x: x[1:], lambda x: x[:, 2:3], lambda x: x[..., 3:40]])
def test_in_place_through_a_view(part):
    """Parts of logits that are one view [N, V] get their gradient where they are; values and gradients are the same."""
    p = Problem(torch.float32)
    labels = torch.zeros_like(part(p.x)[..., 0], dtype=torch.int64)
    pointers, gradients = [], []
    for inplace in (True, False):
        logits = part(p.logits().view(3, 7, 57))
        logits.register_hook(lambda gradient: pointers.append(gradient.data_ptr()))
        pointers.append(logits.data_ptr())
        gradients += torch.autograd.grad(CrossEntropy(inplace=inplace)(logits, labels), p.x)
    assert pointers[0] == pointers[1] and pointers[2] != pointers[3]
    assert_near(gradients[:1], gradients[1:], 1e-6)


def test_repr_names_what_is_not_the_default():
    assert repr(LinearJSD(beta=0.25, memory_cap_mb=512)) == "LinearJSD(beta=0.25, memory_cap_mb=512)"
    assert repr(CrossEntropy()) == "CrossEntropy()"


def test_repr_of_a_class_that_derives_from_a_loss():
    class Scheduled(LinearJSD):
        def __init__(self, steps: int, **options):
            super().__init__(**options)
            self.steps = steps

    class Fixed(CrossEntropy):
        """Without a constructor of its own."""

    assert repr(Scheduled(3, beta=0.25)) == "Scheduled(beta=0.25)"
    assert repr(Fixed(softcap=30.0)) == "Fixed(softcap=30.0)"
