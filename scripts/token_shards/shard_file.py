"""The token shard file, version 1. docs/data.md describes every byte; data/shard_format.h is the same in C++."""

import hashlib
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

MAGIC = b"DISTTOKS"
VERSION = 1
HEADER_BYTES = 256
FLAG_LOSS_MASK = 1
ALIGNMENT = 64
EXTENSION = ".dtok"
# magic, version, header_bytes, token_bytes, flags, tokens, documents, vocab_size, file_bytes, bos, eos, two hashes,
# reserved
HEADER = struct.Struct("<8sIIIIQQQQqq32s32s88x")


@dataclass(frozen=True)
class ShardSpec:
    vocab_size: int  # largest id + 1
    tokenizer_hash: bytes
    bos_id: int = -1
    eos_id: int = -1


@dataclass
class Shard:
    """A shard in memory: documents are appended, then all of it is written at once."""

    spec: ShardSpec
    lengths: list = field(default_factory=list)
    tokens: list = field(default_factory=list)  # arrays
    in_loss: list = field(default_factory=list)  # bool arrays or None (all tokens), one for each of `tokens`
    token_count: int = 0

    def add(self, tokens, in_loss):
        self.lengths.append(len(tokens))
        self.tokens.append(tokens)
        self.in_loss.append(in_loss)
        self.token_count += len(tokens)

    def write(self, path):
        token_bytes = 2 if self.spec.vocab_size <= 65536 else 4
        flags = FLAG_LOSS_MASK if any(mask is not None for mask in self.in_loss) else 0
        offsets = np.zeros(len(self.lengths) + 1, dtype="<u8")
        np.cumsum(self.lengths, out=offsets[1:])
        tokens = np.concatenate(self.tokens)
        if tokens.max() >= self.spec.vocab_size:
            raise ValueError(f"{path}: id {tokens.max()} is not below the vocabulary's size {self.spec.vocab_size}")
        payload = _padded(offsets.tobytes()) + tokens.astype(f"<u{token_bytes}").tobytes()
        if flags & FLAG_LOSS_MASK:
            masks = [np.ones(len(t), bool) if m is None else m for t, m in zip(self.tokens, self.in_loss)]
            payload = _padded(payload) + np.packbits(np.concatenate(masks), bitorder="little").tobytes()
        head = HEADER.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            token_bytes,
            flags,
            len(tokens),
            len(self.lengths),
            self.spec.vocab_size,
            HEADER_BYTES + len(payload),
            self.spec.bos_id,
            self.spec.eos_id,
            self.spec.tokenizer_hash,
            hashlib.sha256(payload).digest(),
        )
        with open(path, "wb") as file:
            file.write(head + hashlib.sha256(head).digest())
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())


def _padded(data):
    return data + bytes(-len(data) % ALIGNMENT)


def read(path):
    """(header as a dict, documents as arrays, loss masks as bool arrays or None). For tests and small tools."""
    data = Path(path).read_bytes()
    names = (
        "magic",
        "version",
        "header_bytes",
        "token_bytes",
        "flags",
        "token_count",
        "document_count",
        "vocab_size",
        "file_bytes",
        "bos_id",
        "eos_id",
        "tokenizer_hash",
        "payload_hash",
    )
    header = dict(zip(names, HEADER.unpack_from(data)))
    if header["magic"] != MAGIC or header["version"] != VERSION or header["file_bytes"] != len(data):
        raise ValueError(f"{path}: not a token shard of version {VERSION}, or cut short")
    if hashlib.sha256(data[HEADER_BYTES:]).digest() != header["payload_hash"]:
        raise ValueError(f"{path}: the payload does not have the hash that its header gives")
    documents, tokens = header["document_count"], header["token_count"]
    offsets = np.frombuffer(data, "<u8", documents + 1, HEADER_BYTES).astype(np.int64)
    at = HEADER_BYTES + len(_padded(bytes(offsets.nbytes)))
    ids = np.frombuffer(data, f"<u{header['token_bytes']}", tokens, at)
    masks = None
    if header["flags"] & FLAG_LOSS_MASK:
        at += len(_padded(bytes(ids.nbytes)))
        bits = np.unpackbits(np.frombuffer(data, np.uint8, -1, at), bitorder="little")[:tokens].astype(bool)
        masks = np.split(bits, offsets[1:-1])
    return header, np.split(ids, offsets[1:-1]), masks


class ShardFolder:
    """Writes documents as shards of at most `shard_tokens` tokens under temporary names; finish() renames them all."""

    def __init__(self, folder, spec, shard_tokens, overwrite):
        self.folder = Path(folder)
        self.spec = spec
        self.shard_tokens = shard_tokens
        self.overwrite = overwrite
        self.written = []
        self.documents = self.tokens = self.tokens_in_loss = 0
        if self.folder.exists() and not self.folder.is_dir():
            raise FileExistsError(f"{folder}: expected a folder, found a file")
        if self._old() and not overwrite:
            raise FileExistsError(f"{folder}: holds token shards already; --overwrite replaces them")
        self.created = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.shard = Shard(spec)

    def _old(self):
        return sorted(self.folder.glob(f"*{EXTENSION}"))

    def add(self, tokens, in_loss):
        if self.shard.token_count and self.shard.token_count + len(tokens) > self.shard_tokens:
            self._flush()
        self.shard.add(tokens, in_loss)
        self.documents += 1
        self.tokens += len(tokens)
        self.tokens_in_loss += len(tokens) if in_loss is None else int(in_loss.sum())

    def _flush(self):
        if self.shard.lengths:
            path = self.folder / f".shard-{len(self.written):05d}.{os.getpid()}.tmp"
            self.written.append(path)
            self.shard.write(path)
            self.shard = Shard(self.spec)

    def flush(self):
        """Everything is on disk, still under temporary names."""
        self._flush()

    def finish(self):
        for path in self._old():
            path.unlink()
        names = [self.folder / f"shard-{index:05d}{EXTENSION}" for index in range(len(self.written))]
        for temporary, name in zip(self.written, names):
            temporary.rename(name)
        self.written = []
        return names

    def abort(self):
        for path in self.written:
            path.unlink(missing_ok=True)
        if self.created and not any(self.folder.iterdir()):
            self.folder.rmdir()
