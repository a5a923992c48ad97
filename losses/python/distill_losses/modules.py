"""The losses as modules, with the names and the order of arguments that users of Liger-Kernel know.

Every option is an argument of the constructor; `functional` documents them, the shapes and the dtypes. Options that
Liger has at another position, or not at all, have names only; docs/python_package.md lists what differs.
"""

import inspect
from typing import Any

import torch

from . import functional
from .metrics import LossWithMetrics


class _Loss(torch.nn.Module):
    """A function of `functional` with its options."""

    def __init__(self, **options: Any):
        super().__init__()
        self.options = options

    def _try_out(self, *shapes: tuple[int, ...], device: torch.device | str = "cpu") -> None:
        """Computes the loss of one token, so that an option that no call accepts is a ValueError of the constructor."""
        inputs = [torch.zeros(shape, device=device) for shape in shapes]
        label = torch.zeros(1, dtype=torch.int64, device=device)
        try:
            with torch.no_grad():
                self(*inputs, label)
        except RuntimeError as error:
            raise ValueError(f"{type(self).__name__}: {str(error).splitlines()[0]}") from None

    def extra_repr(self) -> str:
        # The defaults of the package's own class, the last one before this; a subclass may have other arguments.
        own = type(self).__mro__[type(self).__mro__.index(_Loss) - 1]
        defaults = inspect.signature(own.__init__).parameters
        changed = (f"{name}={value!r}" for name, value in self.options.items() if value != defaults[name].default)
        return ", ".join(changed)


class LinearJSD(_Loss):
    """Generalised JSD, or another divergence, from hidden states and both lm_heads; optionally with cross-entropy.

    In the place of Liger's LigerFusedLinearJSD and LigerFusedLinearJSDLoss, whose options stand in two orders: here
    they have names only. The default is the divergence alone, as in LigerFusedLinearJSD; LigerFusedLinearJSDLoss has
    weights of 0.5 and 0.5. Options: see functional.linear_jsd.
    """

    def __init__(
        self,
        *,
        weight_hard_loss: float = 0.0,
        weight_soft_loss: float = 1.0,
        beta: float = 0.5,
        ignore_index: int = -100,
        temperature: float = 1.0,
        reduction: str = "mean",
        divergence: str = "jsd",
        skew_alpha: float = 0.1,
        scale_by_temperature_squared: bool = False,
        label_smoothing: float = 0.0,
        lse_square_scale: float = 0.0,
        softcap: float | None = None,
        teacher_softcap: float | None = None,
        vocab_size: int = 0,
        chunk_size: int = 0,
        memory_cap_mb: int = 1024,
        min_chunk_size: int = 256,
        bf16_logits: bool = False,
        return_metrics: bool = False,
    ):
        super().__init__(**_own(locals()))
        head = (max(1, vocab_size), 1)
        self._try_out((1, 1), head, (1, 1), head)

    def forward(
        self,
        student_input: torch.Tensor,
        student_weight: torch.Tensor,
        teacher_input: torch.Tensor,
        teacher_weight: torch.Tensor,
        true_labels: torch.Tensor | None = None,
        student_bias: torch.Tensor | None = None,
        teacher_bias: torch.Tensor | None = None,
        *,
        token_weights: torch.Tensor | None = None,
        num_items_in_batch: functional.Number | None = None,
    ) -> torch.Tensor | LossWithMetrics:
        """Hidden states [..., H] and [..., G], heads [V, H] and [V', G], labels [...], biases [V] and [V']."""
        return functional.linear_jsd(
            student_input,
            student_weight,
            teacher_input,
            teacher_weight,
            true_labels,
            student_bias,
            teacher_bias,
            token_weights=token_weights,
            num_items_in_batch=num_items_in_batch,
            **self.options,
        )


class LinearCrossEntropy(_Loss):
    """Cross-entropy from hidden states and an lm_head; in the place of LigerFusedLinearCrossEntropyLoss.

    Options: see functional.linear_cross_entropy.
    """

    ce_weight: torch.Tensor | None

    def __init__(
        self,
        ce_weight: torch.Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        *,
        vocab_size: int = 0,
        chunk_size: int = 0,
        memory_cap_mb: int = 1024,
        min_chunk_size: int = 256,
        bf16_logits: bool = False,
        return_metrics: bool = False,
    ):
        super().__init__(**_own(locals(), without="ce_weight"))
        self.register_buffer("ce_weight", ce_weight, persistent=False)
        rows = max(1, vocab_size) if ce_weight is None else len(ce_weight)
        self._try_out((rows, 1), (1, 1), device="cpu" if ce_weight is None else ce_weight.device)

    def forward(
        self,
        lin_weight: torch.Tensor,
        input: torch.Tensor,
        target: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        token_weights: torch.Tensor | None = None,
        num_items_in_batch: functional.Number | None = None,
    ) -> torch.Tensor | LossWithMetrics:
        """Head [V, H], hidden states [..., H], labels [...], bias [V]."""
        return functional.linear_cross_entropy(
            lin_weight,
            input,
            target,
            bias,
            ce_weight=self.ce_weight,
            token_weights=token_weights,
            num_items_in_batch=num_items_in_batch,
            **self.options,
        )


class JSD(_Loss):
    """Generalised JSD, or another divergence, of given logits; in the place of LigerJSD.

    Options: see functional.jsd.
    """

    def __init__(
        self,
        beta: float = 0.5,
        ignore_index: int = -100,
        *,
        temperature: float = 1.0,
        reduction: str = "mean",
        weight_hard_loss: float = 0.0,
        weight_soft_loss: float = 1.0,
        divergence: str = "jsd",
        skew_alpha: float = 0.1,
        scale_by_temperature_squared: bool = False,
        label_smoothing: float = 0.0,
        lse_square_scale: float = 0.0,
        softcap: float | None = None,
        teacher_softcap: float | None = None,
        inplace: bool = False,
        return_metrics: bool = False,
    ):
        super().__init__(**_own(locals()))
        self._try_out((1, 1), (1, 1))

    def forward(
        self,
        student_logits: torch.Tensor,
        teacher_logits: torch.Tensor,
        shift_labels: torch.Tensor | None = None,
        *,
        token_weights: torch.Tensor | None = None,
        num_items_in_batch: functional.Number | None = None,
    ) -> torch.Tensor | LossWithMetrics:
        """Logits or log-probabilities [..., V] of both sides, labels [...]."""
        return functional.jsd(
            student_logits,
            teacher_logits,
            shift_labels,
            token_weights=token_weights,
            num_items_in_batch=num_items_in_batch,
            **self.options,
        )


class CrossEntropy(_Loss):
    """Cross-entropy of given logits; in the place of LigerCrossEntropyLoss and torch.nn.CrossEntropyLoss.

    Options: see functional.cross_entropy.
    """

    weight: torch.Tensor | None

    def __init__(
        self,
        weight: torch.Tensor | None = None,
        ignore_index: int = -100,
        lse_square_scale: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        softcap: float | None = None,
        *,
        inplace: bool = False,
        return_metrics: bool = False,
    ):
        super().__init__(**_own(locals(), without="weight"))
        self.register_buffer("weight", weight, persistent=False)
        self._try_out((1, 1 if weight is None else len(weight)), device="cpu" if weight is None else weight.device)

    def forward(
        self,
        input: torch.Tensor,
        target: torch.Tensor,
        *,
        token_weights: torch.Tensor | None = None,
        num_items_in_batch: functional.Number | None = None,
    ) -> torch.Tensor | LossWithMetrics:
        """Logits [..., V], labels [...]."""
        return functional.cross_entropy(
            input,
            target,
            self.weight,
            token_weights=token_weights,
            num_items_in_batch=num_items_in_batch,
            **self.options,
        )


def _own(arguments, without=""):
    """The constructor's arguments, from its locals()."""
    return {name: value for name, value in arguments.items() if name not in ("self", "__class__", without)}
