"""On a GPU: the values and gradients of the CPU, CUDA graphs, autocast, and no wait of the host for the device."""

import pytest
import torch

from distill_losses import CUDA_VERSION, JSD, CrossEntropy, LinearCrossEntropy, LinearJSD
from reference import Problem, assert_near, divergence, reduced

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu(dtype, **shape):
    """A problem and its copy on the GPU."""
    p, gpu = Problem(dtype, **shape), Problem(dtype, **shape)
    for name in ("x", "w", "b", "tx", "tw", "tb", "y"):
        tensor = getattr(p, name)
        setattr(gpu, name, tensor.detach().cuda().requires_grad_(tensor.requires_grad))
    return p, gpu


def calls(p):
    return (
        LinearJSD(weight_hard_loss=0.5)(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb),
        LinearJSD(reduction="none")(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb),
        LinearCrossEntropy(softcap=5.0)(p.w, p.x, p.y, p.b),
        JSD(beta=0.2)(p.logits(), p.teacher_logits()),
        CrossEntropy(label_smoothing=0.1)(p.logits(), p.y.flatten()),
    )


def test_this_build_has_kernels_for_this_gpu():
    assert CUDA_VERSION is not None


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_the_same_as_on_the_cpu(dtype, tolerance):
    p, gpu = on_gpu(dtype, vocab=1531, hidden=64)
    for expected, found in zip(calls(p), calls(gpu)):
        assert_near([found.cpu()], [expected], tolerance)
        incoming = torch.rand_like(expected)
        gradients = gpu.gradients(found, incoming.cuda())
        assert_near([g.cpu() for g in gradients], p.gradients(expected, incoming), tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    _, p = on_gpu(torch.float32, vocab=1531)
    with torch.autocast("cuda", dtype):
        loss = LinearJSD()(p.x, p.w, p.tx, p.tw, p.y, p.b, p.tb)
        loss.backward()
    assert loss.dtype == p.w.grad.dtype == torch.float32
    expected = reduced(divergence(p.logits().double(), p.teacher_logits().double(), 0.5), p.y, "mean")
    torch.testing.assert_close(loss.double(), expected, rtol=2e-2, atol=0)


def test_the_host_never_waits():
    _, p = on_gpu(torch.float32)
    calls(p)  # the first call of a process sets libraries up
    items = torch.tensor(7, device="cuda")  # a copy from the host, which waits
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sum(loss.sum() for loss in calls(p)).backward()
        LinearJSD()(p.x, p.w, p.tx, p.tw, p.y, num_items_in_batch=items).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_cuda_graph():
    _, p = on_gpu(torch.float32)
    module = LinearJSD()

    def step():
        p.x.grad = None
        loss = module(p.x, p.w.detach(), p.tx, p.tw, p.y)
        loss.backward()
        return loss

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            expected = step().item()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    graph.replay()
    assert loss.item() == expected
    with torch.no_grad():
        p.x.mul_(0.5)
    graph.replay()
    torch.testing.assert_close(loss, module(p.x, p.w, p.tx, p.tw, p.y))


def test_torch_compile():
    _, p = on_gpu(torch.float32)
    module = LinearJSD()

    def step(x, w):
        return module(torch.tanh(x), w, p.tx, p.tw, p.y)

    expected = step(p.x, p.w)
    torch.testing.assert_close(torch.compile(step, fullgraph=True)(p.x, p.w), expected)
