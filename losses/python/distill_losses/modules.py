"""These modules are the losses, with the names and the order of arguments that users of Liger-Kernel know.

A module is a function of `functional` whose options are arguments of the constructor. Options that Liger has at another
position, or not at all, have names only; docs/python_package.md lists what differs.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import Unpack

from . import functional
from ._options import (
    CrossEntropyOptions,
    JSDOptions,
    LinearCrossEntropyOptions,
    LinearJSDOptions,
    described,
    help_text,
)

_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
# The cross-entropies have these options at Liger's positions, behind the weights of the classes.
_LIGERS_ORDER = ("ignore_index", "lse_square_scale", "label_smoothing", "reduction", "softcap")


class _Loss(torch.nn.Module):
    """A loss is a function of `functional` with its options."""

    options: dict[str, Any]
    _function: Callable[..., Any]
    _constructor: inspect.Signature
    _class_weight: str | None = None  # the parameter of the function that is a buffer here

    def __init_subclass__(
        cls,
        function: Callable[..., Any] | None = None,
        positional: tuple[str, ...] = (),
        class_weight: str | None = None,
    ):
        """Makes a module of `function`. Weights of classes come first, then the options that have positions."""
        super().__init_subclass__()
        if function is None:  # a user's own class
            return
        cls._function, cls._class_weight = staticmethod(function), class_weight
        signature = inspect.signature(function)
        first = (class_weight, *positional) if class_weight else positional
        options = [signature.parameters[name].replace(kind=_SELF.kind) for name in first]
        named = [name for name in described(function.options) if name not in first]
        options += [signature.parameters[name] for name in named]
        inputs = [p for name, p in signature.parameters.items() if name not in (*first, *named)]
        cls._constructor = inspect.Signature(options)
        cls.__init__.__signature__ = inspect.Signature([_SELF, *options])
        cls.__doc__ += f"\n\n{help_text(function.options)}\n"

        def forward(self, *inputs, **named):
            return self._loss(*inputs, **named)

        forward.__signature__ = signature.replace(parameters=[_SELF, *inputs])
        cls.forward = forward

    def __init__(self, *positional: Any, **named: Any):
        super().__init__()
        try:
            bound = self._constructor.bind(*positional, **named)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        bound.apply_defaults()
        self.options = dict(bound.arguments)
        weight = None
        if self._class_weight:
            weight = self.options.pop(self._class_weight)
            self.register_buffer(self._class_weight, weight, persistent=False)
        self._try_out(*self._trial(weight), device="cpu" if weight is None else weight.device)

    def _trial(self, weight: torch.Tensor | None) -> tuple[tuple[int, int], ...]:
        """Returns the shapes of inputs of one token."""
        raise NotImplementedError

    def _try_out(self, *shapes: tuple[int, int], device: torch.device | str) -> None:
        """Computes the loss of one token, so that an option that no call accepts is a ValueError of the constructor."""
        inputs = [torch.zeros(shape, device=device) for shape in shapes]
        label = torch.zeros(1, dtype=torch.int64, device=device)
        try:
            with torch.no_grad():
                self._loss(*inputs, label)
        except RuntimeError as error:
            raise ValueError(f"{type(self).__name__}: {str(error).splitlines()[0]}") from None

    def _loss(self, *inputs, **named):
        weight = {self._class_weight: getattr(self, self._class_weight)} if self._class_weight else {}
        return self._function(*inputs, **weight, **named, **self.options)

    def extra_repr(self) -> str:
        defaults = self._constructor.parameters
        changed = (f"{name}={value!r}" for name, value in self.options.items() if value != defaults[name].default)
        return ", ".join(changed)


class LinearJSD(_Loss, function=functional.linear_jsd):
    """Generalised JSD, or another divergence, from hidden states and both lm_heads; optionally with cross-entropy.

    In the place of Liger's LigerFusedLinearJSD and LigerFusedLinearJSDLoss, whose options stand in two orders: here
    they have names only. The default is the divergence alone, as in LigerFusedLinearJSD; LigerFusedLinearJSDLoss has
    weights of 0.5 and 0.5. A call takes what functional.linear_jsd takes besides the options.
    """

    def __init__(self, **options: Unpack[LinearJSDOptions]):
        super().__init__(**options)

    def _trial(self, weight):
        head = (max(1, self.options["vocab_size"]), 1)
        return (1, 1), head, (1, 1), head


class LinearCrossEntropy(
    _Loss, function=functional.linear_cross_entropy, positional=_LIGERS_ORDER, class_weight="ce_weight"
):
    """Cross-entropy from hidden states and an lm_head; in the place of LigerFusedLinearCrossEntropyLoss.

    A call takes what functional.linear_cross_entropy takes besides the options and the weights of the classes.
    """

    ce_weight: torch.Tensor | None

    def __init__(
        self, ce_weight: torch.Tensor | None = None, *positional: Any, **options: Unpack[LinearCrossEntropyOptions]
    ):
        super().__init__(ce_weight, *positional, **options)

    def _trial(self, weight):
        return (max(1, self.options["vocab_size"]) if weight is None else len(weight), 1), (1, 1)


class JSD(_Loss, function=functional.jsd, positional=("beta", "ignore_index")):
    """Generalised JSD, or another divergence, of given logits; in the place of LigerJSD.

    A call takes what functional.jsd takes besides the options.
    """

    def __init__(self, *positional: Any, **options: Unpack[JSDOptions]):
        super().__init__(*positional, **options)

    def _trial(self, weight):
        return (1, 1), (1, 1)


class CrossEntropy(_Loss, function=functional.cross_entropy, positional=_LIGERS_ORDER, class_weight="weight"):
    """Cross-entropy of given logits; in the place of LigerCrossEntropyLoss and torch.nn.CrossEntropyLoss.

    A call takes what functional.cross_entropy takes besides the options and the weights of the classes.
    """

    weight: torch.Tensor | None

    def __init__(self, weight: torch.Tensor | None = None, *positional: Any, **options: Unpack[CrossEntropyOptions]):
        super().__init__(weight, *positional, **options)

    def _trial(self, weight):
        return ((1, 1 if weight is None else len(weight)),)
