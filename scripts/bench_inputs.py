#!/usr/bin/env python3
"""Inputs for measuring the trainer: model folders that hold a config.json alone, and a shard of random tokens.

  scripts/bench_inputs.py --out work/bench --shapes 1b,8b --seq-len 4096 --rows 64

Writes <out>/<shape>/config.json for each shape and <out>/tokens.dtok with as many documents of seq-len random tokens.
Train with `--set student.init=random --set teacher.init=random`; scripts/bench_trainer.sh does.
"""

import os
import sys

# This folder holds a tokenize.py, which must not take the place of the standard library's.
_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [os.path.join(_HERE, "token_shards")] + [p for p in sys.path if os.path.abspath(p) != _HERE]

import argparse  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
from shard_file import Shard, ShardSpec  # noqa: E402

# hidden, ffn, layers, heads, kv heads, head_dim: Llama 3.2's and 3.1's shapes, embeddings untied.
SHAPES = {
    "tiny": (512, 1408, 4, 8, 4, 64),
    "1b": (2048, 8192, 16, 32, 8, 64),
    "3b": (3072, 8192, 28, 24, 8, 128),
    "8b": (4096, 14336, 32, 32, 8, 128),
    "70b": (8192, 28672, 80, 64, 8, 128),
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
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--shapes", default="1b,8b", help="comma-separated: " + ", ".join(SHAPES))
    parser.add_argument("--vocab", default=128256, type=int)
    parser.add_argument("--seq-len", default=4096, type=int, help="tokens")
    parser.add_argument("--rows", default=64, type=int, help="documents of seq-len tokens")
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
    for _ in range(options.rows):
        shard.add(random.integers(0, options.vocab, options.seq_len, dtype=np.uint32), None)
    shard.write(options.out / "tokens.dtok")


if __name__ == "__main__":
    main()
