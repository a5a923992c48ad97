"""A mixture of experts of a dense Llama: each MLP becomes experts that have a part of its neurons each.

With G x K experts, of which a token visits K, there are G groups. Each group cuts the neurons of the MLP into K equal
parts, by a random order of its own; the routers' rows of a group's experts are equal, so that a token visits all K of
one group, each with the weight 1/K, and down_proj is K times the MLP's: every group computes the MLP, to rounding (the
virtual groups of He et al. 2024, "Upcycling large language models into mixture of experts"). Groups differ in which
neurons stand together, and training makes their rows differ too. A router's rows are random, at right angles to the
mean of what the router reads, and so large that a group's logit has a standard deviation of 1 over tokens.

The mixture is a Qwen3-MoE, which normalises the queries and keys of each head; Llama does not. The weight of these
norms is the mean root mean square of a layer's queries and keys on a text, so that scores have the size that they had;
what is lost is how much they differ in size between tokens and heads. So the model is not the dense one: some training
repairs that.
"""

import json

from prune_layers import copy_side_files
from shared.folders import replaced_folder

ROUTER_STD = 1.0  # of a group's logit over tokens


def moe_config(dense, experts, per_token):
    """config.json of the mixture, of transformers' configuration of the dense model."""
    import transformers

    kept = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    kept += ("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_parameters")
    kept += ("tie_word_embeddings", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id")
    config = transformers.Qwen3MoeConfig(
        **{key: getattr(dense, key) for key in kept},
        num_experts=experts,
        num_experts_per_tok=per_token,
        moe_intermediate_size=dense.intermediate_size // per_token,
        norm_topk_prob=True,
    )
    config.architectures = ["Qwen3MoeForCausalLM"]
    config.dtype = "bfloat16"
    return config


class Calibration:
    """What a text tells about each layer: the size of queries and keys, and what the MLP reads."""

    def __init__(self, model, tokens):
        import torch

        self.sizes, self.inputs = {}, {}  # by layer, and of sizes by "q" or "k" too
        handles = []
        for index, layer in enumerate(model.model.layers):
            for kind in "qk":
                projection = getattr(layer.self_attn, f"{kind}_proj")
                handles.append(projection.register_forward_hook(self._size(index, kind, layer.self_attn.head_dim)))
            handles.append(layer.mlp.register_forward_pre_hook(self._input(index)))
        with torch.inference_mode():
            for row in tokens:
                model.model(row[None], use_cache=False)
        for handle in handles:
            handle.remove()

    def _size(self, index, kind, head_dim):
        def hook(module, inputs, output):
            heads = output.detach().unflatten(-1, (-1, head_dim))
            self.sizes.setdefault((index, kind), []).append(float(heads.square().mean(-1).sqrt().mean()))

        return hook

    def _input(self, index):
        def hook(module, inputs):
            self.inputs.setdefault(index, []).append(inputs[0].detach().flatten(0, -2))

        return hook

    def size(self, index, kind):
        """The mean root mean square of a head's queries or keys."""
        found = self.sizes[index, kind]
        return sum(found) / len(found)

    def router_rows(self, index, count, generator):
        """[count, hidden size]"""
        import torch

        inputs = torch.cat(self.inputs[index])
        mean = inputs.mean(0)
        rows = torch.randn(count, inputs.shape[1], generator=generator)
        rows -= (rows @ mean / mean.square().sum())[:, None] * mean
        return rows * (ROUTER_STD / (inputs @ rows.T).std(0))[:, None]


def layer_tensors(layer, calibration, index, experts, per_token, generator):
    """{name in the layer: tensor} of what stands in place of a dense layer's MLP, and of the norms."""
    import torch

    groups, neurons = experts // per_token, layer.mlp.gate_proj.weight.shape[0]
    size = neurons // per_token
    rows = calibration.router_rows(index, groups, generator)
    tensors = {"mlp.gate.weight": rows.repeat_interleave(per_token, 0)}
    for group in range(groups):
        order = torch.randperm(neurons, generator=generator)
        for part in range(per_token):
            chosen = order[part * size : (part + 1) * size].sort().values
            name = f"mlp.experts.{group * per_token + part}"
            for kind in ("gate", "up"):
                tensors[f"{name}.{kind}_proj.weight"] = getattr(layer.mlp, f"{kind}_proj").weight[chosen]
            tensors[f"{name}.down_proj.weight"] = layer.mlp.down_proj.weight[:, chosen] * per_token
    for kind in "qk":
        weight = torch.full((layer.self_attn.head_dim,), calibration.size(index, kind))
        tensors[f"self_attn.{kind}_norm.weight"] = weight
    return tensors


def upcycle(dense, out, tokens, experts, per_token, seed):
    """Writes the mixture of a folder's model. `tokens`: [sequences, length] ids of a text.

    ValueError: the model is no Llama, or its neurons or the experts are no multiple of `per_token`.
    """
    import torch
    import transformers
    from safetensors.torch import save_file

    config = transformers.AutoConfig.from_pretrained(dense, local_files_only=True)
    if config.model_type != "llama":
        raise ValueError(f"{dense}/config.json: model_type: expected llama, found {config.model_type}")
    for name, number in (("its intermediate_size", config.intermediate_size), ("the number of experts", experts)):
        if number % per_token != 0:
            raise ValueError(f"{dense}: expected {name} to be a multiple of {per_token}, found {number}")
    model = transformers.AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32, local_files_only=True).eval()
    calibration = Calibration(model, tokens)
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if ".mlp." not in name}
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    for index, layer in enumerate(model.model.layers):
        own = layer_tensors(layer, calibration, index, experts, per_token, generator)
        tensors |= {f"model.layers.{index}.{name}": tensor for name, tensor in own.items()}
    with replaced_folder(out) as partial:
        stored = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
        save_file(stored, partial / "model.safetensors", metadata={"format": "pt"})
        fields = moe_config(config, experts, per_token).to_dict()
        (partial / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
        copy_side_files(dense, partial)
