"""The peer's models: transformers' Llama without memory, then sharded by FSDP2, then given random weights.

Shape suffixes: B sequences, S tokens of each, N = B * S, H and T the hidden sizes of student and teacher, V vocabulary.
"""

import math

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import bench_inputs

STUDENT_SEED, TEACHER_SEED = 1, 2  # of the random weights


def jsd(student_logits, teacher_logits, beta):
    """Mean over tokens of beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q; p the teacher."""
    q, p = student_logits.float().log_softmax(-1), teacher_logits.float().log_softmax(-1)
    m = torch.logaddexp(p + math.log(beta), q + math.log(1 - beta))
    kl = [(one.exp() * (one - m)).sum(-1) for one in (p, q)]
    return (beta * kl[0] + (1 - beta) * kl[1]).mean()


def loss_of(options):
    """A function (hidden_NH, weight_VH, teacher_hidden_NT, teacher_weight_VT, labels_N) -> mean JSD(0.5) in nats."""
    if options.head == "plain":
        return lambda hidden, weight, teacher_hidden, teacher_weight, labels: jsd(
            hidden @ weight.t(), teacher_hidden @ teacher_weight.t(), beta=0.5
        )
    if options.head == "liger-fused":
        from liger_kernel.ops.fused_linear_jsd import LigerFusedLinearJSDFunction

        return lambda hidden, weight, teacher_hidden, teacher_weight, labels: LigerFusedLinearJSDFunction.apply(
            hidden, weight, teacher_hidden, teacher_weight, None, 0.5, -100, 1.0, torch.float32
        )
    from liger_kernel.chunked_loss.jsd_loss import LigerFusedLinearJSDLoss

    return LigerFusedLinearJSDLoss(
        weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.5, compiled=options.compile, chunk_size=options.chunk
    )


class LossHead(torch.nn.Linear):
    """The student's lm_head. Its forward is the loss: FSDP2 gathers the weight for it and reduces its gradient."""

    def __init__(self, hidden_size, vocab, loss):
        super().__init__(hidden_size, vocab, bias=False)
        self.loss = loss

    def forward(self, hidden_NH, teacher_hidden_NT, teacher_weight_VT, labels_N):
        return self.loss(hidden_NH, self.weight, teacher_hidden_NT, teacher_weight_VT, labels_N)


class WeightHead(torch.nn.Linear):
    """The teacher's lm_head, which leaves the logits to the loss: its forward returns (hidden_NT, weight_VT)."""

    def __init__(self, hidden_size, vocab):
        super().__init__(hidden_size, vocab, bias=False)

    def forward(self, hidden_NT):
        return hidden_NT, self.weight


class Trunk(torch.nn.Module):
    """Calls a LlamaForCausalLM's lm_head on the final hidden states of all tokens; the root of FSDP2."""

    def __init__(self, llama):
        super().__init__()
        self.llama = llama

    def forward(self, tokens_BS, *of_head):
        states = self.llama.model(tokens_BS, use_cache=False).last_hidden_state
        return self.llama.lm_head(states.flatten(0, 1), *of_head)


def llama_on_meta(shape, vocab, make_head, dtype):
    """A LlamaForCausalLM without memory for its weights, whose lm_head is make_head(hidden size, vocab)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**bench_inputs.config(shape, vocab), use_cache=False, attn_implementation="sdpa")
    with torch.device("meta"):
        llama = LlamaForCausalLM(config)
        llama.lm_head = make_head(config.hidden_size, vocab)
    return llama.to(dtype)


def use_float8(llama, recipe):
    """Replaces the linear layers of the blocks by torchao's, which round weights and inputs in each call."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    convert_to_float8_training(
        llama,
        config=Float8LinearConfig.from_recipe_name(recipe),
        module_filter_fn=lambda module, name: "lm_head" not in name,
    )


def compile_blocks(llama):
    """torch.compile of each block, in place, inside its checkpointing."""
    for block in llama.model.layers:
        block.compile()


def shard(trunk, mesh, policy):
    """FSDP2 over the ranks, a unit for each block, the embedding and lm_head, which stays gathered until backward."""
    llama = trunk.llama
    for module in (*llama.model.layers, llama.model.embed_tokens):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(llama.lm_head, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(trunk, mesh=mesh, mp_policy=policy)


@torch.no_grad()
def set_random_weights(module, seed):
    """Norms of 1, other weights normal with standard deviation 0.02: the same whether the module is sharded or not."""
    weights = list(module.parameters())
    generator = torch.Generator(weights[0].device).manual_seed(seed)
    for weight in weights:
        whole = torch.ones(weight.shape, dtype=weight.dtype, device=weight.device)
        if whole.dim() > 1:
            whole.normal_(0, 0.02, generator=generator)
        if isinstance(weight, DTensor):
            whole = distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
        weight.copy_(whole)


def materialize(trunk, device, seed):
    """Gives a model of the meta device memory, random weights and its rotary frequencies; returns it."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    trunk.to_empty(device=device)
    with device:
        trunk.llama.model.rotary_emb = LlamaRotaryEmbedding(trunk.llama.config)
    set_random_weights(trunk, seed)
    return trunk


def make_student(options, mesh, device):
    """A Trunk whose forward (tokens_BS, teacher_hidden_NT, teacher_weight_VT, labels_N) is the loss of the options."""
    loss = loss_of(options)
    llama = llama_on_meta(options.student, options.vocab, lambda *sizes: LossHead(*sizes, loss), torch.float32)
    llama.train()
    if options.checkpointing:
        llama.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if options.student_float8:
        use_float8(llama, options.student_float8)
    if options.compile:
        compile_blocks(llama)
    trunk = Trunk(llama)
    dtype = getattr(torch, options.dtype)
    shard(trunk, mesh, MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32))
    return materialize(trunk, device, STUDENT_SEED)


def make_teacher(options, mesh, device):
    """A frozen Trunk whose forward (tokens_BS) is (hidden_NT, weight_VT); in float8 it is whole on each GPU."""
    llama = llama_on_meta(options.teacher, options.vocab, WeightHead, getattr(torch, options.dtype))
    llama.eval().requires_grad_(False)
    if options.teacher_float8:
        use_float8(llama, options.teacher_float8)
    if options.compile:
        compile_blocks(llama)
    trunk = Trunk(llama)
    if mesh.size() > 1 and not options.teacher_float8:
        shard(trunk, mesh, MixedPrecisionPolicy())
    return materialize(trunk, device, TEACHER_SEED)
