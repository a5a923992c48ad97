"""A part of a teacher's cache. docs/teacher_cache.md describes every byte; trainer/teacher_cache/part_file.h is the
same in C++."""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

import xxhash

MAGIC, FOOT_MAGIC, VERSION = b"DISTTCHR", b"DISTTEND", 1
HEAD = struct.Struct("<8sIIQQ32s")
STRETCH = struct.Struct("<IIQIIQ")
FOOT = struct.Struct("<QQQQ16x8s")  # without the closing checksum


def checksum(data):
    return xxhash.xxh3_64_intdigest(data)


@dataclass(frozen=True)
class Stretch:
    """The rows of tokens [begin, begin + tokens) of a document that have a target."""

    shard: int
    document: int
    begin: int
    tokens: int
    rows: bytes


def write_part(path, cache_id, part, row_bytes, stretches):
    """Writes all stretches to "<path>.partial", syncs it, and gives it its name."""
    partial = Path(f"{path}.partial")
    head = HEAD.pack(MAGIC, VERSION, HEAD.size, row_bytes, part, cache_id)
    table, rows = bytearray(), 0
    with open(partial, "wb") as file:
        file.write(head)
        for stretch in stretches:
            count = len(stretch.rows) // row_bytes
            file.write(stretch.rows)
            table += STRETCH.pack(
                stretch.shard, stretch.document, stretch.begin, stretch.tokens, count, checksum(stretch.rows)
            )
            rows += count
        size = HEAD.size + rows * row_bytes + len(table) + FOOT.size + 8
        foot = FOOT.pack(rows, len(table) // STRETCH.size, size, checksum(table), FOOT_MAGIC)
        file.write(table + foot + struct.pack("<Q", checksum(head + foot)))
        file.flush()
        os.fsync(file.fileno())
    os.rename(partial, path)
