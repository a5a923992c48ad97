"""A text in the tokens of two tokenizers: what the bytes of each token are, whether two splittings are of the same
text, and where both have a boundary. data/text_alignment.h is the same in C++, which compares the texts once more."""

import json
from dataclasses import dataclass

import numpy as np

from .errors import BadDocument, InputError

REASON = "the teacher's tokenizer changes the text in another way"


def _alphabet():
    """{character: byte} of GPT-2's byte-level tokenizers."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _alphabet()


def _byte_level(token):
    if all(character in _ALPHABET for character in token):
        return bytes(_ALPHABET[character] for character in token)
    return token.encode()


def _fallback_byte(token):
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            return None
    return None


class TokenBytes:
    """The bytes of each token of a tokenizer; a special token has none."""

    def __init__(self, tokenizer, file):
        described = json.loads(tokenizer.to_str())
        chain = _decoders(described["decoder"], file)
        kinds = [one["type"] for one in chain]
        self.drops_first_space = any(
            (one["type"] == "Metaspace" and one.get("prepend_scheme", "always") != "never") or one["type"] == "Strip"
            for one in chain
        )
        added = {one["id"]: one for one in described["added_tokens"]}
        self.special = {index: one["content"] for index, one in added.items() if one["special"]}
        self.bytes = [b""] * tokenizer.get_vocab_size(with_added_tokens=True)
        for token, index in tokenizer.get_vocab(with_added_tokens=True).items():
            if index >= len(self.bytes):
                self.bytes.extend([b""] * (index + 1 - len(self.bytes)))
            if index in self.special:
                continue
            byte = _fallback_byte(token) if "ByteFallback" in kinds else None
            if byte is not None:
                self.bytes[index] = byte
            elif "ByteLevel" in kinds:
                self.bytes[index] = _byte_level(token)
            else:
                for one in chain:
                    if one["type"] == "Metaspace":
                        token = token.replace(one["replacement"], " ")
                    elif one["type"] == "Replace":
                        token = token.replace(one["pattern"]["String"], one["content"])
                self.bytes[index] = token.encode()
        self.lengths = np.array([len(one) for one in self.bytes], np.int64)

    def bytes_of(self, index):
        """Those of one token; of an id that is none, none."""
        return self.bytes[index] if index < len(self.bytes) else b""

    def text(self, ids):
        return b"".join([self.bytes[index] for index in ids.tolist()])


def _decoders(decoder, file):
    if decoder is not None and decoder["type"] == "Sequence":
        return [one for each in decoder["decoders"] for one in _decoders(each, file)]
    known = decoder is not None and (
        decoder["type"] in ("ByteLevel", "ByteFallback", "Fuse", "Metaspace")
        or (decoder["type"] == "Replace" and "String" in decoder["pattern"])
        or (decoder["type"] == "Strip" and (decoder["content"], decoder["start"], decoder["stop"]) == (" ", 1, 0))
    )
    if not known:
        raise InputError(
            f"{file}: `decoder`: expected one with which each token has bytes of its own (ByteLevel, Metaspace, "
            f"Replace, ByteFallback, Fuse, Strip of one space at the start), found {json.dumps(decoder)[:120]}"
        )
    return [decoder]


@dataclass(frozen=True)
class TwoTokenizers:
    student: TokenBytes
    teacher: TokenBytes
    part_tokens: int | None = None  # texts that are longer, in one of the tokenizers, are divided

    def check_same_text(self, tokens, in_loss, teacher_tokens, teacher_in_loss, where):
        """BadDocument: the completions are not the same text."""
        own = self._parts(self.student, tokens, in_loss)
        its = self._parts(self.teacher, teacher_tokens, teacher_in_loss)
        if len(own) == len(its):
            for i, (a, b) in enumerate(zip(own, its)):
                more = _spaces(a) - _spaces(b)
                if self.student.drops_first_space and more == 1:
                    own[i] = a[1:]
                elif self.teacher.drops_first_space and more == -1:
                    its[i] = b[1:]
        own, its = b"".join(own), b"".join(its)
        if own != its:
            at = next((i for i, (a, b) in enumerate(zip(own, its)) if a != b), min(len(own), len(its)))
            raise BadDocument(
                REASON,
                f"{where}: {REASON}: from byte {at} of what is learned on it is {_shown(own, at)} in the student's "
                f"tokens and {_shown(its, at)} in the teacher's",
            )

    @staticmethod
    def _parts(known, tokens, in_loss):
        """The texts of the runs of tokens in the loss."""
        at = np.flatnonzero(in_loss)
        runs = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1) if len(at) else []
        return [known.text(tokens[run]) for run in runs]

    def divide(self, own, its, own_before, its_before):
        """(the student's tokens, the teacher's) of each part of a text: parts of at most part_tokens tokens in both,
        those that stand before each part included, which end where both have a token boundary; one part where there is
        no such place. The space that a tokenizer puts before a text is no part of it."""
        own_ends = np.cumsum(self.student.lengths[own])
        its_ends = np.cumsum(self.teacher.lengths[its])
        if len(own_ends) and len(its_ends):
            own_ends, its_ends = own_ends - own_ends[-1], its_ends - its_ends[-1]  # counted from the end of the text
        if self.part_tokens is None or max(len(own) + own_before, len(its) + its_before) <= self.part_tokens:
            return [(own, its)]
        common = np.intersect1d(own_ends, its_ends)
        own_at = np.searchsorted(own_ends, common, side="right")
        its_at = np.searchsorted(its_ends, common, side="right")
        parts, begin, its_begin = [], 0, 0
        while begin < len(own) or its_begin < len(its):
            fits = (own_at <= begin + self.part_tokens - own_before) & (
                its_at <= its_begin + self.part_tokens - its_before
            )
            last = int(np.count_nonzero(fits)) - 1  # both ascend
            if last < 0 or own_at[last] <= begin or its_at[last] <= its_begin:  # a piece that is longer than a part
                after = np.flatnonzero((own_at > begin) & (its_at > its_begin))
                last = int(after[0]) if len(after) else len(common) - 1
            end, its_end = int(own_at[last]), int(its_at[last])
            if last == len(common) - 1:
                end, its_end = len(own), len(its)
            parts.append((own[begin:end], its[its_begin:its_end]))
            begin, its_begin = end, its_end
        return parts


def _spaces(text):
    """How many it begins with."""
    return len(text) - len(text.lstrip(b" "))


def _shown(text, at):
    return repr(text[at : at + 24].decode(errors="backslashreplace")) if at < len(text) else "at its end"
