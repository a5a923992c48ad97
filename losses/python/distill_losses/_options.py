"""Each option of the losses is described once, here.

The functions and modules, their signatures and help, and the table of docs/python_package.md follow the classes below.
A type checker knows the options of a call by these classes (Unpack); inspect.signature shows them with their defaults.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypedDict, TypeVar, get_type_hints

from . import _arguments

F = TypeVar("F", bound=Callable[..., Any])
OF_OPERATOR = object()  # a default that the operator's schema has


class Option(NamedTuple):
    """An option has a meaning, and becomes an argument of the operators."""

    meaning: str
    argument: str | None = ""
    """Its name in the operators' schemas: empty where it is the same, None where the operators know nothing of it."""
    default: Any = OF_OPERATOR


_SOFTCAP = "logits = cap * tanh(logits / cap); None: off"


class _Loss(TypedDict, total=False):
    ignore_index: Annotated[int, Option("tokens with this label have no loss, hard or soft", None, -100)]
    reduction: Annotated[str, Option("none, sum, or mean over the tokens that are not ignored")]
    label_smoothing: Annotated[float, Option("the share of a label's probability that all classes get evenly")]
    lse_square_scale: Annotated[
        float, Option("weight of the square of the log-sum-exp in the cross-entropy (z-loss)", "z_loss")
    ]
    return_metrics: Annotated[bool, Option("also return TokenMetrics", "metrics", False)]


class _Distillation(_Loss):
    divergence: Annotated[
        str,
        Option(
            "jsd, forward_kl, reverse_kl, skew_forward_kl, skew_reverse_kl, total_variation, or none (the labels alone)"
        ),
    ]
    beta: Annotated[
        float,
        Option(
            "of jsd: beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q, where p is the teacher "
            "and q the student; 0 is forward KL(p || q) and 1 is reverse KL(q || p)"
        ),
    ]
    skew_alpha: Annotated[float, Option("a of the skew KLs: KL(p || a p + (1 - a) q) and KL(q || a q + (1 - a) p)")]
    temperature: Annotated[float, Option("divides the logits of both sides in the divergence, not the cross-entropy")]
    scale_by_temperature_squared: Annotated[bool, Option("multiplies the divergence by temperature^2")]
    weight_soft_loss: Annotated[float, Option("weight of the divergence", "soft_weight")]
    weight_hard_loss: Annotated[float, Option("weight of the cross-entropy on the labels", "hard_weight")]
    softcap: Annotated[float | None, Option(f"of the student: {_SOFTCAP}", "student_softcap", None)]
    teacher_softcap: Annotated[float | None, Option("the same of the teacher", default=None)]


class _CrossEntropy(_Loss):
    softcap: Annotated[float | None, Option(_SOFTCAP, default=None)]


class _FromHiddenStates(TypedDict, total=False):
    vocab_size: Annotated[
        int, Option("columns of the logits that exist; 0: the rows of the head, or of the smaller one")
    ]
    chunk_size: Annotated[
        int,
        Option("tokens whose logits exist at once; 0: as many as are fast, at least min_chunk_size"),
    ]
    memory_cap_mb: Annotated[int, Option("MiB of scratch memory; a hard limit, which wins over both chunk sizes")]
    min_chunk_size: Annotated[int, Option("tokens; an automatic chunk is not smaller")]
    bf16_logits: Annotated[bool, Option("rounds the logits to bf16: half the memory, less exact gradients")]


class _OfLogits(TypedDict, total=False):
    inplace: Annotated[bool, Option("writes the gradient over the (student's) logits, which nothing else may need")]


class LinearJSDOptions(_Distillation, _FromHiddenStates): ...


class LinearCrossEntropyOptions(_CrossEntropy, _FromHiddenStates): ...


class JSDOptions(_Distillation, _OfLogits): ...


class CrossEntropyOptions(_CrossEntropy, _OfLogits): ...


def described(options: type) -> dict[str, Option]:
    """Returns {name: option} of one of the classes above."""
    hints = get_type_hints(options, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


# The names of the operators' arguments: {class: {option: argument}}.
_ARGUMENTS = {
    options: {
        name: option.argument or name for name, option in described(options).items() if option.argument is not None
    }
    for options in (LinearJSDOptions, LinearCrossEntropyOptions, JSDOptions, CrossEntropyOptions)
}


def arguments(options: type, values: dict[str, Any], divisor: _arguments.Number | None) -> dict[str, Any]:
    """Returns the options as the operator takes them. The caller divides a sum of losses by `divisor`, if any."""
    return {argument: _argument(name, values[name], divisor) for name, argument in _ARGUMENTS[options].items()}


def _argument(name, value, divisor):
    if name in ("softcap", "teacher_softcap"):
        return _arguments.checked_softcap(name, value)
    if name == "reduction":
        return value if divisor is None else "sum"
    return _arguments.metric_set(value) if name == "return_metrics" else value


def parameters(options: type, operator: Any) -> list[inspect.Parameter]:
    """Returns the options as parameters that have names only, with their types and defaults."""
    types = get_type_hints(options)
    of_operator = {argument.name: argument.default_value for argument in operator.default._schema.arguments}
    found = []
    for name, option in described(options).items():
        default = of_operator[_ARGUMENTS[options][name]] if option.default is OF_OPERATOR else option.default
        found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name]))
    return found


def help_text(options: type) -> str:
    """Returns the part of a docstring that explains the options."""
    entries = (f"{name}: {option.meaning}" for name, option in described(options).items())
    indents = dict(initial_indent=" " * 4, subsequent_indent=" " * 8)
    return "\n".join(("Options:", *(textwrap.fill(entry, 100, **indents) for entry in entries)))


def with_options(options: type, operator: Any) -> Callable[[F], F]:
    """Decorates a function that ends with **options: it gets all of them, and its signature and help show them."""
    shown = parameters(options, operator)
    defaults = {parameter.name: parameter.default for parameter in shown}

    def decorate(function):
        *own, _ = inspect.signature(function).parameters.values()
        known = {parameter.name for parameter in (*own, *shown)}

        @functools.wraps(function)
        def complete(*inputs, **named):
            for name in named:
                if name not in known:
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
            return function(*inputs, **{**defaults, **named})

        complete.__signature__ = inspect.signature(function).replace(parameters=[*own, *shown])
        complete.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{help_text(options)}\n"
        complete.options = options
        return complete

    return decorate
