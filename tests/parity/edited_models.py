"""Folders whose files are changed after they were saved, and that transformers loads all the same."""

import json

import torch
from safetensors.torch import load_file, save_file
from small_models import BF16, EXPERTS, FP32, FULL, GEMMA4, LINEAR, LLAMA3_ROPE, QWEN3_5, TIED, model
from transformers import (
    Gemma4UnifiedTextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

REMOVED = object()


def with_keys(**keys):
    """Changes keys of config.json; REMOVED takes a key away."""

    def edit(folder):
        path = folder / "config.json"
        config = json.loads(path.read_text()) | keys
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not REMOVED}, indent=2))

    return edit


def with_tensors(change):
    """Changes the dictionary of tensors of model.safetensors or, in shards, of the last one."""

    def edit(folder):
        path = max(folder.glob("model*.safetensors"))
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    return edit


def without_listing(*names):
    """Takes names out of the index; the shards keep the tensors."""

    def edit(folder):
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        for name in names:
            del index["weight_map"][name]
        path.write_text(json.dumps(index))

    return edit


@with_tensors
def other_head(tensors):
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()


@with_tensors
def random_head(tensors):
    tensors["lm_head.weight"] = torch.randn(211, 64).bfloat16()


@with_tensors
def equal_head(tensors):
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()


@with_tensors
def head_alone(tensors):
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")


@with_tensors
def equal_embedding(tensors):
    tensors["model.embed_tokens.weight"] = tensors["lm_head.weight"].clone()


@with_tensors
def stacked_experts(tensors):
    """The experts of a layer in two tensors, as folders of the hub have them."""
    prefixes = {name.split(".experts.")[0] + ".experts." for name in tensors if ".experts." in name}
    for prefix in prefixes:
        parts = {
            kind: torch.stack([tensors.pop(f"{prefix}{expert}.{kind}.weight") for expert in range(6)])
            for kind in ("gate_proj", "up_proj", "down_proj")
        }
        tensors[prefix + "gate_up_proj"] = torch.cat([parts["gate_proj"], parts["up_proj"]], 1)
        tensors[prefix + "down_proj"] = parts["down_proj"]


@with_tensors
def without_prefix(tensors):
    for name in list(tensors):
        tensors[name.removeprefix("model.")] = tensors.pop(name)


@with_tensors
def more_tensors(tensors):
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    tensors["model.mtp.weight"] = torch.zeros(3)
    tensors["model.layers.3.mlp.up_proj.weight"] = torch.zeros(3, 4)
    tensors["score.weight"] = torch.zeros(2, 64)


@with_tensors
def unlisted_tensor(tensors):
    tensors["model.mtp.weight"] = torch.zeros(3)


def rope_factor(folder):
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["full_attention"]["factor"] = 3.0
    (folder / "config.json").write_text(json.dumps(config))


def edited(kind, edit, dtype=FP32, shard_size=None, **keys):
    return model(kind, dtype, shard_size, edit, **keys)


ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=777.0))
LINEAR_ROPE = {"rope_type": "linear", "factor": 2.0}
WINDOWS = dict(sliding_window=8, use_sliding_window=True)  # in config.json alone
LINEAR_DEFAULTS = ("conv_kernel_dim", "key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads")
EDITED = {
    "rope_scaling_empty": edited(LlamaConfig, with_keys(rope_scaling={}), **ROPE),
    "rope_scaling_null": edited(LlamaConfig, with_keys(rope_scaling=None), **ROPE),
    "rope_scaling_default": edited(LlamaConfig, with_keys(rope_scaling={"rope_type": "default"}), **ROPE),
    "rope_scaling_against_parameters": edited(
        Qwen2Config, with_keys(rope_scaling=LINEAR_ROPE, rope_theta=55.0), **ROPE
    ),
    "rope_theta_twice": edited(MistralConfig, with_keys(rope_theta=5.0), sliding_window=None, **ROPE),
    "rope_theta_outside": edited(
        Qwen3Config, with_keys(rope_parameters={"rope_type": "default"}, rope_theta=55.0), head_dim=32
    ),
    "rope_context_outside": edited(
        LlamaConfig, with_keys(original_max_position_embeddings=32), rope_parameters=LLAMA3_ROPE
    ),
    "mistral_kv_heads_absent": edited(
        MistralConfig, with_keys(num_key_value_heads=REMOVED),
        sliding_window=None, num_attention_heads=16, num_key_value_heads=8,
    ),
    "llama_kv_heads_absent": edited(LlamaConfig, with_keys(num_key_value_heads=REMOVED), num_key_value_heads=4),
    "qwen_kv_heads_null": edited(Qwen2Config, with_keys(num_key_value_heads=None), num_key_value_heads=4),
    "experts_under_their_old_name": edited(
        Qwen3MoeConfig, with_keys(num_experts=6, num_local_experts=REMOVED, mlp_only_layers=REMOVED), **EXPERTS
    ),
    "no_experts": edited(Qwen3MoeConfig, with_keys(mlp_only_layers=[0]), num_experts=0),
    "layers_at_an_interval": edited(
        Qwen3_5TextConfig, with_keys(layer_types=REMOVED, full_attention_interval=3),
        **QWEN3_5 | dict(num_hidden_layers=5, full_attention_interval=3),
    ),
    "defaults_of_qwen3_5": edited(
        Qwen3_5TextConfig,
        with_keys(
            layer_types=REMOVED, rope_parameters=REMOVED, head_dim=REMOVED,
            **{f"linear_{key}": REMOVED for key in LINEAR_DEFAULTS},
            full_attention_interval=4, attn_output_gate=True, mamba_ssm_dtype="float32",
            mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False,
        ),
        num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=256,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25),
    ),
    "stacked_experts": edited(
        Qwen3_5MoeTextConfig, stacked_experts, **QWEN3_5 | dict(num_hidden_layers=2), **EXPERTS,
        shared_expert_intermediate_size=24, layer_types=[LINEAR, FULL],
    ),
    "gemma4_rope_factor": edited(Gemma4UnifiedTextConfig, rope_factor, **GEMMA4),
    "head_dim_null": edited(LlamaConfig, with_keys(head_dim=None)),
    "tokens_null": edited(LlamaConfig, with_keys(pad_token_id=None, bos_token_id=None, eos_token_id=[1, 2])),
    "dtype_absent": edited(LlamaConfig, with_keys(dtype=REMOVED), BF16),
    "window_of_llama": edited(LlamaConfig, with_keys(sliding_window=8)),
    "window_switched_off": edited(
        Qwen2Config, with_keys(sliding_window=8, use_sliding_window=False, max_window_layers=0)
    ),
    "window_of_later_layers": edited(
        Qwen3Config, with_keys(**WINDOWS, max_window_layers=3, layer_types=REMOVED), head_dim=32
    ),
    "window_of_layer_28": edited(Qwen2Config, with_keys(**WINDOWS, max_window_layers=REMOVED, layer_types=REMOVED)),
    "window_against_layer_types": edited(
        Qwen2Config, with_keys(**WINDOWS, max_window_layers=0, layer_types=[FULL] * 3)
    ),
    "tied_other_head": edited(LlamaConfig, other_head, **TIED),
    "tied_equal_head": edited(LlamaConfig, equal_head, **TIED),
    "tied_head_alone": edited(LlamaConfig, head_alone, BF16, **TIED),
    "tied_without_prefix": edited(LlamaConfig, without_prefix, **TIED),
    "tied_other_head_in_shards": edited(Qwen3Config, random_head, BF16, "60KB", head_dim=32, **TIED),
    "untied_equal_head": edited(LlamaConfig, equal_embedding),
    "more_tensors": edited(LlamaConfig, more_tensors),
    "more_tensors_in_shards": edited(LlamaConfig, unlisted_tensor, FP32, "60KB"),
    "unlisted_tensors": edited(
        LlamaConfig, without_listing("model.norm.weight", "model.layers.1.mlp.up_proj.weight"), FP32, "60KB"
    ),
}  # fmt: skip
