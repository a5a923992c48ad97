"""Where inputs come from and how they lie: inference mode, no gradients, strides, devices, and numbers of options."""

import pytest
import torch
import torch.nn.functional as F

from distill_losses import JSD, CrossEntropy, LinearCrossEntropy, LinearJSD, functional
from reference import IGNORE, Problem, assert_near, divergence, reduced

REDUCTIONS = ["none", "sum", "mean"]


def made_under_inference(*tensors):
    with torch.inference_mode():
        found = [tensor.detach() * 1 for tensor in tensors]
    assert all(tensor.is_inference() for tensor in found)
    return found


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_everything_but_the_student_may_be_made_under_inference_mode(reduction):
    p, weights, classes = Problem(), torch.rand(3, 7, dtype=torch.float64), torch.rand(57, dtype=torch.float64)
    count = torch.tensor(11)
    teacher_logits = p.teacher_logits().view(3, 7, -1)

    def losses(tx, tw, tb, y, weights, classes, count, teacher_logits):
        logits = p.logits().view(3, 7, -1)
        options = dict(token_weights=weights, num_items_in_batch=count)
        yield LinearJSD(weight_hard_loss=0.5, reduction=reduction)(p.x, p.w, tx, tw, y, p.b, tb, **options)
        yield LinearCrossEntropy(classes, reduction=reduction)(p.w, p.x, y, p.b, **options)
        yield JSD(weight_hard_loss=0.5, reduction=reduction)(logits, teacher_logits, y, **options)
        yield CrossEntropy(classes, reduction=reduction)(logits, y, **options)
        yield CrossEntropy(classes, label_smoothing=0.1, reduction=reduction)(logits, y, num_items_in_batch=count)
        yield CrossEntropy(inplace=True, reduction=reduction)(p.logits().view(3, 7, -1), y, **options)

    constants = (p.tx, p.tw, p.tb, p.y, weights, classes, count, teacher_logits)
    for expected, found in zip(losses(*constants), losses(*made_under_inference(*constants)), strict=True):
        assert torch.equal(found, expected)
        incoming = torch.rand_like(expected)
        assert_near(p.gradients(found, incoming), p.gradients(expected, incoming), 1e-12)


def test_a_teacher_of_a_few_tokens_may_be_made_under_inference_mode():
    p = Problem()
    x, tx, y = p.x.flatten(0, 1), p.tx.flatten(0, 1), p.y.flatten()
    ops = torch.ops.distill
    with torch.inference_mode():
        topk, samples = ops.capture_topk(tx, p.tw, 6), ops.capture_samples(tx, p.tw, torch.arange(21), 9)
    for operator, teacher in ((ops.linear_topk, topk), (ops.linear_sampled, samples)):
        for reduction in REDUCTIONS:
            found, _ = operator(x, p.w, *teacher, y, bias=p.b, reduction=reduction)
            expected, _ = operator(x, p.w, *(t.clone() for t in teacher), y, bias=p.b, reduction=reduction)
            incoming = torch.rand_like(expected)
            assert_near(p.gradients(found, incoming), p.gradients(expected, incoming), 1e-12)


def test_what_is_trained_may_not():
    p = Problem()
    with torch.inference_mode():
        x, w, b = (tensor.detach().clone().requires_grad_() for tensor in (p.x, p.w, p.b))
        logits = p.logits().requires_grad_()
    message = (
        r"expected a tensor that autograd can differentiate, found one that was made under torch.inference_mode\(\)"
    )
    with pytest.raises(ValueError, match=f"student hidden states: {message}"):
        LinearJSD()(x, p.w, p.tx, p.tw, p.y)
    with pytest.raises(ValueError, match=f"student weight: {message}"):
        LinearJSD()(p.x, w, p.tx, p.tw, p.y)
    with pytest.raises(ValueError, match=f"lm_head's bias: {message}"):
        LinearCrossEntropy()(p.w, p.x, p.y, b)
    with pytest.raises(ValueError, match=f"student_logits: {message}"):
        JSD()(logits, p.teacher_logits(), p.y.flatten())
    with pytest.raises(ValueError, match=f"input: {message}"):
        CrossEntropy()(logits, p.y.flatten())
    with torch.no_grad():  # an evaluation
        assert torch.equal(LinearJSD()(x, w, p.tx, p.tw, p.y), LinearJSD()(p.x, p.w, p.tx, p.tw, p.y))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_loss_without_gradients(mode, reduction):
    p, weight = Problem(), torch.rand(57, dtype=torch.float64)

    def losses():
        yield LinearJSD(reduction=reduction)(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)
        yield LinearCrossEntropy(weight, reduction=reduction)(p.w, p.x, p.y, p.b, num_items_in_batch=torch.tensor(4))
        yield JSD(reduction=reduction, inplace=True)(p.logits(), p.teacher_logits(), p.y.flatten())
        yield CrossEntropy(weight, label_smoothing=0.1, reduction=reduction)(p.logits(), p.y.flatten())

    expected = [loss.detach() for loss in losses()]
    with mode():
        found = list(losses())
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b) and not a.requires_grad


def test_detached_hidden_states_train_the_head_alone():
    p = Problem()
    for loss in (LinearJSD()(p.x.detach(), p.w, p.tx, p.tw, p.y), LinearCrossEntropy()(p.w, p.x.detach(), p.y)):
        loss.backward()
        assert p.x.grad is None and p.w.grad.abs().max() > 0
    with pytest.raises(RuntimeError, match="does not require grad"):
        LinearCrossEntropy()(p.w.detach(), p.x.detach(), p.y).backward()


def scattered(tensor):
    """The same values as every second column of a larger tensor."""
    large = tensor.detach().new_full(
        (*tensor.shape[:-1], 2 * tensor.shape[-1]), torch.nan if tensor.is_floating_point() else 0
    )
    large[..., ::2] = tensor.detach()
    return large[..., ::2]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_inputs_with_any_strides(reduction):
    p = Problem()
    x, w, b, tx, tw, tb = (scattered(tensor).requires_grad_() for tensor in (p.x, p.w, p.b, p.tx, p.tw, p.tb))
    y, weights = scattered(p.y), torch.rand(3, 7, dtype=torch.float64)
    expected = LinearJSD(reduction=reduction)(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb, token_weights=weights)
    found = LinearJSD(reduction=reduction)(x, w, tx, tw, y, b, tb, token_weights=scattered(weights))
    torch.testing.assert_close(found, expected)
    incoming = torch.rand_like(expected)
    assert_near(torch.autograd.grad(found, (x, w, b), incoming), p.gradients(expected, incoming), 1e-12)
    transposed = p.logits().t().contiguous().t()  # columns that are not contiguous
    for module, more in ((JSD, (scattered(p.teacher_logits()),)), (CrossEntropy, ())):
        contiguous = (p.teacher_logits(),) if more else ()
        expected = module(reduction=reduction)(p.logits(), *contiguous, p.y.flatten())
        found = module(reduction=reduction)(transposed, *more, y.reshape(-1))
        torch.testing.assert_close(found, expected)
        incoming = torch.rand_like(expected)
        assert_near(p.gradients(found, incoming), p.gradients(expected, incoming), 1e-12)
        with pytest.raises(ValueError, match="inplace: .*: expected contiguous columns, found strides"):
            module(inplace=True)(transposed, *more, y.reshape(-1))


def test_another_device_is_named():
    p = Problem(torch.float32)
    elsewhere = {name: getattr(p, name).detach().to("meta") for name in ("w", "b", "tx", "tw", "tb", "y")}
    weights = torch.ones(3, 7, device="meta")

    def jsd(token_weights=None, **other):
        of = {**{name: getattr(p, name) for name in elsewhere}, **other}
        return LinearJSD()(p.x, of["w"], of["tx"], of["tw"], of["y"], of["b"], of["tb"], token_weights=token_weights)

    names = {"w": "student weight", "b": "student bias", "tx": "teacher_input", "tb": "teacher bias", "y": "labels"}
    for name, shown in names.items():
        with pytest.raises(ValueError, match=f"{shown}: expected a tensor on cpu, as the student's, found one on meta"):
            jsd(**{name: elsewhere[name]})
    with pytest.raises(ValueError, match="token_weights: expected a tensor on cpu"):
        jsd(token_weights=weights)
    with pytest.raises(ValueError, match="teacher_logits: expected a tensor on cpu"):
        JSD()(p.logits(), p.teacher_logits().to("meta"), p.y.flatten())
    with pytest.raises(ValueError, match="labels: expected a tensor on cpu"):
        CrossEntropy()(p.logits(), elsewhere["y"].flatten())
    with pytest.raises(ValueError, match="weight: expected a tensor on cpu"):
        functional.cross_entropy(p.logits(), p.y.flatten(), torch.ones(57, device="meta"))


NAN, INF, TINY = float("nan"), float("inf"), 1e-40
REFUSED = {
    "temperature": [TINY, 1e-30, 1e30, 0.0, -1.0, NAN, INF],
    "beta": [-0.1, 1.1, NAN, INF],
    "skew_alpha": [-0.1, 1.0, NAN],
    "softcap": [0.0, TINY, 1e30, -1.0, NAN, INF],
    "teacher_softcap": [0.0, TINY, 1e30, -1.0, NAN, INF],
    "label_smoothing": [-0.1, 1.0, NAN],
    "lse_square_scale": [-1e-3, 1e30, NAN, INF],
    "weight_hard_loss": [-1.0, 1e30, NAN, INF],
    "weight_soft_loss": [-1.0, 1e30, NAN, INF],
    "chunk_size": [-1, 2**60],
    "memory_cap_mb": [0, -1, 2**60],
    "min_chunk_size": [0, -1, 2**60],
    "vocab_size": [-1],
    "ignore_index": [1.5, NAN, 2**63, True, "-100", None],
}
IN_MESSAGES = {"lse_square_scale": "z_loss", "weight_hard_loss": "hard_weight", "weight_soft_loss": "soft_weight"}


@pytest.mark.parametrize("module", [LinearJSD, JSD, LinearCrossEntropy, CrossEntropy])
@pytest.mark.parametrize("key", REFUSED)
def test_a_number_that_no_option_can_mean_is_refused(module, key):
    if key not in module().options:
        return
    for value in REFUSED[key]:
        with pytest.raises(ValueError, match=f"{IN_MESSAGES.get(key, key)}: expected .*, found"):
            module(**{key: value})


@pytest.mark.parametrize("key", ["label_smoothing", "lse_square_scale", "softcap"])
def test_it_is_refused_beside_class_weights_too(key):
    other = {"lse_square_scale": 0.0, "label_smoothing": 0.1, key: None}
    for value in REFUSED[key]:
        with pytest.raises(ValueError, match=f"{IN_MESSAGES.get(key, key)}: expected .*, found"):
            CrossEntropy(torch.ones(5), **{**other, key: value})


@pytest.mark.parametrize("temperature", [1e-10, 1e-4, 1e4, 1e10])
@pytest.mark.parametrize("squared", [False, True])
def test_the_ends_of_the_range_of_temperatures_are_finite(temperature, squared):
    for dtype in (torch.float32, torch.float64):
        p = Problem(dtype)
        options = dict(temperature=temperature, scale_by_temperature_squared=squared)
        for beta in (0.0, 0.5, 1.0):
            loss = LinearJSD(beta=beta, **options)(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)
            found = (loss, *p.gradients(loss))
            assert all(tensor.isfinite().all() for tensor in found)
            if dtype == torch.float64 and 1e-4 <= temperature <= 1e4:
                soft = divergence(p.logits(), p.teacher_logits(), beta, temperature)
                expected = reduced(soft, p.y, "mean") * (temperature**2 if squared else 1)
                if expected.isfinite():
                    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("softcap", [1e-10, 1e-4, 1e10])
def test_the_ends_of_the_range_of_softcaps_are_finite(softcap):
    p = Problem(torch.float32)
    loss = LinearJSD(softcap=softcap, teacher_softcap=softcap)(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)
    assert all(tensor.isfinite().all() for tensor in (loss, *p.gradients(loss)))
    loss = CrossEntropy(softcap=softcap)(p.logits(), p.y.flatten())
    capped = softcap * torch.tanh(p.logits().double() / softcap)
    torch.testing.assert_close(
        loss.double(), F.cross_entropy(capped, p.y.flatten(), ignore_index=IGNORE), rtol=1e-5, atol=0
    )
    assert all(gradient.isfinite().all() for gradient in p.gradients(loss))


@pytest.mark.parametrize("beta", [1e-40, 1e-17, 1e-8, 1 - 1e-8, 1 - 1e-16])
def test_betas_beside_the_ends_are_finite(beta):
    for dtype in (torch.float32, torch.float64):
        p = Problem(dtype)
        loss = LinearJSD(beta=beta)(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)
        assert 0 <= loss < 1e-6 and all(gradient.isfinite().all() for gradient in p.gradients(loss))
        loss = LinearJSD(divergence="skew_forward_kl", skew_alpha=beta)(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)
        assert loss >= 0 and all(tensor.isfinite().all() for tensor in (loss, *p.gradients(loss)))
