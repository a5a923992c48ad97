"""Puts the fused losses into causal language models of the transformers package."""

import inspect

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from ._causal_lm import check_logits, check_no_auxiliary_loss, hidden_and_head, is_checkable, softcap_of
from .modules import LinearCrossEntropy, LinearJSD

__all__ = ["hidden_and_head", "patch_causal_lm", "softcap_of"]

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


def _check_models(model, plain_forward, teacher):
    """ValueError where a loss from hidden states would not be the models' own."""
    check_logits(model, lambda **inputs: plain_forward(model, **inputs), with_loss=True)
    if teacher is not None:
        check_logits(teacher, teacher, with_loss=False)


def _could_check(model, plain_forward, teacher):
    """Checks both models, and returns True, where that can be done before the training begins."""
    if not all(is_checkable(m) for m in (model, teacher) if m is not None):
        return False
    try:
        _check_models(model, plain_forward, teacher)
    except (RuntimeError, NotImplementedError):  # such as flash attention on a CPU, before the model is moved
        return False
    return True


def _check_inputs(model, inputs, has_teacher):
    """ValueError for an input that the loss would not follow."""
    model_class = type(model)
    check_no_auxiliary_loss(model, inputs.get("output_router_logits"))
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

    Both models compute logits for a few tokens here, which are compared with the lm_head's product and the softcap; a
    model that does something else to them, or whose own loss is not the cross-entropy of the next tokens, is a
    ValueError. Where they cannot compute yet (meta tensors, sharded parameters, flash attention before a GPU has the
    model), the first call with labels does this. The auxiliary loss of routers (output_router_logits) is refused.

    Args:
        model: [B, S] input_ids, attention_mask and labels, as always; labels are shifted inside, shift_labels are not.
            The signature of its forward stays.
        loss: options of the loss; None: the default ones. Its softcaps must be those of the models.
        teacher: a causal language model with the same tokenizer; its hidden size and padded vocabulary may differ.

    Returns:
        `model`, changed in place.
    """
    loss = _with_softcaps(loss, model, teacher)
    check_no_auxiliary_loss(model)
    # Not a submodule of the student: its weights are neither trained nor saved with it.
    # Of a model that is patched already, the class and the forward before that; FSDP2's class may lie between.
    base = vars(type(model)).get("_class_before_patch", type(model))
    forward_of_class = getattr(type(model), "_forward_of_class", base.forward)
    signature = inspect.signature(forward_of_class)
    # A forward of the instance, such as accelerate's, goes before that of the class and would hide ours.
    if "forward" in vars(model):
        model._forward_before_patch = vars(model).pop("forward")

    def plain_forward(self, **inputs):
        own = vars(self).get("_forward_before_patch")
        return forward_of_class(self, **inputs) if own is None else own(**inputs)

    model._loss_is_checked = _could_check(model, plain_forward, teacher)
    _, *names = (p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD)

    def forward(self, *args, **kwargs):
        inputs = _named_inputs(type(self), names, args, kwargs)
        labels, items = inputs.pop("labels", None), inputs.pop("num_items_in_batch", None)
        if labels is None:
            return plain_forward(self, **inputs)
        if not self._loss_is_checked and not torch.compiler.is_compiling():
            _check_models(self, plain_forward, teacher)
            self._loss_is_checked = True
        return_dict = inputs.pop("return_dict", getattr(self.config, "return_dict", True))
        targets = inputs.pop("shift_labels", None)
        if targets is None:
            targets = _next_tokens(labels, loss.options["ignore_index"])
        _check_inputs(self, inputs, teacher is not None)
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
    forward.__signature__, forward.__doc__ = signature, forward_of_class.__doc__
    # A class for this model, and no attribute of it: copies of the model then compute with their own weights. Its name
    # stays, which transformers saves and by which it finds more.
    own = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    own.update(forward=forward, _forward_of_class=forward_of_class, _class_before_patch=base)
    model.__class__ = type(base)(base.__name__, (base,), own)
    return model
