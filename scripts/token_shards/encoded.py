"""The documents of a part of the input, as arrays: what worker processes return and what the journal keeps."""

import json
import os
import struct
import zlib
from dataclasses import dataclass, field

import numpy as np

_FRAME = struct.Struct("<4sQI")  # magic, bytes of the payload, its CRC-32
_MAGIC = b"DTJ1"


@dataclass
class Encoded:
    documents: list = field(
        default_factory=list
    )  # (tokens, in_loss or None, teacher or None, name of the teacher): add's
    records: int = 0  # that were read, bad ones included
    empty: int = 0  # records without a token
    no_assistant: int = 0  # conversations without an assistant's token
    not_wanted: int = 0  # records of which a key says that nothing of them is learned
    bad: list = field(default_factory=list)  # (reason, message) of the records that were left out
    templates: dict = field(default_factory=dict)  # name of a chat template: records that it has rendered
    formats: dict = field(default_factory=dict)  # name: records of this format
    unused: dict = field(default_factory=dict)  # path of a key that was not used: [records, where the first is]
    special: dict = field(default_factory=dict)  # a special token that stands in texts: the same
    packed: dict | None = None  # the documents as pack_documents() returns them, if they came so

    def meta(self):
        names = ("records", "empty", "no_assistant", "not_wanted", "bad", "templates", "formats", "unused", "special")
        return {name: getattr(self, name) for name in names}

    def arrays(self):
        return pack_documents(self.documents) if self.packed is None else self.packed

    @classmethod
    def of(cls, meta, arrays):
        return cls(unpack_documents(arrays), **meta, packed=arrays)

    def __reduce__(self):  # travels between processes as few large arrays
        return Encoded.of, (self.meta(), self.arrays())


def pack_documents(documents):
    """{name: array} with all documents, one after the other."""
    none = np.zeros(0, np.uint32), np.zeros(0, bool)
    masks = [document[1] for document in documents if document[1] is not None]
    teachers = [none if document[2] is None else document[2] for document in documents]
    names = "\n".join(document[3] for document in documents).encode()
    return {
        "lengths": np.array([len(document[0]) for document in documents], np.int64),
        "tokens": _joined([document[0] for document in documents], np.uint32),
        "masked": np.array([document[1] is not None for document in documents], bool),
        "in_loss": _joined(masks, bool),
        "teacher_lengths": np.array([len(tokens) for tokens, _ in teachers], np.int64),
        "teacher_tokens": _joined([tokens for tokens, _ in teachers], np.uint32),
        "teacher_in_loss": _joined([in_loss for _, in_loss in teachers], bool),
        "teacher_names": np.frombuffer(names, np.uint8),
    }


def unpack_documents(arrays):
    documents = []
    at = mask_at = teacher_at = 0
    names = bytes(arrays["teacher_names"]).decode().split("\n")
    for length, masked, teacher_length, name in zip(
        arrays["lengths"].tolist(), arrays["masked"].tolist(), arrays["teacher_lengths"].tolist(), names
    ):
        in_loss = teacher = None
        if masked:
            in_loss = arrays["in_loss"][mask_at : mask_at + length]
            mask_at += length
        if teacher_length:
            part = slice(teacher_at, teacher_at + teacher_length)
            teacher = arrays["teacher_tokens"][part], arrays["teacher_in_loss"][part]
            teacher_at += teacher_length
        documents.append((arrays["tokens"][at : at + length], in_loss, teacher, name))
        at += length
    return documents


def _joined(arrays, dtype):
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


def write_frame(file, meta, arrays):
    """Appends a frame, `meta` as JSON and the arrays, with a checksum: a reader knows a torn one."""
    head = json.dumps({"meta": meta, "arrays": {name: [array.dtype.str, array.size] for name, array in arrays.items()}})
    parts = [struct.pack("<Q", len(head.encode())), head.encode()]
    parts += [np.ascontiguousarray(array).data.cast("B") for array in arrays.values() if array.size]
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    file.write(_FRAME.pack(_MAGIC, sum(map(len, parts)), crc))
    for part in parts:
        file.write(part)


def read_frame(file):
    """(meta, arrays), or None at the end of the file or where the rest is torn."""
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    magic, length, crc = _FRAME.unpack(head)
    if magic != _MAGIC or file.tell() + length > os.fstat(file.fileno()).st_size:
        return None
    payload = file.read(length)
    if zlib.crc32(payload) != crc:
        return None
    at = 8 + struct.unpack_from("<Q", payload)[0]
    described = json.loads(payload[8:at])
    arrays = {}
    for name, (dtype, size) in described["arrays"].items():
        arrays[name] = np.frombuffer(payload, dtype, size, at)
        at += arrays[name].nbytes
    return described["meta"], arrays
