"""cut-cross-entropy's function, computed by distill-losses, so that its own tests pass their inputs through ours."""

import torch
from torch.overrides import TorchFunctionMode

from distill_losses import LinearCrossEntropy


class _CudaMeansCpu(TorchFunctionMode):
    """Makes the tensors that a test wants on "cuda" on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def install(on_cpu):
    """Replaces the function; before the tests are imported. `on_cpu`: the tests, which want a GPU, run without one."""
    import cut_cross_entropy
    import cut_cross_entropy.cce_lse_forward as lse_forward

    cut_cross_entropy.linear_cross_entropy = linear_cross_entropy
    lse_forward.cce_lse_forward_kernel = log_sum_exp
    if on_cpu:
        # The references are compiled; the compiler would ask the GPU that is not there for its properties.
        torch._dynamo.config.disable = True
        torch.cuda.is_available = lambda: True
        torch.cuda.manual_seed = torch.manual_seed
        _CudaMeansCpu().__enter__()


def log_sum_exp(e, c, bias=None, softcap=None):
    """The log-sum-exp of the logits, [N]: one of our metrics."""
    labels = torch.zeros(e.shape[:-1], dtype=torch.int64, device=e.device)
    return LinearCrossEntropy(softcap=softcap, return_metrics=True)(c, e, labels, bias).metrics.student_lse


def _differentiable_lse(e, c, targets, bias, softcap, ignore_index):
    """Cross-entropy plus the label's logit; our metric has no gradient."""
    labels = torch.where(targets == ignore_index, 0, targets)
    logit = (e.float() * c[labels].float()).sum(-1)
    if bias is not None:
        logit = logit + bias[labels].float()
    if softcap is not None:
        logit = softcap * torch.tanh(logit / softcap)
    return LinearCrossEntropy(reduction="none", softcap=softcap)(c, e, labels, bias) + logit


def linear_cross_entropy(
    e,
    c,
    targets,
    bias=None,
    ignore_index=-100,
    softcap=None,
    reduction="mean",
    shift=0,
    return_lse=False,
    impl="cce",
    **filters,
):
    """With the arguments of cut-cross-entropy; what it filters and how it accumulates has no counterpart."""
    if shift:
        e, targets = e[..., : -int(shift), :], targets[..., int(shift) :]
    module = LinearCrossEntropy(ignore_index=ignore_index, reduction=reduction, softcap=softcap)
    loss = module(c, e, targets, bias)
    return (loss, _differentiable_lse(e, c, targets, bias, softcap, ignore_index)) if return_lse else loss
