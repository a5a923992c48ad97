"""Tokenises texts by remembering the ids of pieces: several times as fast as the tokenizer itself, with the same ids.

A byte-level BPE tokenizer first splits a text into pieces (words with the space before them, numbers, punctuation,
white space) by a regular expression, and merges bytes only within a piece. The ids of a text are therefore the ids of
its pieces, one after the other. Most of the tokenizer's time is the splitting. Here Python's `re` splits the text, and
the tokenizer sees every distinct piece once.

The ids are the tokenizer's own in every case, because only what is provably the same is split here:
- The splitting is one of those in `splitting_of`; other tokenizers are called on whole texts.
- The expressions here are for printable ASCII, tabs and line ends, where they need no Unicode tables. All other text is
  given to the tokenizer together with its surroundings, up to a space after a printable ASCII character. All of the
  splittings begin a new piece there, whatever is on the two sides.
- A text that contains one of the tokenizer's added tokens is given to it whole.
"""

import json
import re
import unicodedata

import numpy as np

# The pieces are forgotten when there are more than these: some 100 MB.
MAX_PIECES = 400_000
MAX_CHARACTERS = 8_000_000

# What the expressions of the tokenizers are on the characters \t \n \r and " " to "~".
_LETTERS, _SPACE, _OTHER = "A-Za-z", r"\t\n\r ", r"!-/:-@\[-`{-~"
_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?[{_LETTERS}]+| ?[0-9]+| ?[{_OTHER}]+|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
# Digits are split off one by one before; white space before a digit is at the end of its part.
_GPT2_DIGITS = rf"[0-9]|'s|'t|'re|'ve|'m|'ll|'d| ?[{_LETTERS}]+| ?[{_OTHER}]+|[{_SPACE}]+(?![^{_SPACE}0-9])|[{_SPACE}]+"
_LLAMA3 = (
    rf"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[\t {_OTHER}]?[{_LETTERS}]+|[0-9]{{1,3}}"
    rf"| ?[{_OTHER}]+[\r\n]*|[{_SPACE}]*[\r\n]+|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
)
_QWEN2 = _LLAMA3.replace("[0-9]{1,3}", "[0-9]")

# The expressions as tokenizer.json has them, with the digits left open.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {_SPLIT.replace("DIGITS", r"\p{N}{1,3}"): _LLAMA3, _SPLIT.replace("DIGITS", r"\p{N}"): _QWEN2}

_NOT_PLAIN = re.compile(r"[^\t\n\r -~]")
_SAFE_END = re.compile(r"(?<=[!-~]) ")
_PRINTABLE = frozenset(map(chr, range(0x21, 0x7F)))


def splitting_of(tokenizer_json):
    """The expression that splits plain text into pieces as this tokenizer does, or None: not known to be the same."""
    model, normalizer = tokenizer_json["model"], tokenizer_json.get("normalizer")
    if model.get("type") != "BPE" or model.get("dropout"):
        return None
    steps = normalizer["normalizers"] if normalizer and normalizer["type"] == "Sequence" else [normalizer]
    if any(step is not None and step["type"] != "NFC" for step in steps):
        return None
    splitter = tokenizer_json.get("pre_tokenizer") or {}
    parts = splitter["pretokenizers"] if splitter.get("type") == "Sequence" else [splitter]
    *before, last = parts or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True) or len(before) > 1:
        return None
    whole_words = last.get("use_regex", True)
    if not before:
        return _GPT2 if whole_words else None
    first = before[0]
    if first["type"] == "Digits":
        return _GPT2_DIGITS if whole_words and first.get("individual_digits") else None
    if first["type"] == "Split" and not whole_words and not first.get("invert"):
        pattern = first["pattern"].get("Regex") if first.get("behavior") == "Isolated" else None
        return _SPLITS.get(pattern)
    return None


def _added_tokens(tokenizer_json):
    """An expression that finds what may become an added token; None: there are none. Of a text it is to be asked twice:
    as it is, and composed (NFC), since a normalizer may compose both text and token."""
    texts = {added["content"] for added in tokenizer_json.get("added_tokens") or [] if added["content"]}
    texts |= {unicodedata.normalize("NFC", text) for text in texts}
    texts = sorted(texts, key=len, reverse=True)
    # The characters that normalisation (NFC) turns into ASCII might make one: ; ` and K.
    return re.compile("|".join([*map(re.escape, texts), "[\u037e\u1fef\u212a]"])) if texts else None


class _Pieces(dict):
    """piece -> its number. A new piece gets the next number and is kept in `new`."""

    def __init__(self):
        super().__init__()
        self.new = []
        self.characters = 0

    def __missing__(self, piece):
        number = self[piece] = len(self)
        self.new.append(piece)
        self.characters += len(piece)
        return number


class PieceCache:
    """`encode(texts)` returns the ids of each text as an array, without special tokens around it."""

    def __init__(self, tokenizer, expression=None, added_tokens=None):
        self.tokenizer = tokenizer
        self.find = re.compile(expression).findall if expression else None
        self.added_tokens = added_tokens
        self._clear()

    @classmethod
    def of(cls, tokenizer):
        described = json.loads(tokenizer.to_str())
        try:
            return cls(tokenizer, splitting_of(described), _added_tokens(described))
        except (KeyError, TypeError):  # a form of tokenizer.json that is not known here
            return cls(tokenizer)

    def _clear(self):
        self.pieces = _Pieces()
        self.first = np.zeros(1, np.int64)  # where the ids of each piece begin in `ids`; one more at the end
        self.ids = np.zeros(0, np.uint32)

    def encode(self, texts):
        if self.find is None:
            return [_array(encoding) for encoding in self._whole(texts)]
        if len(self.pieces) > MAX_PIECES or self.pieces.characters > MAX_CHARACTERS:
            self._clear()
        numbers = [self._numbers(text) for text in texts]
        self._add_new()
        out = [None if which is None else self._gather(which) for which in numbers]
        whole = [index for index, which in enumerate(numbers) if which is None]
        for index, encoding in zip(whole, self._whole([texts[index] for index in whole])):
            out[index] = _array(encoding)
        return out

    def _whole(self, texts):
        return self.tokenizer.encode_batch_fast(texts, add_special_tokens=False) if texts else []

    def _numbers(self, text):
        """The numbers of the text's pieces; None: the tokenizer must see the whole text."""
        if self.added_tokens is not None and self.added_tokens.search(text):
            return None
        other = _NOT_PLAIN.search(text)
        if other is not None and self.added_tokens is not None:
            composed = unicodedata.normalize("NFC", text)
            if composed != text and self.added_tokens.search(composed):
                return None
        pieces = self.find(text) if other is None else self._mixed(text, other)
        return np.fromiter(map(self.pieces.__getitem__, pieces), np.int64, len(pieces))

    def _mixed(self, text, other):
        """The pieces of a text in which `other` is the first character that is not plain."""
        pieces, at = [], 0
        while other is not None:
            begin = text.rfind(" ", at, other.start())
            while begin > at and text[begin - 1] not in _PRINTABLE:
                begin = text.rfind(" ", at, begin)
            begin = max(begin, at)
            end = _SAFE_END.search(text, other.end())
            end = len(text) if end is None else end.start()
            if begin > at:
                pieces += self.find(text[at:begin])
            pieces.append(text[begin:end])
            at = end
            other = _NOT_PLAIN.search(text, at)
        if at < len(text):
            pieces += self.find(text[at:])
        return pieces

    def _add_new(self):
        new, self.pieces.new = self.pieces.new, []
        if not new:
            return
        ids = [encoding.ids for encoding in self._whole(new)]
        ends = np.cumsum([len(piece) for piece in ids]) + len(self.ids)
        self.first = np.concatenate([self.first, ends])
        self.ids = np.concatenate([self.ids, np.array([one for piece in ids for one in piece], np.uint32)])

    def _gather(self, numbers):
        """The ids of the pieces, one after the other."""
        begins = self.first[numbers]
        lengths = self.first[numbers + 1] - begins
        ends = np.cumsum(lengths)
        if not len(ends):
            return np.zeros(0, np.uint32)
        shift = np.repeat(begins - (ends - lengths), lengths)
        return self.ids[shift + np.arange(ends[-1])]


def _array(encoding):
    return np.array(encoding.ids, dtype=np.uint32)
