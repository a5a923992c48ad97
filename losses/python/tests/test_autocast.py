"""Autocast: products as torch.nn.functional.linear has them, logits and losses in fp32, gradients as the leaves."""

import pytest
import torch
import torch.nn.functional as F

from distill_losses import JSD, CrossEntropy, LinearCrossEntropy, LinearJSD
from reference import Problem, assert_near, divergence, reduced


def rounded(p, dtype):
    """The problem with its inputs rounded to `dtype`, in fp64."""
    exact = Problem()
    for name in ("x", "w", "b", "tx", "tw", "tb"):
        getattr(exact, name).data = getattr(p, name).detach().to(dtype).double()
    return exact


@pytest.mark.parametrize("autocast,products", [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)])
def test_hidden_states_and_weights_are_rounded_and_nothing_else(autocast, products):
    p = Problem(torch.float32)
    exact = rounded(p, products)
    soft = reduced(divergence(exact.logits(), exact.teacher_logits(), 0.5), p.y, "mean")
    hard = F.cross_entropy(exact.logits(), p.y.flatten())
    with torch.autocast("cpu", autocast):
        found_soft = LinearJSD()(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)
        found_hard = LinearCrossEntropy()(p.w, p.x, p.y, p.b)
    for found, expected in ((found_soft, soft), (found_hard, hard)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)
        gradients = torch.autograd.grad(found, (p.x, p.w, p.b))
        assert all(gradient.dtype == torch.float32 for gradient in gradients)
        assert_near(gradients, exact.gradients(expected), 1e-2 if products == torch.bfloat16 else 1e-5)


def test_a_bf16_body_and_an_fp32_head():
    """What autocast leaves behind: hidden states in bf16, the lm_head's parameters in fp32."""
    p = Problem(torch.float32)
    with pytest.raises(ValueError, match="lm_head's weight: expected torch.bfloat16, as .*, found torch.float32"):
        LinearCrossEntropy()(p.w, p.x.bfloat16(), p.y)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = LinearCrossEntropy()(p.w, p.x.bfloat16(), p.y)
        plain = LinearCrossEntropy()(p.w, p.x, p.y)
    assert torch.equal(mixed, plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("other", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_without_autocast_another_dtype_is_an_error_on_every_side(dtype, other):
    """fp16 too, which is converted to fp32, as are weights in fp16."""
    p = Problem(torch.float32)
    x, w, b, tx, tw, tb = (tensor.detach().to(dtype) for tensor in (p.x, p.w, p.b, p.tx, p.tw, p.tb))
    arguments = dict(student_input=x, student_weight=w, student_bias=b)
    arguments.update(teacher_input=tx, teacher_weight=tw, teacher_bias=tb)
    for name in ("student_weight", "student_bias", "teacher_weight", "teacher_bias"):
        call = {**arguments, name: arguments[name].to(other)}
        if dtype == other:
            LinearJSD()(**call)
            continue
        message = f"{name.replace('_', ' ')}: expected {dtype}, as the hidden states without autocast, found {other}"
        with pytest.raises(ValueError, match=message):
            LinearJSD()(**call)


def test_fp64_is_left_alone():
    p = Problem()
    with torch.autocast("cpu", torch.bfloat16):
        loss = LinearJSD()(p.x, p.w, p.tx, p.tw)
    torch.testing.assert_close(loss, LinearJSD()(p.x, p.w, p.tx, p.tw))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_given_logits_are_read_as_they_are(dtype):
    p = Problem(dtype)
    logits, teacher = p.logits().detach().requires_grad_(), p.teacher_logits()
    with torch.autocast("cpu", torch.bfloat16):
        losses = JSD()(logits, teacher), CrossEntropy()(logits, p.y.flatten())
    for found, plain in zip(losses, (JSD()(logits, teacher), CrossEntropy()(logits, p.y.flatten()))):
        assert found.dtype == torch.float32 and torch.equal(found, plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("options", [dict(label_smoothing=0.1), dict(lse_square_scale=1e-2, softcap=5.0)])
def test_class_weights_with_a_sum_over_all_classes(options, dtype):
    """The sum is PyTorch's, and a product that autocast would round."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(16, 5000)).to(dtype).requires_grad_()
    labels, module = torch.randint(0, 5000, (16,)), CrossEntropy(torch.rand(5000), **options)
    expected = module(logits, labels)
    with torch.autocast("cpu", torch.bfloat16):
        found = module(logits, labels)
    assert found.dtype == torch.float32 and torch.equal(found, expected)
    gradients = [torch.autograd.grad(loss, logits)[0] for loss in (found, expected)]
    assert torch.equal(*gradients)
