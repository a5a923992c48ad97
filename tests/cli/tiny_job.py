"""A job small enough to check in a second: two tiny Llama folders, their tokenizer, token shards, a configuration."""

import json
import struct
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from token_shards.shard_file import Shard, ShardSpec
from token_shards.tokenizer_files import canonical_hash

ROOT = Path(__file__).resolve().parents[2]


VOCAB = 64

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}

CONFIG = """\
student:
  path: student
teacher:
  path: teacher
data:
  train: train
  eval: eval.dtok
  seq_len: 16
loss:
  divergence: jsd
  beta: 0.5
train:
  steps: 2
  micro_batch_size: 2
  global_batch_size: 4
  device: cpu
optimizer:
  lr: 1.0e-3
scheduler:
  warmup_steps: 1
run:
  dir: run
  progress: none
"""


def tokenizer(tokens=VOCAB):
    vocab = {f"t{i}": i for i in range(tokens)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "unk_token": "t0", "vocab": vocab, "merges": []},
    }


def tensors(config, seed=0):
    """The folder's tensors, {name: array}, as transformers names them."""
    rng = np.random.default_rng(seed)
    hidden, ffn, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
        }.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return {
        name: (np.ones(shape, "<f4") if len(shape) == 1 else rng.normal(0, 0.1, shape).astype("<f4"))
        for name, shape in shapes.items()
    }


def safetensors_parts(arrays):
    """(header as a dict, data) of a safetensors file."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in arrays.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    return header, data


def write_safetensors(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_model(folder, config=MODEL, seed=0):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", tokenizer())
    write_safetensors(folder / "model.safetensors", *safetensors_parts(tensors(config, seed)))


def write_json(path, value):
    Path(path).write_text(json.dumps(value))


def write_shard(path, documents=8, vocab=VOCAB, seed=0, tokenizer_json=None, masked=False):
    """`masked`: no token is in the loss."""
    rng = np.random.default_rng(seed)
    digest, _ = canonical_hash(tokenizer_json or tokenizer())
    shard = Shard(ShardSpec(vocab_size=vocab, tokenizer_hash=digest))
    for _ in range(documents):
        tokens = rng.integers(0, vocab, rng.integers(5, 40)).astype(np.int64)
        shard.add(tokens, np.zeros(len(tokens), dtype=bool) if masked else None)
    shard.write(path)


def write_teacher_shard(path, teacher_prompt=5, documents=4, seed=0):
    """Prompts of 3 tokens, of `teacher_prompt` other ones for the teacher, and completions of 6."""
    rng = np.random.default_rng(seed)
    shard = Shard(ShardSpec(vocab_size=VOCAB, tokenizer_hash=canonical_hash(tokenizer())[0]))
    for _ in range(documents):
        prompt, its, completion = (rng.integers(0, VOCAB, count) for count in (3, teacher_prompt, 6))
        texts = [np.concatenate([text, completion]) for text in (prompt, its)]
        masks = [np.arange(len(text)) >= len(text) - 6 for text in texts]
        shard.add(texts[0], masks[0], (texts[1], masks[1]))
    shard.write(path)


def write_job(folder):
    """Everything that CONFIG names, in `folder`."""
    folder = Path(folder)
    write_model(folder / "student", {**MODEL, "num_hidden_layers": 1}, seed=1)
    write_model(folder / "teacher", seed=2)
    (folder / "train").mkdir()
    write_shard(folder / "train" / "shard-00000.dtok", seed=3)
    write_shard(folder / "eval.dtok", seed=4)
    (folder / "config.yaml").write_text(CONFIG)
