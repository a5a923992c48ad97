"""Reads what the losses must know of a causal language model of transformers, and checks that it is so.

Shapes: B sequences of S tokens, H hidden size, V vocabulary.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from ._arguments import DTensor

# These keys of a config.json scale logits in a way that the losses here do not know; the value leaves them as they are.
_UNKNOWN_SCALES = {"logit_scale": 1.0, "logits_scaling": 1.0, "lm_head_multiplier": 1.0}
# Configs of Gemma, RecurrentGemma and xLSTM have these keys for a cap on the logits.
_SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
# Logits of the check have this root mean square, beyond every cap: a cap that is not known cannot hide in small logits.
_LARGE = 50.0


def softcap_of(model: torch.nn.Module) -> float | None:
    """Returns the cap on the model's logits, None without one; ValueError for logits that are scaled otherwise."""
    config = model.config.get_text_config()
    for key, neutral in _UNKNOWN_SCALES.items():
        found = getattr(config, key, None)
        if found not in (None, neutral):
            raise ValueError(f"{type(model).__name__}: {key}: expected {neutral}, found {found}; its logits are scaled")
    return next((cap for key in _SOFTCAPS if (cap := getattr(config, key, None))), None)


def hidden_and_head(model: torch.nn.Module, **inputs: Any) -> tuple[Any, torch.Tensor, torch.Tensor | None]:
    """Returns (the body's output, the lm_head's weight [V, H], its bias [V] or None); computes no logits."""
    head = model.get_output_embeddings()
    if head is None or hasattr(head, "base_layer"):
        found = "none" if head is None else f"a {type(head).__name__}, an adapter around it"
        raise ValueError(f"{type(model).__name__}: expected one linear layer as its lm_head, found {found}")
    return model.get_decoder()(**inputs), head.weight, head.bias


def check_no_auxiliary_loss(model: torch.nn.Module, output_router_logits: bool | None = None) -> None:
    """Raises ValueError where the model would add the loss of its routers, which the losses here do not."""
    if output_router_logits is None:
        output_router_logits = getattr(model.config.get_text_config(), "output_router_logits", None)
    if output_router_logits:
        raise ValueError(
            f"{type(model).__name__}: output_router_logits: expected False, found True; the auxiliary loss of the "
            "routers is not a part of the losses here"
        )


def is_checkable(model: torch.nn.Module) -> bool:
    """Returns whether the model's parameters have values that one process can compute with at any time."""
    return not any(p.is_meta or isinstance(p, DTensor) for p in model.parameters())


def check_logits(model: torch.nn.Module, call: Callable[..., Any], with_loss: bool) -> None:
    """Compares the model's logits for a few tokens with the lm_head's product and the cap: what the losses compute.

    The lm_head's output is enlarged for this, so that whatever else is done to logits shows. The model is in eval mode
    meanwhile.

    Args:
        call: the model's forward, with keyword arguments.
        with_loss: also whether its loss is the cross-entropy of each next token.

    Raises:
        ValueError: they differ.
    """
    found, expected, targets = _few_logits(model, call, with_loss)
    name = type(model).__name__
    # The tolerance is for roundings of the logits' dtype; a wrong model is farther away by orders of magnitude.
    tolerance = 3e-2 if found.logits.dtype in (torch.bfloat16, torch.float16) else 2e-3
    logits = found.logits.float()
    same_shape = logits.shape == expected.shape
    error = (logits - expected).norm() / expected.norm().clamp_min(1e-30) if same_shape else torch.tensor(torch.inf)
    if not error <= tolerance:
        raise ValueError(
            f"{name}: expected logits that are the lm_head's product with the decoder's output, capped as its config "
            f"says, found others (relative difference {error.item():.1e}, shapes {list(expected.shape)} and "
            f"{list(logits.shape)}): a loss from hidden states would be that of another model"
        )
    if not with_loss or found.get("loss") is None:
        return
    plain = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())
    if not (found.loss.float() - plain).abs() <= tolerance * plain.abs().clamp_min(1):
        raise ValueError(
            f"{name}: expected a loss that is the cross-entropy of each next token, found {found.loss.item():.4g} and "
            f"not {plain.item():.4g} for a few tokens: its own loss has another term or other targets"
        )


def _few_logits(model, call, with_loss):
    """Returns (the model's output, fp32 logits [1, S, V] as they are expected, tokens [1, S])"""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings().weight
    # Two tokens are enough; xLSTM trains with multiples of its chunk size only.
    length = max(2, getattr(model.config.get_text_config(), "chunk_size", None) or 0)
    rows = embedding.shape[0]
    tokens = (rows // 3 + torch.arange(length, device=embedding.device) * max(1, rows // 6))[None] % rows
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    scales = []
    with _in_eval_mode(model), torch.no_grad():
        body, weight, bias = hidden_and_head(model, **inputs)
        weight, bias = (p.full_tensor() if isinstance(p, DTensor) else p for p in (weight, bias))
        if weight.shape[1] != body.last_hidden_state.shape[-1]:
            raise ValueError(
                f"{type(model).__name__}: expected one linear layer as its lm_head, found one of {weight.shape[1]} "
                f"inputs behind a decoder of {body.last_hidden_state.shape[-1]} outputs"
            )
        product = F.linear(body.last_hidden_state, weight, bias).float()
        scale = _LARGE / product.square().mean().sqrt().clamp_min(1e-6).item()

        def enlarge(_module, _inputs, output):
            scales.append(scale)
            return output * scale

        handle = head.register_forward_hook(enlarge)
        try:
            found = call(**inputs, **({"labels": tokens} if with_loss else {}))
        finally:
            handle.remove()
    # A model that takes the weight and does not call the layer has the logits as they are.
    expected = product * (scales[0] if scales else 1.0)
    if cap := softcap_of(model):
        expected = cap * torch.tanh(expected / cap)
    return found, expected.to(found.logits.device), tokens.to(found.logits.device)


@contextlib.contextmanager
def _in_eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Dropout and the like are off within it; each module has its own mode again afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
