"""Configurations of tiny models, with every feature of their families."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import (
    Exaone4Config,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    Gemma4UnifiedTextConfig,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
SMALL = dict(
    vocab_size=211,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    initializer_range=0.15,
    rms_norm_eps=1e-5,
    pad_token_id=None,  # transformers gives the row of a padding token no gradient
)
DEFAULT_ROPE = dict(rope_type="default")
LINEAR_ROPE = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3_ROPE |= dict(original_max_position_embeddings=64)
YARN_ROPE = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)
SCALED_QUERIES = dict(llama_4_scaling_beta=0.3, mscale=1.0, mscale_all_dim=1.0)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75)
LONGROPE |= dict(short_factor=[1.0, 1.1, 1.3, 1.5, 2.0, 3.0], long_factor=[1.0, 2.0, 3.0, 5.0, 8.0, 9.0])
WINDOW, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"  # kinds of layers
FULL_ATTENTION = dict(sliding_window=None, layer_types=[FULL] * 3)
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40)
GEMMA4 = SMALL | dict(num_hidden_layers=4, head_dim=16, global_head_dim=32, num_global_key_value_heads=1)
GEMMA4 |= dict(attention_k_eq_v=True, sliding_window=9, final_logit_softcapping=5.0, layer_types=[WINDOW, FULL] * 2)
DENSE_GEMMA4 = GEMMA4 | dict(hidden_size_per_layer_input=0)
# Layers of linear_attention; several value heads share a key head.
QWEN3_5 = dict(num_hidden_layers=4, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4)
QWEN3_5 |= dict(linear_key_head_dim=16, linear_value_head_dim=24)
PARTIAL_ROPE = dict(rope_type="default", rope_theta=1e5, partial_rotary_factor=0.5)
PARTIAL_ROPE |= dict(mrope_section=[3, 3, 2], mrope_interleaved=True)
TIED, UNTIED = dict(tie_word_embeddings=True), dict(tie_word_embeddings=False)


def small(**overrides):
    return {**SMALL, **overrides}


class Model(NamedTuple):
    config: PretrainedConfig
    dtype: torch.dtype  # of the files
    shard_size: str | None
    edit: Callable[[Path], None] | None  # changes the files of the folder


def model(kind, dtype=FP32, shard_size=None, edit=None, **keys):
    """A model of SMALL's sizes; `keys` are those of its configuration class."""
    return Model(kind(**SMALL | keys), dtype, shard_size, edit)


def old_spelling(folder):
    """Rewrites config.json as transformers 4 spells it."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2))


ROUTED = dict(output_router_logits=True)  # the loss has the routers' part
TWO_KINDS = dict(num_hidden_layers=2, layer_types=[LINEAR, FULL])
MODELS = {
    "llama2": model(LlamaConfig, num_key_value_heads=4),
    "llama2_old_spelling": model(LlamaConfig, FP16, edit=old_spelling, num_key_value_heads=4),
    "llama3_grouped": model(LlamaConfig, BF16, num_attention_heads=8, num_key_value_heads=2),
    "llama31_rope_scaling": model(LlamaConfig, FP32, "60KB", rope_parameters=LLAMA3_ROPE),
    "llama32_tied_old_spelling": model(LlamaConfig, BF16, edit=old_spelling, rope_parameters=LLAMA3_ROPE, **TIED),
    "llama_linear_rope": model(LlamaConfig, rope_parameters=LINEAR_ROPE),
    "llama_wide_heads": model(LlamaConfig, head_dim=40),
    "mistral": model(MistralConfig, sliding_window=None),
    "mistral_window": model(MistralConfig, BF16, sliding_window=16, head_dim=24),
    "llama_yarn": model(LlamaConfig, edit=old_spelling, rope_parameters=YARN_ROPE),
    "qwen2_later_windows": model(Qwen2Config, use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "qwen3_windows_yarn": model(
        Qwen3Config, head_dim=32, use_sliding_window=True, sliding_window=7, layer_types=[FULL, WINDOW, FULL],
        rope_parameters=YARN_ROPE | dict(mscale=1.2, mscale_all_dim=0.7, beta_fast=12, truncate=False),
    ),
    "exaone4_windows": model(Exaone4Config, num_hidden_layers=4, sliding_window=9, sliding_window_pattern=4),
    "qwen2": model(Qwen2Config),
    "qwen2_tied": model(Qwen2Config, BF16, "60KB", old_spelling, **TIED),
    "qwen3": model(Qwen3Config, head_dim=32),
    "qwen3_moe": model(Qwen3MoeConfig, head_dim=32, **EXPERTS, norm_topk_prob=True),
    "qwen3_moe_balanced": model(  # experts in layer 1 alone
        Qwen3MoeConfig, BF16, "60KB", old_spelling,
        **EXPERTS, norm_topk_prob=False, decoder_sparse_step=2, **ROUTED, router_aux_loss_coef=0.3,
    ),
    "qwen3_moe_tied_balanced": model(
        Qwen3MoeConfig, **EXPERTS, **TIED, mlp_only_layers=[1], **ROUTED, router_aux_loss_coef=0.1
    ),
    "qwen3_5": model(Qwen3_5TextConfig, FP32, "60KB", **QWEN3_5),
    "qwen3_5_tied": model(
        Qwen3_5TextConfig, BF16, **QWEN3_5 | dict(num_hidden_layers=3, linear_num_value_heads=2), **TIED,
        linear_conv_kernel_dim=3, layer_types=[FULL, LINEAR, LINEAR], rope_parameters=PARTIAL_ROPE,
    ),
    "qwen3_5_moe": model(
        Qwen3_5MoeTextConfig, FP32, "60KB", **QWEN3_5, **EXPERTS, shared_expert_intermediate_size=24
    ),
    "qwen3_5_moe_balanced": model(
        Qwen3_5MoeTextConfig, BF16, **QWEN3_5 | TWO_KINDS, **EXPERTS, shared_expert_intermediate_size=40, **ROUTED,
        router_aux_loss_coef=0.2, **TIED,
    ),
    "exaone4": model(Exaone4Config, **FULL_ATTENTION),
    "exaone4_tied": model(Exaone4Config, **FULL_ATTENTION, **TIED),
    "olmo2": model(Olmo2Config, edit=old_spelling),
    "olmo3": model(
        Olmo3Config, BF16, "60KB", num_hidden_layers=4, sliding_window=9,
        rope_parameters=dict(full_attention=dict(YARN_ROPE), sliding_attention=dict(DEFAULT_ROPE)),
    ),
    "ministral3": model(
        Ministral3Config, head_dim=24,
        rope_parameters=YARN_ROPE | SCALED_QUERIES | dict(original_max_position_embeddings=16),
    ),
    "ministral3_mscale": model(
        Ministral3Config, head_dim=32, sliding_window=9,
        rope_parameters=YARN_ROPE | SCALED_QUERIES | dict(mscale_all_dim=0.6),
    ),
    "gemma3": model(
        Gemma3TextConfig, BF16, num_hidden_layers=7, head_dim=24, sliding_window=9, query_pre_attn_scalar=20,
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=8.0), sliding_attention=dict(rope_theta=500.0)
        ),
    ),
    "gemma3_softcap": model(
        Gemma3TextConfig, head_dim=16, sliding_window=64, final_logit_softcapping=2.0, **UNTIED,
        layer_types=[WINDOW, FULL, FULL],
    ),
    "gemma2": model(
        Gemma2Config, BF16, num_hidden_layers=4, head_dim=24, sliding_window=9, query_pre_attn_scalar=20,
        attn_logit_softcapping=1.5, final_logit_softcapping=3.0,
    ),
    "gemma4": model(Gemma4TextConfig, BF16, "60KB", **DENSE_GEMMA4),
    "gemma4_untied": model(
        Gemma4TextConfig,
        **DENSE_GEMMA4 | UNTIED | dict(attention_k_eq_v=False, global_head_dim=16, final_logit_softcapping=None),
        rope_parameters=dict(
            full_attention=dict(rope_type="proportional", rope_theta=500.0, partial_rotary_factor=0.6),
            sliding_attention=dict(rope_type="default", rope_theta=100.0),
        ),
    ),
    "gemma4_wide_heads": model(  # of 256 and 512, as the folders of the hub have them
        Gemma4TextConfig, BF16,
        **DENSE_GEMMA4 | dict(num_attention_heads=2, head_dim=256, global_head_dim=512, layer_types=[WINDOW, FULL])
        | dict(num_hidden_layers=2),
    ),
    "gemma4_unified": model(Gemma4UnifiedTextConfig, **GEMMA4 | dict(layer_types=None, num_hidden_layers=7)),
    "phi3": model(
        Phi3Config, FP32, "60KB", sliding_window=9, rope_parameters=DEFAULT_ROPE | dict(partial_rotary_factor=0.5)
    ),
    "phi3_longrope": model(Phi3Config, **TIED, original_max_position_embeddings=32, rope_parameters=LONGROPE),
    "phi3_longrope_short": model(
        Phi3Config, original_max_position_embeddings=64, rope_parameters=dict(LONGROPE, factor=3.0)
    ),
    "smollm3": model(SmolLM3Config, BF16, edit=old_spelling, num_hidden_layers=5),
    "smollm3_windows": model(
        SmolLM3Config, use_sliding_window=True, sliding_window=9, no_rope_layers=[1, 0, 0],
        layer_types=[WINDOW, WINDOW, FULL], **UNTIED,
    ),
    "qwen3_tied": model(Qwen3Config, head_dim=80, **TIED),
}  # fmt: skip
