"""Rows of a teacher's cache read in Python, by docs/teacher_cache.md alone."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HEAD, FOOT, STRETCH = struct.Struct("<8sIIQQ32s"), struct.Struct("<QQQQ16x8sQ"), struct.Struct("<IIQIIQ")
STRETCH_IN_STREAM = struct.Struct("<IIQIIQQ")  # of version 2, with its context


@dataclass
class Rows:
    """What the cache has of each token with a target, by (shard, document, first token of the stretch, tokens)."""

    manifest: dict
    stretches: dict  # -> list of rows


def read_ids(row, count, columns):
    size = 2 if columns < 0xFFFF else 3 if columns < 0xFFFFFF else 4
    ids = [int.from_bytes(row[i * size : (i + 1) * size], "little") for i in range(count)]
    return [-1 if each == (1 << 8 * size) - 1 else each for each in ids], count * size


def read_row(row, manifest):
    """topk: (ids, log-probabilities, tail); sampled: (ids, weights)."""
    count = manifest["entries"]
    ids, at = read_ids(row, count, manifest["columns"])
    if manifest["kind"] == "topk":
        dtype = {"float16": np.float16, "float32": np.float32}[manifest["encoding"]]
        values = np.frombuffer(row, dtype, count, at).astype(np.float64)
        (tail,) = struct.unpack("<f", row[-4:])
        return ids, values, tail
    if manifest["exponent"] == 1:
        return ids, np.full(count, 1 / count)
    return ids, np.frombuffer(row, np.float32, count, at).astype(np.float64)


def read_table(data):
    """The stretches of a part: (shard, document, begin, tokens, rows, checksum) and, in version 2, the context."""
    head = HEAD.unpack_from(data)
    rows, count, size, *_ = FOOT.unpack_from(data, len(data) - FOOT.size)
    assert size == len(data)
    entry = {1: STRETCH, 2: STRETCH_IN_STREAM}[head[1]]
    table = HEAD.size + rows * head[3]
    return [entry.unpack_from(data, table + i * entry.size) for i in range(count)]


def read_rows(folder):
    manifest = json.loads((Path(folder) / "manifest.json").read_text())
    stretches = {}
    for path in sorted(Path(folder).glob("part-*.dtc")):
        data = path.read_bytes()
        width = HEAD.unpack_from(data)[3]
        at = HEAD.size
        for shard, document, begin, tokens, own, *_ in read_table(data):
            stretches[shard, document, begin, tokens] = [
                read_row(data[at + r * width : at + (r + 1) * width], manifest) for r in range(own)
            ]
            at += own * width
    return Rows(manifest, stretches)
