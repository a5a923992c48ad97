"""Reads a tokenizer folder: the hash that every shard records, the special tokens, the chat templates."""

import hashlib
import json
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from .config_tokens import read_object
from .end_of_text import EndIds
from .errors import InputError
from .template_files import read_templates
from .transformers_tokenizer import (
    SHOWN,
    check_same_tokens,
    load_whole_file,
    load_with_transformers,
    own_parts,
    takes_whole_file,
    token_pairs,
)


def canonical_hash(tokenizer_json):
    """SHA-256 over (model type, all (id, token), merges, scores), as docs/data.md gives it; data/tokenizer.cpp too."""
    model = tokenizer_json["model"]
    vocab = model["vocab"]
    kind = model.get("type") or ("BPE" if "merges" in model else "Unigram" if isinstance(vocab, list) else "WordPiece")
    scores = [float(score) for _, score in vocab] if kind == "Unigram" else []
    tokens = sorted((index, token.encode()) for index, token in token_pairs(tokenizer_json))
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
    ends: EndIds = EndIds()  # of generation
    notes: list = field(default_factory=list)  # what a user should know: a line for each
    _pairs: set = field(default_factory=set)  # (id, token)
    _whole: Tokenizer | None = None
    _split_special: bool = False

    @classmethod
    def load(cls, path):
        """Reads the files alone. `path`: a model folder, or its tokenizer.json."""
        file = Path(path)
        if file.is_dir():
            file = file / "tokenizer.json"
        if not file.is_file():
            raise InputError(
                f"{file}: no such file (AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of "
                "transformers writes it)"
            )
        described = read_object(file)
        tokenizer, tokens = load_whole_file(file, file.read_text(encoding="utf-8"), described)
        try:
            described["added_tokens"] = json.loads(tokenizer.to_str())["added_tokens"]
            digest, vocab_size = canonical_hash(described)
            pairs = token_pairs(described)
        except (LookupError, TypeError, ValueError, AttributeError, struct.error) as error:
            raise InputError(f"{file}: not a tokenizer.json: {type(error).__name__}: {error}") from error
        out = cls(file, digest, vocab_size, tokens.named, notes=_shared_ids(file, pairs))
        out._pairs, out._whole, out._split_special = pairs, tokenizer, tokens.split_special
        folder = file.parent
        config = read_object(folder / "special_tokens_map.json") | read_object(folder / "tokenizer_config.json")
        out.ends = EndIds.read(folder)
        out.chat_templates = read_templates(folder, config, read_object)
        return out

    def tokenizer(self):
        """The Tokenizer that gives transformers' ids, without truncation and padding. InputError: transformers cannot
        load the folder, or makes other tokens of it than `distill` reads in the files, or its ids are random."""
        tokenizer = self._whole
        if not takes_whole_file(self.file.parent):
            tokenizer, tokens, class_name = load_with_transformers(self.file)
            check_same_tokens(self.file, self._pairs, tokenizer, class_name)
            self.notes += own_parts(self.file, self._whole, tokenizer, class_name)
            self.special_tokens, self._split_special = tokens.named, tokens.split_special
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = self._split_special
        if dropout := getattr(tokenizer.model, "dropout", None):
            raise InputError(
                f"{self.file}: `model.dropout`: expected null (it makes the ids of a text random), found {dropout:g}"
            )
        return tokenizer


def _shared_ids(file, pairs):
    """A note about ids that stand for several tokens, if there are any."""
    texts = defaultdict(list)
    for index, token in sorted(pairs):
        texts[index].append(json.dumps(token, ensure_ascii=False))
    shared = [f"{index} ({' and '.join(tokens)})" for index, tokens in texts.items() if len(tokens) > 1]
    if not shared:
        return []
    more = f" and {len(shared) - SHOWN} more" if len(shared) > SHOWN else ""
    return [
        f"{file}: these ids stand for several tokens, which no model can tell apart: {', '.join(shared[:SHOWN])}"
        f"{more}; the ids of the vocabulary have gaps, so that an added token gets the id of another one (as in "
        "transformers)"
    ]
