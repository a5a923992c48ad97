"""A patched model returns this in the place of logits that it has not computed."""

import torch


class MissingLogits(torch.Tensor):
    """An empty tensor whose use is a RuntimeError that names the patch and says what to do.

    It is a tensor, so that the Trainer of transformers, which detaches what a model returns, meets the error at once.
    What only passes outputs on (DDP, FSDP2, autocast and hooks of accelerate) may look at its dtype and device, copy
    and move it.
    """

    @staticmethod
    def __new__(cls, model_name: str) -> "MissingLogits":
        return torch.Tensor._make_subclass(cls, torch.empty(0))

    def __init__(self, model_name: str):
        self.message = (
            f"{model_name}: a call with labels has no logits: distill_losses.transformers.patch_causal_lm makes the "
            "model compute its loss from hidden states. Where an evaluation needs logits (compute_metrics, "
            "preprocess_logits_for_metrics, predict), give patch_causal_lm eval_logits=True; where its loss is enough, "
            "leave compute_metrics out or set prediction_loss_only=True"
        )

    def __repr__(self, **_) -> str:
        return "MissingLogits()"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in _PASSES_ON:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        missing = next(argument for argument in _flat(args) if isinstance(argument, cls))
        if func in _MOVES:
            return missing
        raise RuntimeError(missing.message)


_PASSES_ON = {
    torch.Tensor.dtype.__get__,
    torch.Tensor.device.__get__,
    torch.Tensor.layout.__get__,
    torch.Tensor.requires_grad.__get__,
    torch.Tensor.grad_fn.__get__,
    torch.Tensor.is_leaf.__get__,
    torch.Tensor.is_floating_point,
    torch.is_floating_point,
}
_MOVES = {torch.Tensor.clone, torch.clone, torch.Tensor.to}


def _flat(arguments):
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from _flat(argument)
        else:
            yield argument
