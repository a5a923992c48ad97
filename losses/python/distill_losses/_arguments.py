"""From what callers have (any leading dimensions, autocast, sharded weights) to what the operators take.

Shapes: N tokens, V vocabulary, H hidden size; `...` stands for any leading dimensions, whose product is N.
"""

import torch

from .metrics import LossWithMetrics, TokenMetrics

IGNORED = -100  # the operators' ignore index

if torch.distributed.is_available():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
else:
    DTensor = ()  # isinstance(x, ()) is false


def compute_dtype(hidden: torch.Tensor) -> torch.dtype:
    """The dtype of the products over `hidden`.

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
    """The whole weight of a parameter that FSDP2 shards; its gradient is averaged over the ranks, as FSDP2 does."""

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
    """A weight or bias as the operators take it: whole, and of the products' dtype.

    A DTensor is gathered in `dtype`, so that the communication is as small as it can be.
    """
    if parameter is None:
        return None
    if isinstance(parameter, DTensor):
        _check_placements(name, parameter)
        return _Gather.apply(parameter, dtype)
    return parameter.to(dtype)


def linear_inputs(hidden, weight, bias, side):
    """(hidden [N, H], weight [V, H], bias [V] or None), of one dtype.

    Without autocast a weight of another dtype than the hidden states is a ValueError, as torch.nn.functional.linear
    refuses it. A DTensor is one that FSDP2 shards, in the dtype of the optimizer: it may have any.
    """
    dtype = compute_dtype(hidden)
    autocast = torch.is_autocast_enabled(hidden.device.type) and dtype != torch.float64
    if hidden.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"{side} weight: expected shape [V, {hidden.shape[-1]}] for hidden states of shape {list(hidden.shape)}, "
            f"found {list(weight.shape)}"
        )
    parameters = {f"{side} weight": weight, f"{side} bias": bias}
    for name, parameter in parameters.items():
        if parameter is None or autocast or isinstance(parameter, DTensor):
            continue
        if parameter.dtype != hidden.dtype:
            raise ValueError(
                f"{name}: expected {hidden.dtype}, as the hidden states without autocast, found {parameter.dtype}"
            )
    flat = hidden.reshape(-1, hidden.shape[-1]).to(dtype)
    return flat, *(operand(name, parameter, dtype) for name, parameter in parameters.items())


def flat_labels(labels: torch.Tensor | None, ignore_index: int, shape: torch.Size) -> torch.Tensor | None:
    """Labels [N] with the operators' ignore index; `shape` is what they must have before, of any integer dtype.

    A label of -100 where `ignore_index` is another number is an error of the caller's, and stays one.
    """
    if labels is None:
        return None
    if labels.shape != shape:
        raise ValueError(f"labels: expected shape {list(shape)}, found {list(labels.shape)}")
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise ValueError(f"labels: expected integers, found {labels.dtype}")
    flat = labels.reshape(-1).to(torch.int64)
    if ignore_index == IGNORED:
        return flat
    outside = torch.where(flat == IGNORED, -1, flat)
    return torch.where(flat == ignore_index, IGNORED, outside)


def flat_token_weights(token_weights: torch.Tensor | None, shape: torch.Size, dtype: torch.dtype):
    """Weights [N] of the tokens in the dtype of the losses."""
    if token_weights is None:
        return None
    if token_weights.shape != shape:
        raise ValueError(f"token_weights: expected shape {list(shape)}, found {list(token_weights.shape)}")
    return token_weights.detach().reshape(-1).to(loss_dtype(dtype))


def loss_dtype(dtype: torch.dtype) -> torch.dtype:
    """fp64 for fp64, else fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_reduction(reduction: str) -> None:
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"reduction: expected none, sum or mean, found {reduction!r}")


def metric_set(return_metrics: bool) -> str:
    """The operators' argument `metrics`: the row kernels are faster where nobody asks for more than the loss."""
    return "all" if return_metrics else "loss"


def finish(loss, rows, shape, divisor, return_metrics):
    """The loss as the caller asked for it.

    `divisor`: what a sum is still divided by, or None. Losses of reduction none get `shape`; so do the metrics.
    """
    if divisor is not None:
        loss = loss / divisor
    if loss.dim() > 0:
        loss = loss.reshape(shape)
    if not return_metrics:
        return loss
    return LossWithMetrics(loss, TokenMetrics(*(row.reshape(shape) for row in rows.unbind(0))))
