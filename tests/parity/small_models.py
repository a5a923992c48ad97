"""Configurations of tiny models, with every feature of their families."""

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
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

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
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
YARN_ROPE = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)
SCALED_QUERIES = dict(llama_4_scaling_beta=0.3, mscale=1.0, mscale_all_dim=1.0)
LONGROPE = dict(
    rope_type="longrope",
    rope_theta=10000.0,
    partial_rotary_factor=0.75,
    short_factor=[1.0, 1.1, 1.3, 1.5, 2.0, 3.0],
    long_factor=[1.0, 2.0, 3.0, 5.0, 8.0, 9.0],
)
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40)
GEMMA4 = SMALL | dict(
    num_hidden_layers=4,
    head_dim=16,
    global_head_dim=32,
    num_key_value_heads=2,
    num_global_key_value_heads=1,
    attention_k_eq_v=True,
    sliding_window=9,
    final_logit_softcapping=5.0,
    layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
)
# Layers of linear_attention; several value heads share a key head.
QWEN3_5 = dict(
    num_hidden_layers=4,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=24,
)
FULL_ATTENTION = dict(sliding_window=None, layer_types=["full_attention"] * 3)


def small(**overrides):
    return {**SMALL, **overrides}


# name -> (configuration, dtype of the files, shard size, rewrite config.json in transformers 4's spelling)
MODELS = {
    "llama2": (LlamaConfig(**small(num_key_value_heads=4)), torch.float32, None, False),
    "llama2_old_spelling": (LlamaConfig(**small(num_key_value_heads=4)), torch.float16, None, True),
    "llama3_grouped": (LlamaConfig(**small(num_attention_heads=8, num_key_value_heads=2)), torch.bfloat16, None, False),
    "llama31_rope_scaling": (LlamaConfig(**small(rope_parameters=LLAMA3_ROPE)), torch.float32, "60KB", False),
    "llama32_tied_old_spelling": (
        LlamaConfig(**small(rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True)),
        torch.bfloat16,
        None,
        True,
    ),
    "llama_linear_rope": (
        LlamaConfig(**small(rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0))),
        torch.float32,
        None,
        False,
    ),
    "llama_wide_heads": (LlamaConfig(**small(head_dim=40)), torch.float32, None, False),
    "mistral": (MistralConfig(**small(sliding_window=None)), torch.float32, None, False),
    "mistral_window": (MistralConfig(**small(sliding_window=16, head_dim=24)), torch.bfloat16, None, False),
    "llama_yarn": (LlamaConfig(**small(rope_parameters=YARN_ROPE)), torch.float32, None, True),
    "qwen2_later_windows": (
        Qwen2Config(**small(use_sliding_window=True, sliding_window=8, max_window_layers=1)),
        torch.float32,
        None,
        False,
    ),
    "qwen3_windows_yarn": (
        Qwen3Config(
            **small(
                head_dim=32,
                use_sliding_window=True,
                sliding_window=7,
                layer_types=["full_attention", "sliding_attention", "full_attention"],
                rope_parameters=YARN_ROPE | dict(mscale=1.2, mscale_all_dim=0.7, beta_fast=12, truncate=False),
            )
        ),
        torch.float32,
        None,
        False,
    ),
    "exaone4_windows": (
        Exaone4Config(**small(num_hidden_layers=4, sliding_window=9, sliding_window_pattern=4)),
        torch.float32,
        None,
        False,
    ),
    "qwen2": (Qwen2Config(**small()), torch.float32, None, False),
    "qwen2_tied": (Qwen2Config(**small(tie_word_embeddings=True)), torch.bfloat16, "60KB", True),
    "qwen3": (Qwen3Config(**small(head_dim=32)), torch.float32, None, False),
    "qwen3_moe": (
        Qwen3MoeConfig(**small(head_dim=32, **EXPERTS, norm_topk_prob=True)),
        torch.float32,
        None,
        False,
    ),
    # Experts in layer 1 alone; the loss has the routers' part.
    "qwen3_moe_balanced": (
        Qwen3MoeConfig(
            **small(**EXPERTS, norm_topk_prob=False),
            decoder_sparse_step=2,
            output_router_logits=True,
            router_aux_loss_coef=0.3,
        ),
        torch.bfloat16,
        "60KB",
        True,
    ),
    "qwen3_moe_tied_balanced": (
        Qwen3MoeConfig(
            **small(**EXPERTS, tie_word_embeddings=True),
            mlp_only_layers=[1],
            output_router_logits=True,
            router_aux_loss_coef=0.1,
        ),
        torch.float32,
        None,
        False,
    ),
    "qwen3_5": (Qwen3_5TextConfig(**small(**QWEN3_5)), torch.float32, "60KB", False),
    "qwen3_5_tied": (
        Qwen3_5TextConfig(
            **small(**QWEN3_5 | dict(num_hidden_layers=3, linear_num_value_heads=2, linear_conv_kernel_dim=3)),
            layer_types=["full_attention", "linear_attention", "linear_attention"],
            rope_parameters=dict(
                rope_type="default",
                rope_theta=1e5,
                partial_rotary_factor=0.5,
                mrope_section=[3, 3, 2],
                mrope_interleaved=True,
            ),
            tie_word_embeddings=True,
        ),
        torch.bfloat16,
        None,
        False,
    ),
    "qwen3_5_moe": (
        Qwen3_5MoeTextConfig(**small(**QWEN3_5, **EXPERTS, shared_expert_intermediate_size=24)),
        torch.float32,
        "60KB",
        False,
    ),
    "qwen3_5_moe_balanced": (
        Qwen3_5MoeTextConfig(
            **small(**QWEN3_5 | dict(num_hidden_layers=2), **EXPERTS, shared_expert_intermediate_size=40),
            layer_types=["linear_attention", "full_attention"],
            output_router_logits=True,
            router_aux_loss_coef=0.2,
            tie_word_embeddings=True,
        ),
        torch.bfloat16,
        None,
        False,
    ),
    "exaone4": (Exaone4Config(**small(**FULL_ATTENTION)), torch.float32, None, False),
    "exaone4_tied": (Exaone4Config(**small(**FULL_ATTENTION, tie_word_embeddings=True)), torch.float32, None, False),
    "olmo2": (Olmo2Config(**small()), torch.float32, None, True),
    "olmo3": (
        Olmo3Config(
            **small(
                num_hidden_layers=4,
                sliding_window=9,
                rope_parameters=dict(full_attention=dict(YARN_ROPE), sliding_attention=dict(rope_type="default")),
            )
        ),
        torch.bfloat16,
        "60KB",
        False,
    ),
    "ministral3": (
        Ministral3Config(
            **small(head_dim=24, rope_parameters=YARN_ROPE | SCALED_QUERIES | dict(original_max_position_embeddings=16))
        ),
        torch.float32,
        None,
        False,
    ),
    "ministral3_mscale": (
        Ministral3Config(
            **small(
                head_dim=32, sliding_window=9, rope_parameters=YARN_ROPE | SCALED_QUERIES | dict(mscale_all_dim=0.6)
            )
        ),
        torch.float32,
        None,
        False,
    ),
    "gemma3": (
        Gemma3TextConfig(
            **small(
                num_hidden_layers=7,
                head_dim=24,
                sliding_window=9,
                query_pre_attn_scalar=20,
                rope_parameters=dict(
                    full_attention=dict(rope_type="linear", factor=8.0), sliding_attention=dict(rope_theta=500.0)
                ),
            )
        ),
        torch.bfloat16,
        None,
        False,
    ),
    "gemma3_softcap": (
        Gemma3TextConfig(
            **small(
                head_dim=16,
                sliding_window=64,
                final_logit_softcapping=2.0,
                tie_word_embeddings=False,
                layer_types=["sliding_attention", "full_attention", "full_attention"],
            )
        ),
        torch.float32,
        None,
        False,
    ),
    "gemma2": (
        Gemma2Config(
            **small(
                num_hidden_layers=4,
                head_dim=24,
                sliding_window=9,
                query_pre_attn_scalar=20,
                attn_logit_softcapping=1.5,
                final_logit_softcapping=3.0,
            )
        ),
        torch.bfloat16,
        None,
        False,
    ),
    "gemma4": (Gemma4TextConfig(**GEMMA4, hidden_size_per_layer_input=0), torch.bfloat16, "60KB", False),
    "gemma4_untied": (
        Gemma4TextConfig(
            **GEMMA4
            | dict(attention_k_eq_v=False, global_head_dim=16, tie_word_embeddings=False, final_logit_softcapping=None)
            | dict(
                rope_parameters=dict(
                    full_attention=dict(rope_type="proportional", rope_theta=500.0, partial_rotary_factor=0.6),
                    sliding_attention=dict(rope_type="default", rope_theta=100.0),
                )
            ),
            hidden_size_per_layer_input=0,
        ),
        torch.float32,
        None,
        False,
    ),
    # Heads of 256 and 512, as the folders of the hub have them.
    "gemma4_wide_heads": (
        Gemma4TextConfig(
            **GEMMA4
            | dict(num_attention_heads=2, head_dim=256, global_head_dim=512, layer_types=GEMMA4["layer_types"][:2])
            | dict(num_hidden_layers=2),
            hidden_size_per_layer_input=0,
        ),
        torch.bfloat16,
        None,
        False,
    ),
    "gemma4_unified": (
        Gemma4UnifiedTextConfig(**GEMMA4 | dict(layer_types=None, num_hidden_layers=7)),
        torch.float32,
        None,
        False,
    ),
    "phi3": (
        Phi3Config(**small(sliding_window=9, rope_parameters=dict(rope_type="default", partial_rotary_factor=0.5))),
        torch.float32,
        "60KB",
        False,
    ),
    "phi3_longrope": (
        Phi3Config(**small(tie_word_embeddings=True, original_max_position_embeddings=32, rope_parameters=LONGROPE)),
        torch.float32,
        None,
        False,
    ),
    "phi3_longrope_short": (
        Phi3Config(**small(original_max_position_embeddings=64, rope_parameters=dict(LONGROPE, factor=3.0))),
        torch.float32,
        None,
        False,
    ),
    "smollm3": (SmolLM3Config(**small(num_hidden_layers=5)), torch.bfloat16, None, True),
    "smollm3_windows": (
        SmolLM3Config(
            **small(
                use_sliding_window=True,
                sliding_window=9,
                no_rope_layers=[1, 0, 0],
                layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                tie_word_embeddings=False,
            )
        ),
        torch.float32,
        None,
        False,
    ),
    "qwen3_tied": (Qwen3Config(**small(head_dim=80, tie_word_embeddings=True)), torch.float32, None, False),
}
