"""The elements of a JSON array in a file, one after the other, without the whole file in memory."""

import codecs
import json

from .errors import InputError

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


class _Text:
    """The text of a source that has been read and not been used yet; `line` is the number of the line at its start."""

    def __init__(self, source, name):
        self.blocks, self.name = iter(source), name
        self.decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self.text, self.at, self.line, self.ended = "", 0, 1, False

    def more(self, least=1):
        """Reads on until there are at least `least` characters more; False at the end."""
        parts, size = [self.text[self.at :]], 0
        while size < least and not self.ended:
            block = next(self.blocks, None)
            try:
                part = self.decode(block or b"", block is None)
            except UnicodeDecodeError as error:
                raise InputError(f"{self.name}: not UTF-8 after line {self.line}: {error.reason}") from error
            self.ended = block is None
            parts.append(part)
            size += len(part)
        self.text, self.at = "".join(parts), 0
        return size > 0

    def skip_to(self, at):
        self.line += self.text.count("\n", self.at, at)
        self.at = at

    def next_character(self):
        """The next one that is not white space, not passed yet; "" at the end."""
        while True:
            at = self.at
            while at < len(self.text) and self.text[at] in _SPACE:
                at += 1
            self.skip_to(at)
            if at < len(self.text):
                return self.text[at]
            if not self.more():
                return ""


def array_items(source, name):
    """(line, bytes of the element's JSON) of each element. InputError: not an array, or a torn one."""
    text = _Text(source, name)
    if text.next_character() != "[":
        raise InputError(f"{name}: expected an array of records, which begins with [, found {text.next_character()!r}")
    text.skip_to(text.at + 1)
    count = 0
    while True:
        character = text.next_character()
        if character == "]" and count == 0:
            text.skip_to(text.at + 1)
            break
        line = text.line
        yield line, _element(text, count).encode("utf-8", "surrogatepass")
        count += 1
        separator = text.next_character()
        if separator not in (",", "]") or separator == "":
            found = repr(separator) if separator else "the end of the file"
            raise _torn(text, count, f"expected , or ] after element {count}, found {found}")
        text.skip_to(text.at + 1)
        if separator == "]":
            break
    if rest := text.next_character():
        raise _torn(text, count, f"expected nothing after the array, found {rest!r}")


def _element(text, count):
    while True:
        try:
            _, end = _DECODER.raw_decode(text.text, text.at)
        except RecursionError as error:
            raise _torn(text, count, "JSON that is nested too deeply to be a document") from error
        except json.JSONDecodeError as error:
            # It may go on in the part that has not been read; twice as much each time keeps this linear.
            at_end = error.pos + 16 >= len(text.text) or error.msg.startswith("Unterminated string")
            if at_end and text.more(max(1 << 20, len(text.text) - text.at)):
                continue
            raise _torn(text, count, f"not valid JSON: {error.msg}") from error
        if end == len(text.text) and text.more():  # a number may go on
            continue
        element = text.text[text.at : end]
        text.skip_to(end)
        return element


def _torn(text, count, what):
    return InputError(f"{text.name}:{text.line}: {what} (the {count:,} elements before could be read)")
