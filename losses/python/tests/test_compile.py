"""torch.compile without graph breaks: fullgraph=True fails at the first one."""

import pytest
import torch

from distill_losses import JSD, CrossEntropy, LinearCrossEntropy, LinearJSD
from reference import Problem, assert_near


def calls():
    p = Problem(torch.float32)
    weight = torch.rand(57)
    return {
        "LinearJSD": (p, LinearJSD(weight_hard_loss=0.5), lambda f: f(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)),
        "LinearJSD, none": (p, LinearJSD(reduction="none"), lambda f: f(p.x, p.w, p.tx, p.tw, p.y, p.b)),
        "LinearJSD, count": (
            p,
            LinearJSD(ignore_index=3),
            lambda f: f(p.x, p.w, p.tx, p.tw, p.y.clamp(min=3), p.b, num_items_in_batch=torch.tensor(5)),
        ),
        "LinearCrossEntropy": (p, LinearCrossEntropy(softcap=5.0), lambda f: f(p.w, p.x, p.y, p.b)),
        "LinearCrossEntropy, weights": (p, LinearCrossEntropy(weight), lambda f: f(p.w, p.x, p.y, p.b)),
        "JSD": (p, JSD(beta=0.0), lambda f: f(p.logits(), p.teacher_logits(), p.y.flatten())),
        "CrossEntropy": (p, CrossEntropy(), lambda f: f(p.logits(), p.y.flatten())),
        "CrossEntropy, all": (
            p,
            CrossEntropy(weight, label_smoothing=0.1, lse_square_scale=1e-3),
            lambda f: f(p.logits(), p.y.flatten()),
        ),
    }


@pytest.mark.parametrize("name", calls())
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph_and_the_same_numbers(name, dynamic):
    problem, module, call = calls()[name]
    expected = call(module)
    found = call(torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=dynamic))
    torch.testing.assert_close(found, expected)
    incoming = torch.rand_like(expected)
    assert_near(problem.gradients(found, incoming, retain_graph=False), problem.gradients(expected, incoming), 1e-5)


@pytest.mark.parametrize("name", ["LinearJSD", "LinearCrossEntropy", "JSD", "CrossEntropy"])
def test_one_graph_with_the_metrics_and_the_same_numbers(name):
    problem, module, call = calls()[name]
    expected = call(module)
    module.options["return_metrics"] = True
    found, metrics = call(torch.compile(module, backend="aot_eager", fullgraph=True))
    torch.testing.assert_close(found, expected)
    assert metrics.student_entropy.count_nonzero() > 0
    assert_near(problem.gradients(found, retain_graph=False), problem.gradients(expected), 1e-5)


def test_with_metrics_and_autocast_in_one_graph():
    p = Problem(torch.float32)
    module = LinearJSD(return_metrics=True)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            loss, metrics = module(x * 2, w, p.tx, p.tw, p.y)
        return loss, metrics.agreement.mean()

    loss, agreement = step(p.x, p.w)
    with torch.autocast("cpu", torch.bfloat16):
        expected, metrics = module(p.x * 2, p.w, p.tx, p.tw, p.y)
    torch.testing.assert_close((loss, agreement), (expected, metrics.agreement.mean()))


def test_the_default_backend():
    """Inductor, which generates code around the operators."""
    p = Problem(torch.float32)
    module = LinearJSD(ignore_index=3)

    def step(x, w):
        return module(torch.tanh(x), w, p.tx, p.tw, p.y.clamp(min=3), p.b) * 3

    expected = step(p.x, p.w)
    found = torch.compile(step, fullgraph=True)(p.x, p.w)
    torch.testing.assert_close(found, expected)
    assert_near(p.gradients(found, retain_graph=False), p.gradients(expected), 1e-5)
