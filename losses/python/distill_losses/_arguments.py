"""Makes the operators' arguments of what callers have: any leading dimensions, autocast, sharded weights.

Shapes: N tokens, V vocabulary, H hidden size; `...` stands for any leading dimensions, whose product is N.
"""

import math
import numbers
import operator

import torch

from .metrics import LossWithMetrics, TokenMetrics

IGNORED = -100  # the operators' ignore index

if torch.distributed.is_available():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
else:
    DTensor = ()  # isinstance(x, ()) is false


Number = int | float | torch.Tensor
_COUNT = "a finite number of at least 0"
_WEIGHTS = "finite numbers of at least 0"


def _is_known(tensor: torch.Tensor) -> bool:
    """Returns whether Python may read the values: it must not wait for a GPU or look into a graph that is traced."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _require(holds: torch.Tensor, message: str, found: str) -> None:
    """Raises ValueError where `holds`, a bool of one element, is false; on a GPU a device-side assertion instead."""
    if not _is_known(holds):
        torch._assert_async(holds, message)
    elif not holds:
        raise ValueError(f"{message}, found {found}")


def check_device(name: str, tensor: torch.Tensor | None, device: torch.device) -> None:
    if tensor is not None and tensor.device != device:
        raise ValueError(f"{name}: expected a tensor on {device}, as the student's, found one on {tensor.device}")


def made_under_inference(tensor: torch.Tensor) -> bool:
    """Returns whether autograd refuses to save the tensor; a graph that is traced has no such tensor."""
    return not torch.compiler.is_compiling() and tensor.is_inference()


def check_trainable(name: str, tensor: torch.Tensor | None) -> None:
    """Raises ValueError for a tensor that wants a gradient and cannot have one: made under torch.inference_mode()."""
    if tensor is not None and torch.is_grad_enabled() and tensor.requires_grad and made_under_inference(tensor):
        raise ValueError(
            f"{name}: expected a tensor that autograd can differentiate, found one that was made under "
            "torch.inference_mode(); make it outside of it, or under torch.no_grad(), or pass tensor.clone()"
        )


def compute_dtype(hidden: torch.Tensor) -> torch.dtype:
    """Returns the dtype of the products over `hidden`.

    Under autocast to bf16 it is bf16, as for torch.nn.functional.linear. fp16 has no kernels here: half-precision
    tensors, and those under autocast to fp16, are computed in fp32. fp64 stays.
    """
    if hidden.dtype == torch.float64:
        return torch.float64
    if torch.is_autocast_enabled(hidden.device.type):
        cast = torch.get_autocast_dtype(hidden.device.type)
        return torch.bfloat16 if cast == torch.bfloat16 else torch.float32
    return torch.float32 if hidden.dtype == torch.float16 else hidden.dtype


class _Gather(torch.autograd.Function):
    """Gathers the whole of a parameter that FSDP2 shards, and averages its gradient over the ranks, as FSDP2 does."""

    @staticmethod
    def forward(ctx, weight, dtype):
        ctx.mesh, ctx.placements, ctx.dtype = weight.device_mesh, weight.placements, weight.dtype
        return weight.to(dtype).full_tensor()

    @staticmethod
    def backward(ctx, gradient):
        share = gradient.to(ctx.dtype) / ctx.mesh.size()
        partial = DTensor.from_local(share, ctx.mesh, [Partial()] * ctx.mesh.ndim, run_check=False)
        return partial.redistribute(placements=ctx.placements), None


def _check_placements(name, parameter):
    expected = (Replicate(),) * (parameter.device_mesh.ndim - 1) + (Shard(0),)
    if parameter.device_mesh.ndim > 2 or tuple(parameter.placements) != expected:
        raise ValueError(
            f"{name}: expected a tensor, or a DTensor as FSDP2 shards it, (Shard(0),) or (Replicate(), Shard(0)); "
            f"found placements {tuple(parameter.placements)}"
        )


def operand(name: str, parameter: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Returns a weight or bias as the operators take it: whole, and of the products' dtype.

    A DTensor is gathered in `dtype`, so that the communication is as small as it can be.
    """
    if parameter is None:
        return None
    if isinstance(parameter, DTensor):
        _check_placements(name, parameter)
        return _Gather.apply(parameter, dtype)
    return parameter.to(dtype)


def linear_inputs(hidden, weight, bias, side):
    """Returns (hidden [N, H], weight [V, H], bias [V] or None), of one dtype.

    Without autocast a weight of another dtype than the hidden states is a ValueError, as torch.nn.functional.linear
    refuses it. A DTensor is one that FSDP2 shards, in the dtype of the optimizer: it may have any.
    """
    dtype = compute_dtype(hidden)
    autocast = torch.is_autocast_enabled(hidden.device.type) and dtype != torch.float64
    parameters = {f"{side} weight": weight, f"{side} bias": bias}
    for name, tensor in {f"{side} hidden states": hidden, **parameters}.items():
        check_device(name, tensor, hidden.device)
        check_trainable(name, tensor)
    if hidden.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"{side} weight: expected shape [V, {hidden.shape[-1]}] for hidden states of shape {list(hidden.shape)}, "
            f"found {list(weight.shape)}"
        )
    for name, parameter in parameters.items():
        if parameter is None or autocast or isinstance(parameter, DTensor):
            continue
        if parameter.dtype != hidden.dtype:
            raise ValueError(
                f"{name}: expected {hidden.dtype}, as the hidden states without autocast, found {parameter.dtype}"
            )
    flat = hidden.reshape(-1, hidden.shape[-1]).to(dtype)
    return flat, *(operand(name, parameter, dtype) for name, parameter in parameters.items())


def _check_ignore_index(ignore_index):
    try:
        fits = not isinstance(ignore_index, bool) and -(2**63) <= operator.index(ignore_index) < 2**63
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(f"ignore_index: expected an integer of 64 bits, found {ignore_index!r}")


def flat_labels(
    labels: torch.Tensor | None, ignore_index: int, shape: torch.Size, device: torch.device
) -> torch.Tensor | None:
    """Returns labels [N] with the operators' ignore index; `shape` is what they must have before, of any integer dtype.

    A label of -100 where `ignore_index` is another number is an error of the caller's, and stays one.
    """
    _check_ignore_index(ignore_index)
    if labels is None:
        return None
    if labels.shape != shape:
        raise ValueError(f"labels: expected shape {list(shape)}, found {list(labels.shape)}")
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise ValueError(f"labels: expected integers, found {labels.dtype}")
    check_device("labels", labels, device)
    flat = labels.reshape(-1).to(torch.int64)
    if ignore_index == IGNORED:
        return flat
    outside = torch.where(flat == IGNORED, -1, flat)
    return torch.where(flat == ignore_index, IGNORED, outside)


def flat_token_weights(
    token_weights: torch.Tensor | None,
    labels: torch.Tensor | None,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor | None:
    """Returns weights [N] of the tokens in the dtype of the losses. They may be negative. Where `labels`, those of
    flat_labels, are not ignored, they are finite, and elsewhere 0."""
    if token_weights is None:
        return None
    if token_weights.shape != shape:
        raise ValueError(f"token_weights: expected shape {list(shape)}, found {list(token_weights.shape)}")
    check_device("token_weights", token_weights, device)
    flat = token_weights.detach().reshape(-1).to(loss_dtype(dtype))
    if labels is not None:
        flat = torch.where(labels == IGNORED, 0, flat)
    _require(flat.isfinite().all(), "token_weights: expected finite numbers", "an infinite one or NaN")
    return flat


def checked_class_weights(
    name: str, weight: torch.Tensor, classes: int, rows: int, device: torch.device
) -> torch.Tensor:
    """Returns the weights without autograd: [classes], or [rows], one for each row of a padded head; all at least 0."""
    # The comparisons are not an `in`, which torch.compile cannot tell for dynamic shapes.
    if weight.dim() != 1 or not (weight.shape[0] == classes or weight.shape[0] == rows):
        expected = f"[{classes}]" if classes == rows else f"[{classes}] or [{rows}]"
        raise ValueError(f"{name}: expected one weight for each class, shape {expected}, found {list(weight.shape)}")
    check_device(name, weight, device)
    weight = weight.detach()
    _require(((weight >= 0) & weight.isfinite()).all(), f"{name}: expected {_WEIGHTS}", "another")
    return weight


def checked_softcap(name: str, softcap: float | None) -> float:
    """Returns the operators' form of a cap, in which 0 is none; their own check has the range of the others."""
    if softcap is None:
        return 0.0
    if softcap == 0:
        raise ValueError(f"{name}: expected a number above 0, or None for no cap, found {softcap}")
    return softcap


def divisor_of(num_items_in_batch: Number | None, dtype: torch.dtype, device: torch.device) -> Number | None:
    """Returns the number that divides a sum of losses, so that it is a mean over `num_items_in_batch`; None stays None.

    No items make it infinity: the quotient and its gradient are then 0.

    Args:
        num_items_in_batch: a number, or a tensor of one element on any device; finite and at least 0.
        dtype, device: of the logits.
    """
    count = num_items_in_batch
    if count is None:
        return None
    if isinstance(count, torch.Tensor):
        if count.numel() != 1 or count.dtype == torch.bool or count.dtype.is_complex:
            raise ValueError(
                "num_items_in_batch: expected a number, or a tensor of one element, found a tensor of shape "
                f"{list(count.shape)} and {count.dtype}"
            )
        if not _is_known(count):
            count = count.detach().reshape(()).to(device, loss_dtype(dtype))
            _require((count >= 0) & count.isfinite(), f"num_items_in_batch: expected {_COUNT}", "another number")
            return torch.where(count == 0, math.inf, count)
        count = count.item()
    elif isinstance(count, bool) or not isinstance(count, (numbers.Real, torch.SymInt, torch.SymFloat)):
        raise ValueError(f"num_items_in_batch: expected a number, or a tensor of one element, found {count!r}")
    if not 0 <= count < math.inf:
        raise ValueError(f"num_items_in_batch: expected {_COUNT}, found {count}")
    return count if count > 0 else math.inf


def loss_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns fp64 for fp64, otherwise fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_reduction(reduction: str) -> None:
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"reduction: expected none, sum or mean, found {reduction!r}")


def metric_set(return_metrics: bool) -> str:
    """Returns the operators' argument `metrics`: the row kernels are faster if nobody asks for more than the loss."""
    return "all" if return_metrics else "loss"


def finish(loss, rows, shape, divisor, return_metrics):
    """Returns the loss as the caller asked for it.

    `divisor`: what a sum is still divided by, or None. Losses of reduction none get `shape`; so do the metrics.
    """
    if divisor is not None:
        loss = loss / divisor
    if loss.dim() > 0:
        loss = loss.reshape(shape)
    if not return_metrics:
        return loss
    return LossWithMetrics(loss, TokenMetrics(*(row.reshape(shape) for row in rows.unbind(0))))
