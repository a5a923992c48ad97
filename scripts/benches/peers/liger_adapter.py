"""Liger-Kernel's losses, computed by distill-losses: its modules and functions are kept, its kernels are replaced.

Every module and function of Liger's for these losses ends in the `apply` of one of five autograd functions. These are
replaced here, so that Liger's own tests pass their inputs through our modules and compare with their own references.
What chooses among Liger's kernels (`_kernel_choice`, since 0.8.5) has no counterpart.
"""

import contextlib

import torch
import torch.nn.functional as F

from distill_losses import JSD, CrossEntropy, LinearCrossEntropy, LinearJSD


def install():
    """Replaces the kernels; before Liger's tests are imported."""
    import liger_kernel.chunked_loss.jsd_loss as chunked
    import liger_kernel.ops as ops
    from test import utils

    ops.LigerCrossEntropyFunction.apply = cross_entropy
    ops.LigerFusedLinearCrossEntropyFunction.apply = linear_cross_entropy
    ops.LigerJSDFunction.apply = jsd
    ops.LigerFusedLinearJSDFunction.apply = linear_jsd
    chunked.LigerFusedLinearJSDFunction.apply = chunked_linear_jsd
    # Liger skips bf16 where its own kernels lack it; ours run everywhere.
    utils.supports_bfloat16 = lambda: True


def adapt_module(module):
    """Changes an imported test module where a loss of ours has another meaning, not another value.

    Liger's JSD takes log-probabilities and its gradient is that of a function of them. Ours takes logits, of which
    log-probabilities are one kind: the loss is the same, the gradient that of the softmax's input. So the test's
    reference is told the same.
    """
    if module.__name__.endswith("test_jsd") and hasattr(module, "LigerJSD"):
        of_log_probabilities = module.JSD.forward

        def forward(self, log_q, log_p, label=None):
            log_q, log_p = (x.log_softmax(-1, dtype=torch.float32) for x in (log_q, log_p))
            return of_log_probabilities(self, log_q, log_p, label)

        module.JSD.forward = forward


class _ExactCrossEntropy(torch.nn.Module):
    """What Liger's tests of cross-entropy compare with, in fp64; the result has the dtype that theirs has."""

    def __init__(
        self,
        weight=None,
        lse_square_scale=0.0,
        reduction="mean",
        ignore_index=-100,
        label_smoothing=0.0,
        return_z_loss=False,
        dtype=None,
    ):
        super().__init__()
        self.options = dict(reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing)
        self.weight = None if weight is None else weight.double()
        self.lse_square_scale, self.return_z_loss, self.dtype = lse_square_scale, return_z_loss, dtype

    def forward(self, logits, targets):
        exact, reduction = logits.double(), self.options["reduction"]
        valid = targets != self.options["ignore_index"]
        z_loss = torch.where(valid, self.lse_square_scale * exact.logsumexp(-1).square(), 0.0)
        if reduction != "none":
            z_loss = z_loss.sum() / (valid.sum() if reduction == "mean" else 1)
        loss = F.cross_entropy(exact, targets, self.weight, **self.options) + z_loss
        loss, z_loss = (x.to(self.dtype or logits.dtype) for x in (loss, z_loss))
        return (loss, z_loss) if self.return_z_loss else loss


@contextlib.contextmanager
def exact_reference(module):
    """Within it, the references of `module`, a test of cross-entropy, are computed in fp64."""
    names = ("CrossEntropyLoss", "CrossEntropyWithZLoss")
    theirs = {name: getattr(module, name) for name in names}
    for name in names:
        setattr(module, name, _ExactCrossEntropy)
    try:
        yield
    finally:
        for name, reference in theirs.items():
            setattr(module, name, reference)


def _outputs(found, labels, ignore_index, reduction, lse_square_scale, predicted, **returned):
    """Liger's four results: loss, z-loss, accuracy, predicted tokens."""
    loss, metrics = found
    valid = labels != ignore_index
    count = valid.sum().clamp_min(1)

    def reduce(row):
        return {"none": row, "sum": row.sum(), "mean": row.sum() / count}[reduction]

    z_loss = reduce(lse_square_scale * metrics.z_loss) if returned["z_loss"] else None
    accuracy = metrics.accuracy if reduction == "none" else metrics.accuracy.sum() / count
    tokens = torch.where(valid, predicted(), -1) if returned["tokens"] else None
    return loss, z_loss, accuracy if returned["accuracy"] else None, tokens


def cross_entropy(
    _input,
    target,
    weight,
    ignore_index,
    lse_square_scale,
    label_smoothing,
    reduction,
    softcap,
    return_z_loss=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
):
    options = (weight, ignore_index, lse_square_scale, label_smoothing, reduction, softcap)
    if not (return_z_loss or return_token_accuracy or return_predicted_tokens):
        return CrossEntropy(*options)(_input, target).to(_input.dtype), None, None, None
    loss, z_loss, accuracy, tokens = _outputs(
        CrossEntropy(*options, return_metrics=True)(_input, target),
        target,
        ignore_index,
        reduction,
        lse_square_scale,
        lambda: _input.argmax(-1),
        z_loss=return_z_loss,
        accuracy=return_token_accuracy,
        tokens=return_predicted_tokens,
    )
    # Our losses are fp32; Liger's have the dtype of the logits.
    return loss.to(_input.dtype), None if z_loss is None else z_loss.to(_input.dtype), accuracy, tokens


def linear_cross_entropy(
    _input,
    weight,
    target,
    bias=None,
    ce_weight=None,
    ignore_index=-100,
    lse_square_scale=0.0,
    label_smoothing=0.0,
    reduction="mean",
    softcap=None,
    return_z_loss=False,
    accum_dtype=None,  # ours is fp32 always
    use_token_scaling=False,
    return_token_accuracy=False,
    return_predicted_tokens=False,
    *_kernel_choice,
):
    if return_predicted_tokens:
        raise NotImplementedError("distill-losses returns no predicted tokens")
    options = (ce_weight, ignore_index, lse_square_scale, label_smoothing)
    if use_token_scaling:
        # The detached probability of the label as the token's weight.
        with torch.no_grad():
            metrics = LinearCrossEntropy(*options, "none", softcap, return_metrics=True)(
                weight, _input, target, bias
            ).metrics
        token_weights = torch.exp(-metrics.hard)
    else:
        token_weights = None
    plain = not (return_z_loss or return_token_accuracy)
    module = LinearCrossEntropy(*options, reduction, softcap, return_metrics=not plain)
    found = module(weight, _input, target, bias, token_weights=token_weights)
    if plain:
        return found, None, None, None
    return _outputs(
        found,
        target,
        ignore_index,
        reduction,
        lse_square_scale,
        None,
        z_loss=return_z_loss,
        accuracy=return_token_accuracy,
        tokens=False,
    )


def jsd(log_q, log_p, shift_labels=None, beta=0.5, ignore_index=-100, *_kernel_choice):
    return JSD(beta=beta, ignore_index=ignore_index)(log_q, log_p, shift_labels).to(log_q.dtype)


def linear_jsd(
    student_input,
    student_weight,
    teacher_input,
    teacher_weight,
    shift_labels=None,
    beta=0.5,
    ignore_index=-100,
    temperature=1.0,
    accum_dtype=None,
    *_kernel_choice,
):
    module = LinearJSD(beta=beta, ignore_index=ignore_index, temperature=temperature)
    return module(student_input, student_weight, teacher_input, teacher_weight, shift_labels)


def chunked_linear_jsd(
    student_input,
    student_weight,
    teacher_input,
    teacher_weight,
    true_labels,
    student_bias=None,
    teacher_bias=None,
    weight_hard_loss=0.5,
    weight_soft_loss=0.5,
    beta=0.5,
    ignore_index=-100,
    temperature=1.0,
    compiled=True,
    chunk_size=1024,
    return_soft_hard_loss=False,
):
    module = LinearJSD(
        weight_hard_loss=weight_hard_loss,
        weight_soft_loss=weight_soft_loss,
        beta=beta,
        ignore_index=ignore_index,
        temperature=temperature,
        chunk_size=chunk_size,
    )
    return module(student_input, student_weight, teacher_input, teacher_weight, true_labels, student_bias, teacher_bias)
