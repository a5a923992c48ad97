"""The peer's models: those of transformers without memory, then sharded by FSDP2, then given random weights.

Shape suffixes: B sequences, S tokens of each, N = B * S, H and T the hidden sizes of student and teacher, V vocabulary.
"""

import math

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import bench_inputs
from peers_trainer.delta_kernels import leave_kernels_uncompiled

STUDENT_SEED, TEACHER_SEED = 1, 2  # of the random weights
ZERO_CENTRED_NORMS = ("Gemma3RMSNorm", "Qwen3_5RMSNorm")  # classes that multiply by 1 + weight


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
    """Calls a causal model's lm_head on the final hidden states of all tokens; the root of FSDP2."""

    def __init__(self, causal):
        super().__init__()
        self.causal = causal

    def forward(self, tokens_BS, *of_head):
        states = self.causal.model(tokens_BS, use_cache=False).last_hidden_state
        return self.causal.lm_head(states.flatten(0, 1), *of_head)

    def tie_head(self):
        """Makes lm_head use the embedding's weight where the model's config asks for it."""
        if self.causal.config.tie_word_embeddings:
            self.causal.lm_head.weight = self.causal.model.embed_tokens.weight


def trunk_on_meta(shape, options, make_head, dtype):
    """A Trunk without memory for its weights, whose lm_head is make_head(hidden size, vocab)."""
    import transformers

    keys = bench_inputs.config(shape, options.vocab)
    model_class = getattr(transformers, keys["architectures"][0])
    config = model_class.config_class(**keys, use_cache=False, attn_implementation=options.attention)
    if getattr(config, "num_experts", None):
        config._experts_implementation = "grouped_mm"
    with torch.device("meta"):
        causal = model_class(config)
        causal.lm_head = make_head(config.hidden_size, config.vocab_size)
    trunk = Trunk(causal.to(dtype))
    trunk.tie_head()
    return trunk


def use_float8(causal, recipe):
    """Replaces the linear layers of the blocks by torchao's, which round weights and inputs in each call.

    Those of a delta rule's two gates, which have a column for each head, stay as they are.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    convert_to_float8_training(
        causal,
        config=Float8LinearConfig.from_recipe_name(recipe),
        module_filter_fn=lambda module, name: not name.endswith(("lm_head", ".in_proj_a", ".in_proj_b")),
    )


def compile_blocks(causal):
    """torch.compile of each block, in place, inside its checkpointing."""
    leave_kernels_uncompiled(causal)
    for block in causal.model.layers:
        block.compile()


def shard(trunk, mesh, policy):
    """FSDP2 over the ranks, a unit for each block, the embedding and lm_head, which stays gathered until backward.

    Where the two share a weight, they are one unit.
    """
    causal = trunk.causal
    ends = [causal.model.embed_tokens, causal.lm_head]
    for module in causal.model.layers:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    if causal.config.tie_word_embeddings:
        fully_shard(ends, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    else:
        fully_shard(ends[0], mesh=mesh, mp_policy=policy)
        fully_shard(ends[1], mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    fully_shard(trunk, mesh=mesh, mp_policy=policy)


@torch.no_grad()
def set_random_weights(module, seed):
    """Norms that multiply by 1, other weights normal with standard deviation 0.02; those of one dimension are 1.

    They are the same whether the module is sharded or not.
    """
    weights = dict(module.named_parameters())
    generator = torch.Generator(next(iter(weights.values())).device).manual_seed(seed)
    for name, weight in weights.items():
        norm = module.get_submodule(name.rpartition(".")[0])
        one = 0.0 if type(norm).__name__ in ZERO_CENTRED_NORMS else 1.0
        whole = torch.full(weight.shape, one, dtype=weight.dtype, device=weight.device)
        if whole.dim() > 1:
            whole.normal_(0, 0.02, generator=generator)
        if isinstance(weight, DTensor):
            whole = distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None)
        weight.copy_(whole)


def materialize(trunk, device, seed):
    """Gives a model of the meta device memory, random weights and its buffers; returns it."""
    trunk.to_empty(device=device)
    trunk.tie_head()
    model = trunk.causal.model
    with device:
        model.rotary_emb = type(model.rotary_emb)(trunk.causal.config)
    for name, buffer in model.named_buffers():
        if name == "embed_tokens.embed_scale":
            buffer.fill_(model.embed_tokens.scalar_embed_scale)
        elif not name.startswith("rotary_emb."):
            raise RuntimeError(f"{type(model).__name__}: no value is known for the buffer {name}")
    set_random_weights(trunk, seed)
    return trunk


def make_student(options, mesh, device):
    """A Trunk whose forward (tokens_BS, teacher_hidden_NT, teacher_weight_VT, labels_N) is the loss of the options."""
    loss = loss_of(options)
    trunk = trunk_on_meta(options.student, options, lambda *sizes: LossHead(*sizes, loss), torch.float32)
    causal = trunk.causal
    causal.train()
    if options.checkpointing:
        causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if options.student_float8:
        use_float8(causal, options.student_float8)
    if options.compile:
        compile_blocks(causal)
    dtype = getattr(torch, options.dtype)
    shard(trunk, mesh, MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32))
    return materialize(trunk, device, STUDENT_SEED)


def make_teacher(options, mesh, device):
    """A frozen Trunk whose forward (tokens_BS) is (hidden_NT, weight_VT).

    In float8 it is whole on each GPU unless options.shard_teacher is set.
    """
    trunk = trunk_on_meta(options.teacher, options, WeightHead, getattr(torch, options.dtype))
    causal = trunk.causal
    causal.eval().requires_grad_(False)
    if options.teacher_float8:
        use_float8(causal, options.teacher_float8)
    if options.compile:
        compile_blocks(causal)
    if mesh.size() > 1 and (options.shard_teacher or not options.teacher_float8):
        shard(trunk, mesh, MixedPrecisionPolicy())
    return materialize(trunk, device, TEACHER_SEED)
