"""Completions, written in the tokens of one tokenizer, in those of another one: the same bytes (docs/onpolicy.md)."""

import codecs
import re
from dataclasses import dataclass

import numpy as np

from token_shards.tokenizer_files import TokenizerFiles
from token_shards.two_tokenizers import TokenBytes

_INVALID = re.compile("[\udc80-\udcff]")  # bytes that are no text, as `surrogateescape` gives them


class Unusable(Exception):
    """A completion that cannot be written in the teacher's tokens, and why."""


@dataclass(frozen=True)
class TeacherTokens:
    tokens: int  # of the completion, whose text this is; the rest is an incomplete character
    ids: list


class Retokenizer:
    """`pairs`: [(text of a special token of the student's, of the teacher's)] that stand for the same. Thread-safe."""

    def __init__(self, student, teacher, pairs):
        own_files, its_files = TokenizerFiles.load(student), TokenizerFiles.load(teacher)
        self.tokenizer = its_files.tokenizer()
        self.tokenizer.encode_special_tokens = True  # what the student writes as text is text
        self.own = TokenBytes(own_files.tokenizer(), own_files.file)
        self.its = TokenBytes(self.tokenizer, its_files.file)
        self.partners = _partners(self.own.special, self.its.special, dict(pairs))
        self.byte_ids = {}
        for index, text in enumerate(self.its.bytes):
            if len(text) == 1:
                self.byte_ids.setdefault(text[0], index)

    def __call__(self, completion):
        """TeacherTokens of the student's tokens `completion`."""
        tokens = self._whole_characters(completion)
        ids, text = [], b""
        for token in completion[:tokens]:
            if token in self.own.special:
                ids += self._of_bytes(text)
                text = b""
                if token in self.partners:
                    ids.append(self.partners[token])
            else:
                text += self.own.bytes_of(token)
        ids += self._of_bytes(text)
        return TeacherTokens(tokens, ids)

    def _whole_characters(self, completion):
        """How many of the tokens there are before an incomplete character at the end."""
        begin = len(completion)
        while begin > 0 and completion[begin - 1] not in self.own.special:
            begin -= 1
        end = len(completion)
        while end > begin and _is_incomplete(b"".join(map(self.own.bytes_of, completion[begin:end]))):
            end -= 1
        return end

    def _of_bytes(self, text):
        """The ids of a text. Bytes that are no UTF-8 are tokens of one byte each."""
        ids = []
        decoded = text.decode("utf-8", "surrogateescape")
        for part in re.split(f"({_INVALID.pattern})", decoded):
            if _INVALID.fullmatch(part):
                byte = ord(part) - 0xDC00
                if byte not in self.byte_ids:
                    raise Unusable(f"the byte 0x{byte:02x} is no text, and the teacher has no token for it")
                ids.append(self.byte_ids[byte])
            elif part:
                ids += self._of_text(part)
        return ids

    def _of_text(self, text):
        """The ids of a text by itself: at inference, what is before it ends there. If the tokenizer puts a space before
        a text, a line end stands there, and is taken away again."""
        before = "\n" if self.its.drops_first_space else ""
        before_ids, ids = self._encode(before), self._encode(before + text)
        if ids[: len(before_ids)] == before_ids and self._is(ids[len(before_ids) :], text):
            return ids[len(before_ids) :]
        ids = self._encode(text)
        if self._is(ids, text) or (self.its.drops_first_space and self._is(ids, " " + text)):
            return ids
        raise Unusable(f"the teacher's tokenizer changes the text: {text[:40]!r}")

    def _encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _is(self, ids, text):
        return self.its.text(np.array(ids, np.int64)) == text.encode()


def _is_incomplete(text):
    """Whether a text ends with a part of a character, which may become one."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    decoder.decode(text)
    return decoder.getstate()[0] != b""


def _partners(own, its, pairs):
    """{id of a special token of the student: that of the teacher for the same}, as TextAlignment::make pairs them."""
    by_text = {text: index for index, text in its.items()}
    taken = set(pairs.values())
    partners = {}
    for index, text in own.items():
        partner = pairs.get(text, None if text in taken else text)
        if partner in by_text:
            partners[index] = by_text[partner]
    return partners
