"""Puts the fused losses into causal language models of the transformers package."""

import types
from typing import Any

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from .modules import LinearCrossEntropy, LinearJSD

# What a config.json may say that changes logits in a way that the losses here do not know; value: what changes nothing.
_UNKNOWN_SCALES = {"logit_scale": 1.0, "logits_scaling": 1.0, "lm_head_multiplier": 1.0}


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

    Args:
        model: [B, S] input_ids, attention_mask and labels, as always; labels are shifted inside.
        loss: options of the loss; None: the default ones. Its softcaps must be those of the models.
        teacher: a causal language model with the same tokenizer; its hidden size and padded vocabulary may differ.

    Returns:
        `model`, changed in place.
    """
    loss = _with_softcaps(loss, model, teacher)
    # Not a submodule of the student: its weights are neither trained nor saved with it.
    plain_forward = model.forward

    def forward(self, input_ids=None, attention_mask=None, labels=None, num_items_in_batch=None, **kwargs):
        if labels is None:
            return plain_forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        body, weight, bias = hidden_and_head(self, **inputs, **kwargs)
        hidden = body.last_hidden_state
        targets = _next_tokens(labels, loss.options["ignore_index"]).to(hidden.device)
        if teacher is None:
            value = loss(weight, hidden, targets, bias, num_items_in_batch=num_items_in_batch)
        else:
            with torch.no_grad():
                of_teacher, teacher_weight, teacher_bias = hidden_and_head(teacher.eval(), **inputs)
            value = loss(
                hidden,
                weight,
                of_teacher.last_hidden_state,
                teacher_weight,
                targets,
                bias,
                teacher_bias,
                num_items_in_batch=num_items_in_batch,
            )
        return CausalLMOutputWithPast(
            loss=value, past_key_values=body.get("past_key_values"), hidden_states=body.get("hidden_states")
        )

    model.forward = types.MethodType(forward, model)
    return model
