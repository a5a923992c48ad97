#!/usr/bin/env python3
"""Makes the inputs for measuring the trainer: model folders with nothing but config.json, and a shard of random tokens.

  scripts/benches/bench_inputs.py --out work/bench --shapes 1b,8b --seq-len 4096 --rows 64

It writes OUT/SHAPE/config.json for each shape, and OUT/tokens.dtok with --rows documents of --seq-len random tokens.
With --varied there are more documents, of random lengths up to --seq-len, and as many tokens in all.
Train with `--set student.init=random --set teacher.init=random`, as scripts/benches/bench_trainer.sh does.
"""

import script_path

import json
from pathlib import Path

import numpy as np

from shared.command_line import argument_parser
from token_shards.shard_file import Shard, ShardSpec

# hidden, ffn, layers, heads, kv heads, head_dim. The shapes of Llama 3.2 and 3.1, with untied embeddings, and those of
# other families, whose names they begin with; tiny ones are nobody's.
SHAPES = {
    "tiny": (512, 1408, 4, 8, 4, 64),
    "1b": (2048, 8192, 16, 32, 8, 64),
    "3b": (3072, 8192, 28, 24, 8, 128),
    "8b": (4096, 14336, 32, 32, 8, 128),
    "70b": (8192, 28672, 80, 64, 8, 128),
    "qwen3-0.6b": (1024, 3072, 28, 16, 8, 128),
    "qwen3-1.7b": (2048, 6144, 28, 16, 8, 128),
    "qwen3-4b": (2560, 9728, 36, 32, 8, 128),
    "qwen3-8b": (4096, 12288, 36, 32, 8, 128),
    "qwen3-32b": (5120, 25600, 64, 64, 8, 128),
    "qwen3-30b-a3b": (2048, 6144, 48, 32, 4, 128),
    "qwen3-tiny-moe": (256, 512, 4, 4, 2, 64),
    "qwen3.5-tiny": (256, 512, 4, 4, 2, 64),
    "qwen3.5-2b": (2048, 6144, 24, 8, 2, 256),
    "qwen3.5-4b": (2560, 9216, 32, 16, 4, 256),
    "qwen3.5-9b": (4096, 12288, 32, 16, 4, 256),
    "qwen3.5-27b": (5120, 17408, 64, 24, 4, 256),
    "gemma3-tiny": (256, 512, 6, 4, 2, 64),
    "gemma3-4b": (2560, 10240, 34, 8, 4, 256),
    "gemma3-12b": (3840, 15360, 48, 16, 8, 256),
    "gemma4-tiny": (256, 512, 6, 4, 2, 64),
    "gemma4-2b": (2304, 9216, 18, 8, 4, 256),  # nobody's, with the heads that Gemma 4 has
    "gemma4-31b": (5376, 21504, 60, 32, 16, 256),
    "ministral3-tiny": (256, 512, 4, 4, 2, 64),
    "ministral3-3b": (3072, 9216, 26, 32, 8, 128),
    "ministral3-14b": (5120, 16384, 40, 32, 8, 128),
}
# Keys of config.json that differ from Llama's.
FAMILIES = {
    "qwen3": {"vocab_size": 151936, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6},
    "qwen3.5": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "rope_theta": None,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        "rms_norm_eps": 1e-6,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": 262208,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 1024,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
    "gemma4": {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "vocab_size": 262144,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 1024,
        "global_head_dim": 512,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 30.0,
        "rope_theta": None,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
    "ministral3": {
        "architectures": ["Ministral3ForCausalLM"],
        "model_type": "ministral3",
        "vocab_size": 131072,
        "sliding_window": None,
        "max_position_embeddings": 1 << 18,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
}
QWEN3_DENSE = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "sliding_window": None}
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}
# Keys that differ from the family's.
MORE_KEYS = {
    "qwen3-0.6b": QWEN3_DENSE | {"tie_word_embeddings": True},
    "qwen3-1.7b": QWEN3_DENSE | {"tie_word_embeddings": True},
    "qwen3-4b": QWEN3_DENSE | {"tie_word_embeddings": True},
    "qwen3-8b": QWEN3_DENSE,
    "qwen3-32b": QWEN3_DENSE,
    "qwen3-30b-a3b": QWEN3_MOE,
    "qwen3-tiny-moe": QWEN3_MOE | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128},
    "qwen3.5-tiny": {"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    "qwen3.5-2b": {"linear_num_value_heads": 16, "tie_word_embeddings": True},
    "qwen3.5-4b": {"tie_word_embeddings": True},
    "qwen3.5-27b": {"linear_num_value_heads": 48},
    "gemma4-31b": {"num_global_key_value_heads": 4},
    "ministral3-3b": {"tie_word_embeddings": True},
}


def config(shape, vocab=None):
    """The config.json of a shape, with its family's vocabulary or one of `vocab` tokens."""
    hidden, ffn, layers, heads, kv_heads, head_dim = SHAPES[shape]
    keys = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 1 << 20,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
    }
    keys |= FAMILIES.get(shape.split("-")[0], {}) | MORE_KEYS.get(shape, {})
    return keys | ({"vocab_size": vocab} if vocab else {})


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--shapes", default="1b,8b", help="comma-separated: " + ", ".join(SHAPES))
    parser.add_argument("--vocab", type=int, help="default: that of the first shape's family")
    parser.add_argument("--seq-len", default=4096, type=int, help="tokens")
    parser.add_argument("--rows", default=64, type=int, help="documents of seq-len tokens")
    parser.add_argument("--varied", action="store_true", help="documents of random lengths up to seq-len tokens")
    options = parser.parse_args()
    shapes = options.shapes.split(",")
    unknown = [shape for shape in shapes if shape not in SHAPES]
    if unknown:
        parser.error(f"--shapes: expected some of {', '.join(SHAPES)}, found {', '.join(unknown)}")
    vocab = options.vocab or config(shapes[0])["vocab_size"]
    for shape in shapes:
        folder = options.out / shape
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config(shape, vocab), indent=1) + "\n")
    random = np.random.default_rng(0)
    shard = Shard(ShardSpec(vocab, bytes(32)))
    left = options.rows * options.seq_len
    while left > 0:
        length = min(left, int(random.integers(16, options.seq_len + 1)) if options.varied else options.seq_len)
        shard.add(random.integers(0, vocab, length, dtype=np.uint32), None)
        left -= length
    shard.write(options.out / "tokens.dtok")


if __name__ == "__main__":
    main()
