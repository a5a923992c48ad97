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

# hidden, ffn, layers, heads, kv heads, head_dim. The shapes of Llama 3.2 and 3.1, with untied embeddings, and of Qwen3,
# whose vocabulary is 151936; tiny is nobody's.
SHAPES = {
    "tiny": (512, 1408, 4, 8, 4, 64),
    "1b": (2048, 8192, 16, 32, 8, 64),
    "3b": (3072, 8192, 28, 24, 8, 128),
    "8b": (4096, 14336, 32, 32, 8, 128),
    "70b": (8192, 28672, 80, 64, 8, 128),
    "qwen3-4b": (2560, 9728, 36, 32, 8, 128),
    "qwen3-30b-a3b": (2048, 6144, 48, 32, 4, 128),
}
# Keys of config.json that differ from Llama's.
QWEN3 = {"rope_theta": 1000000.0, "rms_norm_eps": 1e-6}
MORE_KEYS = {
    "qwen3-4b": QWEN3
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "sliding_window": None,
        "tie_word_embeddings": True,
    },
    "qwen3-30b-a3b": QWEN3
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
}


def config(shape, vocab):
    hidden, ffn, layers, heads, kv_heads, head_dim = SHAPES[shape]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
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
    } | MORE_KEYS.get(shape, {})


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--shapes", default="1b,8b", help="comma-separated: " + ", ".join(SHAPES))
    parser.add_argument("--vocab", default=128256, type=int)
    parser.add_argument("--seq-len", default=4096, type=int, help="tokens")
    parser.add_argument("--rows", default=64, type=int, help="documents of seq-len tokens")
    parser.add_argument("--varied", action="store_true", help="documents of random lengths up to seq-len tokens")
    options = parser.parse_args()
    shapes = options.shapes.split(",")
    unknown = [shape for shape in shapes if shape not in SHAPES]
    if unknown:
        parser.error(f"--shapes: expected some of {', '.join(SHAPES)}, found {', '.join(unknown)}")
    for shape in shapes:
        folder = options.out / shape
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config(shape, options.vocab), indent=1) + "\n")
    random = np.random.default_rng(0)
    shard = Shard(ShardSpec(options.vocab, bytes(32)))
    left = options.rows * options.seq_len
    while left > 0:
        length = min(left, int(random.integers(16, options.seq_len + 1)) if options.varied else options.seq_len)
        shard.add(random.integers(0, options.vocab, length, dtype=np.uint32), None)
        left -= length
    shard.write(options.out / "tokens.dtok")


if __name__ == "__main__":
    main()
