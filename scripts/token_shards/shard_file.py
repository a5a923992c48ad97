"""The token shard file, versions 1 to 4. docs/data.md describes every byte; data/shard_format.h is the same in C++."""

import hashlib
import os
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .errors import BadDocument

MAGIC = b"DISTTOKS"
VERSION = 1
TEACHER_VERSION = 2  # of a file whose documents have texts of the teacher's own
NAMED_VERSION = 3  # of a file whose documents name their teachers
TOKENIZER_VERSION = 4  # of a file whose teacher's texts have the ids of another tokenizer
HEADER_BYTES = 256
FLAG_LOSS_MASK = 1
FLAG_TEACHER_STREAM = 2
FLAG_TEACHER_NAMES = 4
FLAG_TEACHER_TOKENIZER = 8
TEACHER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_NAMES = 255
ALIGNMENT = 64
EXTENSION = ".dtok"
# magic, version, header_bytes, token_bytes, flags, tokens, documents, vocab_size, file_bytes, bos, eos, two hashes,
# teacher tokens, bytes of the teachers' names, the teacher's vocab_size and tokenizer hash, reserved
HEADER = struct.Struct("<8sIIIIQQQQqq32s32sQQQ32s32x")


@dataclass(frozen=True)
class ShardSpec:
    vocab_size: int  # largest id + 1
    tokenizer_hash: bytes
    bos_id: int = -1
    eos_id: int = -1
    teacher_vocab_size: int = 0  # of a teacher with a tokenizer of its own; 0: it has the same
    teacher_tokenizer_hash: bytes = bytes(32)


@dataclass
class _Stream:
    """Tokens of documents, one after the other."""

    lengths: list = field(default_factory=list)
    tokens: list = field(default_factory=list)  # arrays
    in_loss: list = field(default_factory=list)  # bool arrays or None (all tokens), one for each of `tokens`
    token_count: int = 0

    def add(self, tokens, in_loss):
        self.lengths.append(len(tokens))
        self.tokens.append(tokens)
        self.in_loss.append(in_loss)
        self.token_count += len(tokens)

    def check_ids(self, path, vocab_size):
        largest = max((int(tokens.max()) for tokens in self.tokens if len(tokens)), default=0)
        if largest >= vocab_size:
            raise ValueError(f"{path}: id {largest} is not below the vocabulary's size {vocab_size}")

    def sections(self, token_bytes, with_mask):
        """The bytes of its offsets, tokens and, if asked for, loss mask."""
        offsets = np.zeros(len(self.lengths) + 1, dtype="<u8")
        np.cumsum(self.lengths, out=offsets[1:])
        yield offsets.tobytes()
        yield np.concatenate(self.tokens).astype(f"<u{token_bytes}").tobytes()
        if with_mask:
            masks = [np.ones(len(t), bool) if m is None else m for t, m in zip(self.tokens, self.in_loss)]
            yield np.packbits(np.concatenate(masks), bitorder="little").tobytes()


_NO_TEACHER = (np.zeros(0, np.uint32), np.zeros(0, bool))


@dataclass
class Shard:
    """A shard in memory: documents are appended, then all of it is written at once."""

    spec: ShardSpec
    student: _Stream = field(default_factory=_Stream)
    teacher: _Stream = field(default_factory=_Stream)
    teacher_names: list = field(default_factory=list)  # for each document; "": it names none

    @property
    def documents(self):
        return len(self.student.lengths)

    @property
    def token_count(self):
        return self.student.token_count + self.teacher.token_count

    def add(self, tokens, in_loss, teacher=None, teacher_name=""):
        """`in_loss`: a bool array, or None for all tokens. `teacher`: (tokens, in_loss) of the text that the teacher
        reads instead, whose ids in the loss must be the document's ids in the loss, in the same order. `teacher_name`:
        of the teacher that the document names; "": none. BadDocument: the ids are not the same. The ids of a teacher's
        own tokenizer are not compared (two_tokenizers.py)."""
        if teacher is not None and len(teacher[0]) and not self.spec.teacher_vocab_size:
            check_alignment(tokens, in_loss, *teacher)
        self.student.add(tokens, in_loss)
        self.teacher.add(*(_NO_TEACHER if teacher is None else teacher))
        self.teacher_names.append(teacher_name)

    def write(self, path):
        other = self.spec.teacher_vocab_size if self.teacher.token_count else 0
        token_bytes = 2 if max(self.spec.vocab_size, other) <= 65536 else 4
        flags = FLAG_LOSS_MASK if any(mask is not None for mask in self.student.in_loss) else 0
        if self.teacher.token_count:
            flags = FLAG_LOSS_MASK | FLAG_TEACHER_STREAM
        payload = bytearray()
        for stream in (self.student, self.teacher) if flags & FLAG_TEACHER_STREAM else (self.student,):
            stream.check_ids(path, other if other and stream is self.teacher else self.spec.vocab_size)
            for section in stream.sections(token_bytes, flags & FLAG_LOSS_MASK):
                payload += bytes(-len(payload) % ALIGNMENT) + section
        version = TEACHER_VERSION if flags & FLAG_TEACHER_STREAM else VERSION
        named, names = self._names(path)
        if names:
            version, flags = NAMED_VERSION, flags | FLAG_TEACHER_NAMES
            for section in (named, names):
                payload += bytes(-len(payload) % ALIGNMENT) + section
        if other:
            version, flags = TOKENIZER_VERSION, flags | FLAG_TEACHER_TOKENIZER
        head = HEADER.pack(
            MAGIC,
            version,
            HEADER_BYTES,
            token_bytes,
            flags,
            self.student.token_count,
            self.documents,
            self.spec.vocab_size,
            HEADER_BYTES + len(payload),
            self.spec.bos_id,
            self.spec.eos_id,
            self.spec.tokenizer_hash,
            hashlib.sha256(payload).digest(),
            self.teacher.token_count,
            len(names),
            other,
            self.spec.teacher_tokenizer_hash if other else bytes(32),
        )
        with open(path, "wb") as file:
            file.write(head + hashlib.sha256(head).digest())
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())

    def _names(self, path):
        """(a byte for each document, the names)"""
        names = [name for name in dict.fromkeys(self.teacher_names) if name]
        wrong = next((name for name in names if not TEACHER_NAME.fullmatch(name)), None)
        if wrong is not None or len(names) > MOST_NAMES:
            found = f"{len(names)} names" if wrong is None else repr(wrong)
            raise ValueError(
                f"{path}: expected at most {MOST_NAMES} names of teachers, of letters, digits and _.-, found {found}"
            )
        numbers = {name: number for number, name in enumerate(names, 1)} | {"": 0}
        return bytes(numbers[name] for name in self.teacher_names), "\n".join(names).encode()


def check_alignment(tokens, in_loss, teacher_tokens, teacher_in_loss):
    """BadDocument: the ids in the loss differ from the ids that are marked in the teacher's text."""
    reason = "the teacher's completion differs from the student's"
    if teacher_in_loss is None or len(teacher_in_loss) != len(teacher_tokens):
        found = "none" if teacher_in_loss is None else len(teacher_in_loss)
        raise ValueError(f"a teacher's text of {len(teacher_tokens)} tokens: expected as many marks, found {found}")
    own_at = np.arange(len(tokens)) if in_loss is None else np.flatnonzero(in_loss)
    teacher_at = np.flatnonzero(teacher_in_loss)
    own, its = np.asarray(tokens)[own_at], np.asarray(teacher_tokens)[teacher_at]
    shared = min(len(own), len(its))
    different = np.flatnonzero(own[:shared] != its[:shared])
    if len(different):
        at = int(different[0])
        raise BadDocument(
            reason,
            f"token {at} of the completion is id {own[at]} in the student's text (token {own_at[at]}) and id {its[at]} "
            f"in the teacher's (token {teacher_at[at]})",
        )
    if len(own) != len(its):
        raise BadDocument(
            reason, f"the completion has {len(own)} tokens in the student's text and {len(its)} in the teacher's"
        )


_NAMES = (
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
    "teacher_token_count",
    "teacher_name_bytes",
    "teacher_vocab_size",
    "teacher_tokenizer_hash",
)


class _Sections:
    """Reads the sections of a shard's bytes, one after the other."""

    def __init__(self, data):
        self.data, self.at = data, HEADER_BYTES

    def take(self, dtype, count):
        section = np.frombuffer(self.data, dtype, count, self.at)
        self.at += section.nbytes + -section.nbytes % ALIGNMENT
        return section

    def stream(self, header, tokens, with_mask):
        """(documents, their masks or None)"""
        offsets = self.take("<u8", header["document_count"] + 1).astype(np.int64)
        documents = np.split(self.take(f"<u{header['token_bytes']}", tokens), offsets[1:-1])
        if not with_mask:
            return documents, None
        bits = np.unpackbits(self.take(np.uint8, (tokens + 7) // 8), bitorder="little")[:tokens].astype(bool)
        return documents, np.split(bits, offsets[1:-1])


def _read_sections(path):
    data = Path(path).read_bytes()
    header = dict(zip(_NAMES, HEADER.unpack_from(data)))
    known = header["magic"] == MAGIC and VERSION <= header["version"] <= TOKENIZER_VERSION
    if not known or header["file_bytes"] != len(data):
        raise ValueError(f"{path}: not a token shard of version {VERSION} to {TOKENIZER_VERSION}, or cut short")
    if hashlib.sha256(data[HEADER_BYTES:]).digest() != header["payload_hash"]:
        raise ValueError(f"{path}: the payload does not have the hash that its header gives")
    sections = _Sections(data)
    student = sections.stream(header, header["token_count"], header["flags"] & FLAG_LOSS_MASK)
    return header, student, sections


def read(path):
    """(header as a dict, documents as arrays, loss masks as bool arrays or None). For tests and small tools."""
    header, student, _ = _read_sections(path)
    return header, *student


def read_teacher(path):
    """What the teacher reads: for each document (tokens, bool array in_loss), or None where the document has no text
    of the teacher's own. For tests and small tools."""
    header, student, sections = _read_sections(path)
    if not header["flags"] & FLAG_TEACHER_STREAM:
        return [None] * len(student[0])
    teacher = sections.stream(header, header["teacher_token_count"], True)
    return [(tokens, mask) if len(tokens) else None for tokens, mask in zip(*teacher)]


def read_teacher_names(path):
    """The name of the teacher of each document; "": the document names none. For tests and small tools."""
    header, student, sections = _read_sections(path)
    if not header["flags"] & FLAG_TEACHER_NAMES:
        return [""] * len(student[0])
    if header["flags"] & FLAG_TEACHER_STREAM:
        sections.stream(header, header["teacher_token_count"], True)
    named = sections.take(np.uint8, header["document_count"])
    names = ["", *bytes(sections.take(np.uint8, header["teacher_name_bytes"])).decode().split("\n")]
    return [names[number] for number in named]
