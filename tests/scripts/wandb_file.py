"""Reads what Weights & Biases writes offline: a log in LevelDB's format, whose records are its own protocol buffers."""

import json
import struct

BLOCK = 32768
HEADER = 7  # of the file, and of each piece: checksum, length, type


def payloads(path):
    """The records' bytes. A record that does not fit into the rest of a block is in pieces: first, middle, last."""
    data = path.read_bytes()
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0:  # the rest of the block is empty
            at += left
            continue
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or last
            yield parts
            parts = b""


def records(path):
    from wandb.proto.wandb_internal_pb2 import Record

    for payload in payloads(path):
        record = Record()
        record.ParseFromString(payload)
        yield record


def history(path):
    """The rows of the run's history, {name: value}."""
    for record in records(path):
        if record.HasField("history"):
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
