"""Documents of token shards by the tokens that they begin with."""

import struct
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from token_shards import shard_file

KEY = 16  # tokens


@dataclass(frozen=True)
class Document:
    shard: int
    document: int
    tokens: np.ndarray
    in_loss: np.ndarray | None  # None: all

    def targets(self, count):
        """For each of the first `count` tokens, whether the next token is a target."""
        marks = np.zeros(count, bool)
        last = min(count, len(self.tokens) - 1)
        marks[:last] = True if self.in_loss is None else self.in_loss[1 : last + 1]
        return marks


class Documents:
    """All documents of some token shards."""

    def __init__(self, sources):
        self.files, self.tokenizer_hash = [], None
        self._by_start = defaultdict(list)
        for source in sources:
            path = Path(source)
            for shard in sorted(path.glob(f"*{shard_file.EXTENSION}")) if path.is_dir() else [path]:
                self._add(source, shard)
        if not self.files:
            raise ValueError(f"{', '.join(map(str, sources))}: expected token shards, found none")

    def _add(self, source, path):
        try:
            header, documents, masks = shard_file.read(path)
        except struct.error:
            raise ValueError(f"{path}: expected a token shard, found {path.stat().st_size} bytes") from None
        if self.tokenizer_hash not in (None, header["tokenizer_hash"]):
            raise ValueError(f"{path}: tokenizer_hash: expected {self.tokenizer_hash.hex()}, found another one")
        self.tokenizer_hash = header["tokenizer_hash"]
        self.files.append(
            {
                "path": str(path),
                "source": str(source),
                "eval": False,
                "header_hash": path.read_bytes()[224:256].hex(),
                "documents": len(documents),
                "tokens": header["token_count"],
            }
        )
        for number, tokens in enumerate(documents):
            mask = None if masks is None else masks[number]
            found = Document(len(self.files) - 1, number, tokens.astype(np.int64), mask)
            self._by_start[found.tokens[:KEY].tobytes()].append(found)

    def __iter__(self):
        """All documents, in no order that means anything."""
        return (document for documents in self._by_start.values() for document in documents)

    @property
    def count(self):
        return sum(file["documents"] for file in self.files)

    def beginning_with(self, tokens):
        """Every document that `tokens` is a beginning of, or all of."""
        tokens = np.asarray(tokens, np.int64)
        candidates = self._by_start.get(tokens[:KEY].tobytes(), [])
        if len(tokens) < KEY:  # the document may be longer than its key
            candidates = self
        return [
            document
            for document in candidates
            if len(tokens) <= len(document.tokens) and np.array_equal(document.tokens[: len(tokens)], tokens)
        ]
