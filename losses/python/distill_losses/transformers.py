"""Puts the fused losses into causal language models of the transformers package."""

import inspect

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from ._arguments import made_under_inference
from ._causal_lm import check_logits, check_no_auxiliary_loss, hidden_and_head, is_checkable, softcap_of
from ._missing_logits import MissingLogits
from .modules import LinearCrossEntropy, LinearJSD

__all__ = ["hidden_and_head", "patch_causal_lm", "softcap_of"]

# These inputs say which tokens there are and which of them see each other: student and teacher get the same.
_OF_BOTH = (
    "input_ids",
    "attention_mask",
    "position_ids",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
)
# These inputs say what else the body returns, in addition to its hidden states; only the student gets them.
_OF_STUDENT = ("use_cache", "output_hidden_states", "output_attentions")
# With other values of these options LinearCrossEntropy is not the model's own loss.
_OF_LOSS = ("ignore_index", "lse_square_scale", "label_smoothing", "reduction")


def _next_tokens(labels: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Returns labels [B, S] of the tokens that follow; the last token of a sequence has none."""
    return torch.nn.functional.pad(labels[:, 1:], (0, 1), value=ignore_index)


def _with_softcaps(loss, model, teacher):
    """Returns `loss`, or a new one, which must cap logits as the models do."""
    caps = {"softcap": softcap_of(model)}
    if teacher is not None:
        caps["teacher_softcap"] = softcap_of(teacher)
    if loss is None:
        return LinearCrossEntropy(**caps) if teacher is None else LinearJSD(**caps)
    expected, where = (LinearCrossEntropy, "without a teacher") if teacher is None else (LinearJSD, "with a teacher")
    if not isinstance(loss, expected):
        raise ValueError(f"loss: expected a {expected.__name__} {where}, found a {type(loss).__name__}")
    if loss.options["return_metrics"]:
        raise ValueError("loss: return_metrics: expected False, found True; a model returns one number as its loss")
    for name, cap in caps.items():
        if (loss.options[name] or None) != cap:
            raise ValueError(f"loss: {name}: expected {cap}, as the model's config says, found {loss.options[name]}")
    return loss


def _is_the_models_own(loss, teacher):
    """Returns whether the loss is that of the model itself and of other libraries: the next tokens' cross-entropy."""
    if teacher is not None or loss.ce_weight is not None:
        return False
    plain = LinearCrossEntropy().options
    return all(loss.options[name] == plain[name] for name in _OF_LOSS)


def _without_inference_tensors(inputs):
    """Returns inputs of which autograd can save what it needs; it refuses tensors made under torch.inference_mode()."""
    if not torch.is_grad_enabled():
        return inputs
    return {
        name: value.clone() if isinstance(value, torch.Tensor) and made_under_inference(value) else value
        for name, value in inputs.items()
    }


def _check_parameters(model):
    made = [name for name, p in model.named_parameters() if p.is_inference()]
    if made:
        raise ValueError(
            f"{type(model).__name__}: expected parameters that can be trained, found {made[0]} and "
            f"{len(made) - 1} others made under torch.inference_mode(): load the model outside of it"
        )


def _refuse_another_loss(model, why):
    raise ValueError(
        f"{type(model).__name__}: expected a call that computes the loss given to patch_causal_lm, found one that "
        f"computes another in its place: {why}"
    )


def _named_inputs(model_class, names, args, kwargs):
    """Returns the arguments that are not None by name; positional ones have the names of the model's forward."""
    if len(args) > len(names):
        raise TypeError(f"{model_class.__name__}: expected at most {len(names)} positional inputs, found {len(args)}")
    named = {**dict(zip(names, args)), **kwargs}
    return {name: value for name, value in named.items() if value is not None}


def _check_models(model, plain_forward, teacher):
    """Raises ValueError where a loss from hidden states would not be the models' own."""
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
    """Raises ValueError for an input that the loss would not follow."""
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


_TRL = (
    "fused_lm_head=True, as SFTTrainer and other trainers of TRL call a model to compute their own loss; take the "
    "Trainer of transformers, or replace the trainer's compute_loss by one that calls the model with labels "
    "(losses/python/examples/trl_gkd.py)"
)
_REPLACED = (
    "the model was given another forward after patch_causal_lm, as use_liger_kernel does; leave that out, or call "
    "patch_causal_lm afterwards"
)


def _logits(model, hidden, eval_logits):
    """Returns the logits of a call with labels: None where it may be trained on, otherwise by `eval_logits`."""
    if model.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    if not eval_logits:
        # DataParallel gathers what replicas return.
        return None if getattr(model, "_is_replica", False) else MissingLogits(type(model).__name__)
    logits, cap = model.get_output_embeddings()(hidden), softcap_of(model)
    return logits if cap is None else cap * torch.tanh(logits / cap)


def patch_causal_lm(
    model: torch.nn.Module,
    loss: LinearCrossEntropy | LinearJSD | None = None,
    teacher: torch.nn.Module | None = None,
    *,
    eval_logits: bool = False,
) -> torch.nn.Module:
    """Changes `model` (an AutoModelForCausalLM) so that a call with labels computes its loss without logits.

    Without a teacher the loss is cross-entropy; with one it is `loss`, a LinearJSD, of the student's and the teacher's
    hidden states on the same tokens (the teacher in eval mode, without gradients). The result has the loss and no
    logits: they are None, and in eval mode without gradients an object whose use is an error that names this function
    (a Trainer with compute_metrics). A call without labels (generation) is as before. The loss is computed inside the
    model's own forward, so that DDP, FSDP2, autocast and the Trainer of transformers work as they do with the plain
    loss, and num_items_in_batch is respected.

    The teacher gets the student's input_ids [B, S], attention_mask [B, S], position_ids [B, S] and flash attention's
    cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k (packed batches). Any other input of a call with labels
    and a teacher, such as inputs_embeds or past_key_values, is a ValueError.

    Both models compute logits for a few tokens here, which are compared with the lm_head's product and the softcap; a
    model that does something else to them, or whose own loss is not the cross-entropy of the next tokens, is a
    ValueError. Where they cannot compute yet (meta tensors, sharded parameters, flash attention before a GPU has the
    model), the first call with labels does this. The auxiliary loss of routers (output_router_logits) is refused.

    It is a ValueError, too, where another loss would silently be computed: where another library has given the model a
    forward of its own after this (TRL's SFTTrainer, use_liger_kernel), or the Trainer takes the labels away
    (label_smoothing_factor, compute_loss_func). Without a teacher and with the default options theirs is the same loss.

    Args:
        model: [B, S] input_ids, attention_mask and labels, as always; labels are shifted inside, shift_labels are not.
            The signature of its forward stays.
        loss: options of the loss; None: the default ones. Its softcaps must be those of the models.
        teacher: a causal language model with the same tokenizer; its hidden size and padded vocabulary may differ.
        eval_logits: a call with labels in eval mode without gradients computes the logits [B, S, V], too, for the
            metrics of a Trainer; they take the memory that the loss does not.

    Returns:
        `model`, changed in place.
    """
    loss = _with_softcaps(loss, model, teacher)
    is_own = _is_the_models_own(loss, teacher)
    check_no_auxiliary_loss(model)
    _check_parameters(model)
    # The teacher is no submodule of the student: its weights are neither trained nor saved with it.
    # A model that is patched already keeps the class and the forward before that; FSDP2's class may lie between.
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
        if inputs.get("fused_lm_head") and is_own:  # TRL's, from before the patch
            return plain_forward(self, **inputs)
        labels, items = inputs.pop("labels", None), inputs.pop("num_items_in_batch", None)
        if labels is None:
            if items is not None and not is_own:
                _refuse_another_loss(
                    self,
                    "num_items_in_batch came without labels, as from a Trainer with label_smoothing_factor or "
                    "compute_loss_func, which compute theirs from logits; leave these out (the losses of this package "
                    "have label_smoothing, too)",
                )
            return plain_forward(self, **inputs)
        if inputs.pop("fused_lm_head", False):
            _refuse_another_loss(self, _TRL)
        if not torch.compiler.is_compiling():
            self._fused_losses += 1
        inputs = _without_inference_tensors(inputs)
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
            logits=_logits(self, hidden, eval_logits),
            past_key_values=body.get("past_key_values"),
            hidden_states=body.get("hidden_states"),
            attentions=body.get("attentions"),
        )
        return output if return_dict else output.to_tuple()

    def call(self, *args, **kwargs):
        if torch.compiler.is_compiling():
            return base.__call__(self, *args, **kwargs)
        before = self._fused_losses
        output = base.__call__(self, *args, **kwargs)
        # An attribute `forward` that was set after the patch goes before the one above.
        if kwargs.get("labels") is not None and not is_own and self._fused_losses == before:
            _refuse_another_loss(self, _TRL if kwargs.get("fused_lm_head") else _REPLACED)
        return output

    # The Trainer of transformers keeps the columns of a data set that the signature names.
    forward.__signature__, forward.__doc__ = signature, forward_of_class.__doc__
    # The model gets a class of its own, and no attribute: copies of it then compute with their own weights. The name of
    # the class stays, which transformers saves and by which it finds more.
    own = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    own.update(
        forward=forward, __call__=call, _fused_losses=0, _forward_of_class=forward_of_class, _class_before_patch=base
    )
    model.__class__ = type(base)(base.__name__, (base,), own)
    return model
