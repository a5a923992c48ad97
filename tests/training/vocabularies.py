"""Teachers whose tokenizers have the student's tokens under other ids, with added tokens that one of both lacks."""

import json
import sys
from pathlib import Path

import torch

import tiny
from model_files import changed_copy
from token_shard import write_shard

sys.path.append(str(tiny.REPOSITORY / "scripts"))

from token_shards.tokenizer_files import TokenizerFiles

BASE = 190  # tokens of the vocabulary proper, "t0" to "t189"


def tokenizer_json(ids, **changes):
    """`ids`: {text: id}; texts that are no "t<number>" are added tokens, which may lie anywhere in the vocabulary."""
    added = [
        {"id": id, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for text, id in ids.items()
        if text[0] != "t"
    ]
    model = {"type": "BPE", "unk_token": "t0", "vocab": ids, "merges": []}
    blank = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", "added_tokens": added, **blank, "model": model} | changes


def give_tokenizer(folder, ids, **changes):
    Path(folder, "tokenizer.json").write_text(json.dumps(tokenizer_json(ids, **changes)))
    return str(folder)


def with_rows(folder, target, rows, ids):
    """A copy of a model with this tokenizer; row i of its tables is row rows[i] of the model's."""

    def permute(weights):
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            if name in weights:
                weights[name] = weights[name][torch.as_tensor(rows)].contiguous()

    changed_copy(folder, target, permute, vocab_size=len(rows))
    return give_tokenizer(target, ids)


def shard_of(path, tokenizer, documents):
    files = TokenizerFiles.load(Path(tokenizer))
    write_shard(path, documents, files.vocab_size, files.hash)
    return str(path)
