"""These functions are the losses, over the operators `torch.ops.distill`; the modules of this package call them.

Shapes: `...` stands for the leading dimensions (batch, sequence), whose product is the number of tokens N; V is the
vocabulary, H and G are the hidden sizes of student and teacher. All functions work on CPU and CUDA, under autocast,
torch.compile (fullgraph=True) and CUDA graphs; logits exist only for one chunk of tokens at a time in the linear_*
functions. Dtypes: fp32, bf16 and fp64; fp16 is computed in fp32. Logits and losses are fp32 (fp64 for fp64), whatever
the dtype of hidden states and weights. The options of a function have names only; `_options.py` describes them.
"""

import torch
from typing_extensions import Unpack

from . import _arguments
from ._options import (
    CrossEntropyOptions,
    JSDOptions,
    LinearCrossEntropyOptions,
    LinearJSDOptions,
    arguments,
    with_options,
)
from .metrics import LossWithMetrics

ops = torch.ops.distill
Number = _arguments.Number


@with_options(LinearJSDOptions, ops.linear_jsd)
def linear_jsd(
    student_input: torch.Tensor,
    student_weight: torch.Tensor,
    teacher_input: torch.Tensor,
    teacher_weight: torch.Tensor,
    true_labels: torch.Tensor | None = None,
    student_bias: torch.Tensor | None = None,
    teacher_bias: torch.Tensor | None = None,
    *,
    token_weights: torch.Tensor | None = None,
    num_items_in_batch: Number | None = None,
    **options: Unpack[LinearJSDOptions],
) -> torch.Tensor | LossWithMetrics:
    """Distils from hidden states: weight_soft_loss * divergence(teacher, student) + weight_hard_loss * cross-entropy.

    Args:
        student_input: hidden states [..., H].
        student_weight: lm_head [V, H]; the dtype of student_input, or any under autocast. A DTensor as FSDP2 shards it
            is gathered for the call, and its gradient averaged over the ranks.
        teacher_input: hidden states [..., G] with the same leading dimensions; no gradient.
        teacher_weight: lm_head [V', G]; columns that only one side has are padding, of probability zero.
        true_labels: integers [...], already shifted; tokens with ignore_index have no loss, hard or soft. May be None
            where weight_hard_loss is 0, and then every token counts.
        student_bias, teacher_bias: [V] and [V'].
        token_weights: weights [...] of the tokens' losses; no gradient.
        num_items_in_batch: what reduction mean divides by instead: the tokens of all micro-batches, a tensor or number.

    Returns:
        The loss, fp32 (fp64 for fp64 inputs): a scalar, or [...] with reduction none. It has gradients for
        student_input, student_weight and student_bias; they are computed in the forward pass. With reduction none,
        they are computed in the backward pass, at the cost of a second forward pass.
    """
    _arguments.check_reduction(options["reduction"])
    shape = student_input.shape[:-1]
    if teacher_input.shape[:-1] != shape:
        raise ValueError(f"teacher_input: expected shape {[*shape, 'G']}, found {list(teacher_input.shape)}")
    hidden, weight, bias = _arguments.linear_inputs(student_input, student_weight, student_bias, "student")
    _arguments.check_device("teacher_input", teacher_input, hidden.device)
    with torch.no_grad():
        teacher = _arguments.linear_inputs(teacher_input.detach(), teacher_weight, teacher_bias, "teacher")
    labels = _arguments.flat_labels(true_labels, options["ignore_index"], shape, hidden.device)
    divisor = _divisor(num_items_in_batch, options["reduction"], hidden)
    loss, rows = ops.linear_jsd(
        hidden,
        weight,
        teacher[0],
        teacher[1],
        labels,
        bias=bias,
        teacher_bias=teacher[2],
        token_weights=_arguments.flat_token_weights(token_weights, labels, shape, hidden.dtype, hidden.device),
        **arguments(LinearJSDOptions, options, divisor),
    )
    return _arguments.finish(loss, rows, shape, divisor, options["return_metrics"])


@with_options(LinearCrossEntropyOptions, ops.linear_cross_entropy)
def linear_cross_entropy(
    lin_weight: torch.Tensor,
    input: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    ce_weight: torch.Tensor | None = None,
    token_weights: torch.Tensor | None = None,
    num_items_in_batch: Number | None = None,
    **options: Unpack[LinearCrossEntropyOptions],
) -> torch.Tensor | LossWithMetrics:
    """Cross-entropy from hidden states: -log softmax(input @ lin_weight.T + bias)[target].

    Args:
        lin_weight: lm_head [V, H], see linear_jsd.
        input: hidden states [..., H].
        target: integers [...], already shifted.
        bias: [V].
        ce_weight: weights [V] of the classes, or [vocab_size], as in torch.nn.CrossEntropyLoss: reduction mean divides
            by the sum of the targets' weights. Not together with label_smoothing or lse_square_scale.

    The other arguments, the result and its gradients (input, lin_weight, bias) are as in linear_jsd.
    """
    _arguments.check_reduction(options["reduction"])
    shape = input.shape[:-1]
    hidden, weight, bias = _arguments.linear_inputs(input, lin_weight, bias, "lm_head's")
    labels = _arguments.flat_labels(target, options["ignore_index"], shape, hidden.device)
    weights = _arguments.flat_token_weights(token_weights, labels, shape, hidden.dtype, hidden.device)
    divisor = _divisor(num_items_in_batch, options["reduction"], hidden)
    if ce_weight is not None:
        if _needs_all_classes(options):
            raise ValueError(
                "ce_weight: expected label_smoothing 0 and lse_square_scale 0 beside class weights, found "
                f"{options['label_smoothing']} and {options['lse_square_scale']}; CrossEntropy, which is given the "
                "logits, has all of them"
            )
        rows = lin_weight.shape[0]
        classes = options["vocab_size"] or rows
        ce_weight = _arguments.checked_class_weights("ce_weight", ce_weight, classes, rows, hidden.device)
        of_class = _class_weights(ce_weight, labels, hidden.dtype)
        weights = of_class if weights is None else weights * of_class
        if options["reduction"] == "mean" and divisor is None:
            divisor = _positive(of_class.sum())
    loss, rows = ops.linear_cross_entropy(
        hidden,
        weight,
        labels,
        bias=bias,
        token_weights=weights,
        **arguments(LinearCrossEntropyOptions, options, divisor),
    )
    return _arguments.finish(loss, rows, shape, divisor, options["return_metrics"])


@with_options(JSDOptions, ops.jsd)
def jsd(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    shift_labels: torch.Tensor | None = None,
    *,
    token_weights: torch.Tensor | None = None,
    num_items_in_batch: Number | None = None,
    **options: Unpack[JSDOptions],
) -> torch.Tensor | LossWithMetrics:
    """The divergence of logits that the caller has, both of shape [..., V].

    Log-probabilities are logits too, since their softmax is the same; the gradient is then that of logits, which
    log_softmax's own backward pass leaves as it is. Logits whose leading dimensions are no view as one (logits[:, :-1])
    are copied, and so are those in fp16, to fp32.

    inplace=True writes the gradient over student_logits, which must not be needed by anything else; nothing as large as
    they are is allocated for them then. A ValueError where that cannot be: for a leaf that requires a gradient, and for
    logits that would be copied. The other arguments and the result are as in linear_jsd.
    """
    _arguments.check_reduction(options["reduction"])
    shape = student_logits.shape[:-1]
    if teacher_logits.shape[:-1] != shape:
        raise ValueError(f"teacher_logits: expected shape {[*shape, 'V']}, found {list(teacher_logits.shape)}")
    _check_inplace("student_logits", student_logits, options["inplace"])
    _arguments.check_device("teacher_logits", teacher_logits, student_logits.device)
    _arguments.check_trainable("student_logits", student_logits)
    student = _flat_logits(student_logits)
    labels = _arguments.flat_labels(shift_labels, options["ignore_index"], shape, student.device)
    divisor = _divisor(num_items_in_batch, options["reduction"], student)
    loss, rows = ops.jsd(
        student,
        _flat_logits(teacher_logits.detach()),
        labels,
        token_weights=_arguments.flat_token_weights(token_weights, labels, shape, student.dtype, student.device),
        **arguments(JSDOptions, options, divisor),
    )
    return _arguments.finish(loss, rows, shape, divisor, options["return_metrics"])


@with_options(CrossEntropyOptions, ops.cross_entropy)
def cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    token_weights: torch.Tensor | None = None,
    num_items_in_batch: Number | None = None,
    **options: Unpack[CrossEntropyOptions],
) -> torch.Tensor | LossWithMetrics:
    """Cross-entropy of logits that the caller has.

    Args:
        input: logits [..., V].
        target: integers [...].
        weight: weights [V] of the classes, as in torch.nn.CrossEntropyLoss. Together with label_smoothing or
            lse_square_scale the sum over the classes is plain PyTorch, which allocates logits [N, V] in fp32, and there
            are no metrics. They leave the z-loss as it is.

    The other arguments and the result are as in linear_cross_entropy.
    """
    _arguments.check_reduction(options["reduction"])
    shape = input.shape[:-1]
    _check_inplace("input", input, options["inplace"])
    _arguments.check_trainable("input", input)
    logits = _flat_logits(input)
    labels = _arguments.flat_labels(target, options["ignore_index"], shape, logits.device)
    weights = _arguments.flat_token_weights(token_weights, labels, shape, logits.dtype, logits.device)
    divisor = _divisor(num_items_in_batch, options["reduction"], logits)
    if weight is not None:
        classes = logits.shape[-1]
        weight = _arguments.checked_class_weights("weight", weight, classes, classes, logits.device)
        of_class = _class_weights(weight, labels, logits.dtype)
        if _needs_all_classes(options):
            if options["return_metrics"] or options["inplace"] or weights is not None:
                raise ValueError(
                    "weight: expected neither return_metrics, inplace nor token_weights together with class weights "
                    "and label_smoothing or lse_square_scale"
                )
            # Autocast would round the product with the class weights.
            with torch.autocast(logits.device.type, enabled=False):
                loss_N, z_loss_N = _with_class_weights(logits, labels, weight, of_class, options)
            if options["reduction"] == "mean":
                # As in PyTorch, the mean is over the targets' weights; the z-loss has none and is over the targets.
                count = _positive((labels != _arguments.IGNORED).sum())
                by_weight = (divisor, divisor) if divisor is not None else (_positive(of_class.sum()), count)
                return loss_N.sum() / by_weight[0] + z_loss_N.sum() / by_weight[1]
            total_N = loss_N + z_loss_N
            return total_N.sum() if options["reduction"] == "sum" else total_N.reshape(shape)
        weights = of_class if weights is None else weights * of_class
        if options["reduction"] == "mean" and divisor is None:
            divisor = _positive(of_class.sum())
    loss, rows = ops.cross_entropy(
        logits,
        labels,
        token_weights=weights,
        **arguments(CrossEntropyOptions, options, divisor),
    )
    return _arguments.finish(loss, rows, shape, divisor, options["return_metrics"])


def _divisor(num_items_in_batch, reduction, logits):
    """Returns the number that divides a sum of losses; None where the operator reduces as it is asked to."""
    divisor = _arguments.divisor_of(num_items_in_batch, logits.dtype, logits.device)
    return divisor if reduction == "mean" else None


def _check_inplace(name, logits, inplace):
    """Raises ValueError where a gradient cannot be written over the caller's own logits. _flat_logits hides them from
    the operators, which check for leaves too."""
    if not (inplace and logits.requires_grad and torch.is_grad_enabled()):
        return
    if logits.is_leaf:
        raise ValueError(
            f"inplace: {name} is a leaf that requires a gradient, and its values would be lost; expected the output of "
            "another operation"
        )
    if logits.dtype == torch.float16:
        raise ValueError(f"inplace: {name}: expected fp32, bf16 or fp64, found fp16, which is computed in fp32")
    if logits.shape[-1] > 1 and logits.stride(-1) != 1:
        raise ValueError(
            f"inplace: {name}: expected contiguous columns, found strides {list(logits.stride())}; they would be copied"
        )
    # A view [N, V] exists where each leading dimension goes on where the next one ends.
    leading = [(size, stride) for size, stride in zip(logits.shape[:-1], logits.stride()) if size != 1]
    if any(outer[1] != inner[0] * inner[1] for outer, inner in zip(leading, leading[1:])):
        raise ValueError(
            f"inplace: {name}: expected leading dimensions that are a view as one, found shape {list(logits.shape)} "
            f"with strides {list(logits.stride())}, which would be copied"
        )


def _flat_logits(logits):
    flat = logits.reshape(-1, logits.shape[-1])
    if flat.dtype == torch.float16:
        flat = flat.float()
    return flat if flat.shape[-1] <= 1 or flat.stride(-1) == 1 else flat.contiguous()


def _class_weights(weight, labels, dtype):
    """Returns the weight [N] of each token's class, 0 where it is ignored."""
    valid = labels != _arguments.IGNORED
    of_class = weight.to(_arguments.loss_dtype(dtype))[torch.where(valid, labels, 0)]
    return torch.where(valid, of_class, 0.0)


def _positive(count):
    """Returns `count`, and 1 in the place of 0: a mean over nothing is 0."""
    return torch.where(count == 0, 1, count)


def _needs_all_classes(options):
    """Returns whether a term of the cross-entropy is a sum over all classes, which the kernels do not weigh."""
    return options["label_smoothing"] != 0 or options["lse_square_scale"] != 0


def _with_class_weights(logits, labels, weight, of_class, options):
    """Returns (loss [N], z-loss [N]) of class weights together with terms that need a sum over all classes."""
    smoothing, z_loss, softcap = (options[name] for name in ("label_smoothing", "lse_square_scale", "softcap"))
    # The operator, which checks the ranges of both, gets neither below.
    ops.cross_entropy(logits[:0], labels[:0], label_smoothing=smoothing, z_loss=z_loss)
    # One conversion serves all terms: their gradients cancel, and are added before the rounding to the logits' dtype.
    dtype = _arguments.loss_dtype(logits.dtype)
    logits = logits.to(dtype)
    loss_N, _ = ops.cross_entropy(
        logits,
        labels,
        token_weights=(1 - smoothing) * of_class,
        softcap=_arguments.checked_softcap("softcap", softcap),
        reduction="none",
    )
    capped_NV = logits if not softcap else softcap * torch.tanh(logits / softcap)
    lse_N = capped_NV.logsumexp(-1)
    weight_V = weight.to(dtype)
    if _arguments.made_under_inference(weight_V):
        weight_V = weight_V.clone()  # autograd saves it
    smoothing_N = (smoothing / weight_V.numel()) * (lse_N * weight_V.sum() - capped_NV @ weight_V)
    valid_N = labels != _arguments.IGNORED
    return loss_N + torch.where(valid_N, smoothing_N, 0.0), torch.where(valid_N, z_loss * lse_N.square(), 0.0)
