"""Reads a tokenizer folder: the hash that every shard records, the special tokens, the chat templates."""

import hashlib
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

from .errors import InputError
from .template_files import read_templates


def canonical_hash(tokenizer_json):
    """SHA-256 over (model type, all (id, token), merges, scores), as docs/data.md gives it; data/tokenizer.cpp too."""
    model = tokenizer_json["model"]
    vocab = model["vocab"]
    kind = model.get("type") or ("BPE" if "merges" in model else "Unigram" if isinstance(vocab, list) else "WordPiece")
    if kind == "Unigram":
        pairs = {(index, token) for index, (token, _) in enumerate(vocab)}
        scores = [float(score) for _, score in vocab]
    else:
        pairs = {(index, token) for token, index in vocab.items()}
        scores = []
    pairs |= {(added["id"], added["content"]) for added in tokenizer_json.get("added_tokens") or []}
    tokens = sorted((index, token.encode()) for index, token in pairs)
    merges = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model.get("merges") or []]

    def text(data):
        return struct.pack("<I", len(data)) + data

    sha = hashlib.sha256(text(b"distill tokenizer 1") + text(kind.encode()))
    sha.update(struct.pack("<Q", len(tokens)))
    sha.update(b"".join(struct.pack("<I", index) + text(token) for index, token in tokens))
    sha.update(struct.pack("<Q", len(merges)))
    sha.update(b"".join(text(left.encode()) + text(right.encode()) for left, right in merges))
    sha.update(struct.pack(f"<Q{len(scores)}d", len(scores), *scores))
    return sha.digest(), tokens[-1][0] + 1


@dataclass
class TokenizerFiles:
    file: Path  # tokenizer.json
    hash: bytes
    vocab_size: int  # largest id + 1
    special_tokens: dict = field(default_factory=dict)  # bos_token: text, ...
    chat_templates: dict = field(default_factory=dict)  # by name
    eos_id: int | None = None  # from config.json, where tokenizer_config.json names no eos_token

    @classmethod
    def load(cls, path):
        file = Path(path)
        if file.is_dir():
            file = file / "tokenizer.json"
        if not file.is_file():
            raise InputError(
                f"{file}: no such file (AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of "
                "transformers writes it)"
            )
        try:
            digest, vocab_size = canonical_hash(_json(file))
        except (LookupError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise InputError(f"{file}: not a tokenizer.json: {type(error).__name__}: {error}") from error
        out = cls(file, digest, vocab_size)
        folder = file.parent
        config = _json(folder / "special_tokens_map.json") | _json(folder / "tokenizer_config.json")
        for name, value in config.items():
            value = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(value, str):
                out.special_tokens[name] = value
        eos = (_json(folder / "config.json") | _json(folder / "generation_config.json")).get("eos_token_id")
        out.eos_id = eos[0] if isinstance(eos, list) and eos else eos
        out.chat_templates = read_templates(folder, config, _json)
        return out


def _json(path):
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
