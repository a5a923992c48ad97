"""The peer's student with adapters of peft, and as its teacher the same frozen weights without them: one copy."""

import contextlib

import torch

from peers_trainer.models import STUDENT_SEED, LossHead, compile_blocks, loss_of, materialize, trunk_on_meta, use_float8


def adapted_student(options, device):
    """A Trunk like that of make_student whose blocks' matrices are frozen, in options.dtype, and have adapters."""
    import peft

    loss = loss_of(options)
    dtype = getattr(torch, options.dtype)
    trunk = trunk_on_meta(options.student, options, lambda *sizes: LossHead(*sizes, loss), dtype)
    causal = trunk.causal
    materialize(trunk, device, STUDENT_SEED)
    trunk.requires_grad_(False)
    targets = sorted({name.rpartition(".")[2] for name, module in causal.model.named_modules() if is_matrix(module)})
    peft.inject_adapter_in_model(
        peft.LoraConfig(r=options.lora, lora_alpha=options.lora, target_modules=targets), causal.model
    )
    trunk.to(device=device, dtype=dtype)
    causal.train()
    if options.checkpointing:
        causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        causal.enable_input_require_grads()
    if options.student_float8:
        use_float8(causal, options.student_float8)
    if options.compile:
        compile_blocks(causal)
    return trunk


def is_matrix(module):
    return isinstance(module, torch.nn.Linear)


class OwnBase:
    """The teacher of make_teacher's form that is the student without its adapters."""

    def __init__(self, student):
        self.student = student
        self.causal = student.causal
        self.layers = [module for module in student.modules() if hasattr(module, "_disable_adapters")]

    @contextlib.contextmanager
    def without_adapters(self):
        """peft's disable_adapter() without its changes of requires_grad."""
        for layer in self.layers:
            layer._disable_adapters = True
        self.causal.eval()
        try:
            yield
        finally:
            for layer in self.layers:
                layer._disable_adapters = False
            self.causal.train()

    def __call__(self, tokens_BS):
        with torch.no_grad(), self.without_adapters():
            states_BST = self.causal.model(tokens_BS, use_cache=False).last_hidden_state
        return states_BST.flatten(0, 1), self.causal.lm_head.weight
