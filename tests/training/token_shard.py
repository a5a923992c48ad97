"""Token shards (version 1, see data/shard_format.h) as arrays.

This reader and writer share no code with scripts/token_shards, so that the tests can compare the two.
"""

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HEADER = struct.Struct("<8s4I4Q2q32s32s88x")  # without the closing hash
ALIGNMENT = 64


@dataclass
class Document:
    tokens: np.ndarray  # int64
    in_loss: np.ndarray  # bool: whether the loss is taken on this token as a target


def padded(data):
    return data + b"\0" * (-len(data) % ALIGNMENT)


def write_shard(path, documents, vocab_size, tokenizer_hash=bytes(32)):
    """`documents`: sequences of (tokens, in_loss)."""
    lengths = [len(tokens) for tokens, _ in documents]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("<u8")
    tokens = np.concatenate([np.asarray(tokens) for tokens, _ in documents]).astype("<u2")
    mask = np.packbits(np.concatenate([np.asarray(in_loss, dtype=bool) for _, in_loss in documents]), bitorder="little")
    payload = padded(offsets.tobytes()) + padded(tokens.tobytes()) + mask.tobytes()
    header = HEADER.pack(
        b"DISTTOKS",
        1,
        256,
        2,
        1,
        len(tokens),
        len(lengths),
        vocab_size,
        256 + len(payload),
        -1,
        -1,
        tokenizer_hash,
        hashlib.sha256(payload).digest(),
    )
    with open(path, "wb") as file:
        file.write(header + hashlib.sha256(header).digest() + payload)


def read_shard(path):
    """The documents of a shard, as a list of Document."""
    data = Path(path).read_bytes()
    (magic, version, header_bytes, token_bytes, flags, token_count, document_count, _, file_bytes, *_) = (
        HEADER.unpack_from(data)
    )
    if (magic, version, header_bytes, file_bytes) != (b"DISTTOKS", 1, 256, len(data)):
        raise ValueError(f"{path}: not a token shard of version 1")
    offsets = np.frombuffer(data, "<u8", document_count + 1, header_bytes).astype(np.int64)
    tokens_at = header_bytes + -(-8 * (document_count + 1) // ALIGNMENT) * ALIGNMENT
    tokens = np.frombuffer(data, f"<u{token_bytes}", token_count, tokens_at).astype(np.int64)
    in_loss = np.ones(token_count, dtype=bool)
    if flags & 1:
        mask_at = tokens_at + -(-token_bytes * token_count // ALIGNMENT) * ALIGNMENT
        bits = np.frombuffer(data, np.uint8, (token_count + 7) // 8, mask_at)
        in_loss = np.unpackbits(bits, bitorder="little")[:token_count].astype(bool)
    return [Document(tokens[begin:end], in_loss[begin:end]) for begin, end in zip(offsets, offsets[1:])]
