"""Puts the fused losses into causal language models of the transformers package."""

import inspect
import types
from typing import Any

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from .modules import LinearCrossEntropy, LinearJSD

# What a config.json may say that changes logits in a way that the losses here do not know; value: what changes nothing.
_UNKNOWN_SCALES = {"logit_scale": 1.0, "logits_scaling": 1.0, "lm_head_multiplier": 1.0}

# Inputs that say which tokens there are and which of them see each other: student and teacher get the same.
_OF_BOTH = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
)
# Inputs that say what the body returns beside its hidden states; they are the student's.
_OF_STUDENT = ("use_cache", "output_hidden_states", "output_attentions")


def softcap_of(model: torch.nn.Module) -> float | None:
    """The cap on the model's logits, None without one; ValueError for logits that are scaled in another way."""
    config = model.config.get_text_config()
    for key, neutral in _UNKNOWN_SCALES.items():
        found = getattr(config, key, None)
        if found not in (None, neutral):
            raise ValueError(f"{type(model).__name__}: {key}: expected {neutral}, found {found}; its logits are scaled")
    return getattr(config, "final_logit_softcapping", None)


def hidden_and_head(model: torch.nn.Module, **inputs: Any) -> tuple[Any, torch.Tensor, torch.Tensor | None]:
    """(the body's output, the lm_head's weight [V, H], its bias [V] or None); no logits are computed."""
    output = model.get_decoder()(**inputs)
    head = model.get_output_embeddings()
    return output, head.weight, head.bias


def _next_tokens(labels: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Labels [B, S] of the tokens that follow; the last token of a sequence has none."""
    return torch.nn.functional.pad(labels[:, 1:], (0, 1), value=ignore_index)


def _with_softcaps(loss, model, teacher):
    """`loss`, or a new one, which must cap logits as the models do."""
    caps = {"softcap": softcap_of(model)}
    if teacher is not None:
        caps["teacher_softcap"] = softcap_of(teacher)
    if loss is None:
        return LinearCrossEntropy(**caps) if teacher is None else LinearJSD(**caps)
    for name, cap in caps.items():
        if (loss.options[name] or None) != cap:
            raise ValueError(f"loss: {name}: expected {cap}, as the model's config says, found {loss.options[name]}")
    return loss


def _named_inputs(model_class, names, args, kwargs):
    """Positional arguments by the names that the model's forward has for them, beside the others; without those that
    are None."""
    if len(args) > len(names):
        raise TypeError(f"{model_class.__name__}: expected at most {len(names)} positional inputs, found {len(args)}")
    named = {**dict(zip(names, args)), **kwargs}
    return {name: value for name, value in named.items() if value is not None}


def _check_inputs(model_class, inputs, has_teacher):
    """ValueError for an input that the loss would not follow."""
    kept = inputs.pop("logits_to_keep", 0)
    if not isinstance(kept, int) or kept != 0:
        raise ValueError(f"{model_class.__name__}: logits_to_keep: expected 0 in a call with labels, found {kept}")
    if not has_teacher:
        return
    known = (*_OF_BOTH, *_OF_STUDENT)
    if unknown := [name for name in inputs if name not in known]:
        raise ValueError(
            f"{model_class.__name__}: expected inputs that student and teacher both get, {', '.join(_OF_BOTH)}, found "
            f"{', '.join(unknown)}: the teacher's targets would be those of other inputs"
        )


def patch_causal_lm(
    model: torch.nn.Module,
    loss: LinearCrossEntropy | LinearJSD | None = None,
    teacher: torch.nn.Module | None = None,
) -> torch.nn.Module:
    """Changes `model` (an AutoModelForCausalLM) so that a call with labels computes its loss without logits.

    Without a teacher the loss is cross-entropy; with one it is `loss`, a LinearJSD, of the student's and the teacher's
    hidden states on the same tokens (the teacher in eval mode, without gradients). The result has the loss and no
    logits. A call without labels (generation, evaluation) is as before. The loss is computed inside the model's own
    forward, so that DDP, FSDP2, autocast and the Trainer of transformers work as they do with the plain loss, and
    num_items_in_batch is respected.

    The teacher gets the student's input_ids [B, S], attention_mask [B, S], position_ids [B, S] and flash attention's
    cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k (packed batches). Any other input of a call with labels
    and a teacher, such as inputs_embeds or past_key_values, is a ValueError.

    Args:
        model: [B, S] input_ids, attention_mask and labels, as always; labels are shifted inside, shift_labels are not.
            The signature of its forward stays.
        loss: options of the loss; None: the default ones. Its softcaps must be those of the models.
        teacher: a causal language model with the same tokenizer; its hidden size and padded vocabulary may differ.

    Returns:
        `model`, changed in place.
    """
    loss = _with_softcaps(loss, model, teacher)
    # Not a submodule of the student: its weights are neither trained nor saved with it.
    plain_forward = model.forward
    signature = inspect.signature(type(model).forward)
    _, *names = (p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD)

    def forward(self, *args, **kwargs):
        inputs = _named_inputs(type(self), names, args, kwargs)
        labels, items = inputs.pop("labels", None), inputs.pop("num_items_in_batch", None)
        if labels is None:
            return plain_forward(**inputs)
        return_dict = inputs.pop("return_dict", getattr(self.config, "return_dict", True))
        targets = inputs.pop("shift_labels", None)
        if targets is None:
            targets = _next_tokens(labels, loss.options["ignore_index"])
        _check_inputs(type(self), inputs, teacher is not None)
        body, weight, bias = hidden_and_head(self, **inputs)
        hidden = body.last_hidden_state
        targets = targets.to(hidden.device)
        if teacher is None:
            value = loss(weight, hidden, targets, bias, num_items_in_batch=items)
        else:
            of_both = {name: inputs[name] for name in _OF_BOTH if name in inputs}
            with torch.no_grad():
                of_teacher, teacher_weight, teacher_bias = hidden_and_head(teacher.eval(), **of_both)
            value = loss(
                hidden,
                weight,
                of_teacher.last_hidden_state,
                teacher_weight,
                targets,
                bias,
                teacher_bias,
                num_items_in_batch=items,
            )
        output = CausalLMOutputWithPast(
            loss=value,
            past_key_values=body.get("past_key_values"),
            hidden_states=body.get("hidden_states"),
            attentions=body.get("attentions"),
        )
        return output if return_dict else output.to_tuple()

    # The Trainer of transformers keeps the columns of a data set that the signature names.
    forward.__signature__, forward.__doc__ = signature, type(model).forward.__doc__
    model.forward = types.MethodType(forward, model)
    return model
