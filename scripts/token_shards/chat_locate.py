"""Finds what the assistant wrote in the rendering of a template that has no marks.

Sentinels, which occur nowhere else, are put into the texts of the messages, at their first and last characters that are
not white space. Without the sentinels, the rendering must be that of the conversation itself: then the template copies
the texts, and the sentinels tell where they stand. Nothing is assumed about the rendering of a part of a conversation.

A turn begins where the generation prompt before its first sentinel ends, and ends with the template's end of a turn
after its last sentinel.
"""

import collections
import itertools
import os
import re

from .chat_content import THINKING_KEYS
from .errors import BadDocument

# Noncharacters of Unicode: an opening one, the numbers of the message and of the text in it, a closing one.
_SENTINEL = re.compile("\ufdd0([\ufde0-\ufde9]+)\ufdea([\ufde0-\ufde9]+)\ufdd1")
_RESERVED = re.compile("[\ufdd0\ufdd1\ufde0-\ufdea]")
_TAG = re.compile(r"(</?think>)")
_TOKEN = re.compile(r"<\|?[^<>\s]+\|?>")
_ADVICE = (
    "Give a template with {% generation %} marks (--chat-template FILE), or take the loss on everything (--loss-on all)"
)


def locate(render, messages, prompt, turn_ends, where):
    """(text, the [begin, end) of each assistant message). `render(messages)` renders; `prompt` is the generation
    prompt of this conversation; `turn_ends` is what `find_turn_ends` returns."""
    text = render(messages)
    if _RESERVED.search(text):
        raise BadDocument(
            "the conversation has noncharacters",
            f"{where}: expected text, found a noncharacter of Unicode (U+FDD0 to U+FDEA)",
        )
    places = _places(render, messages, text, where)
    spans, before = [], 0
    for index, message in enumerate(messages):
        first, last = places.get(index, (None, None))
        if message["role"] == "assistant":
            if first is None:
                raise BadDocument(
                    "an assistant's turn is not in the rendering",
                    f"{where}: messages[{index}]: the text of this turn is not in the rendering of the conversation, "
                    f"so that the assistant's tokens cannot be told apart. {_ADVICE}",
                )
            limit = min((places[i][0] for i in places if i > index), default=len(text))
            begin = _begin(text, message, before, first, prompt)
            if not prompt:
                begin = _begin_after(render, messages[:index], text, before, first, begin)
            end = _end(text, message, last, limit, turn_ends)
            if begin is None or end is None:
                raise BadDocument(
                    "the ends of a tool call are not found",
                    f"{where}: messages[{index}]: neither a generation prompt nor an end of the turn tells where its "
                    f"tool calls {'begin' if begin is None else 'end'}. {_ADVICE}",
                )
            spans.append((begin, end))
        before = max(before, last or 0)
    return text, spans


def find_turn_ends(render):
    """What the template may write after an assistant's content: the end of a turn, without the white space after it.
    Empty where the template does not render the probes, or writes no such end."""
    question, answer = {"role": "user", "content": "question"}, {"role": "assistant", "content": _sentinel(0)}
    ends = []
    for probe in ([question, answer], [question, answer, {"role": "user", "content": _sentinel(1)}]):
        try:
            _, found, after = render(probe).rpartition(_sentinel(0))
            ends.append(after.partition(_sentinel(1))[0] if found else "")
        except BadDocument:
            ends.append("")
    last, middle = ends
    if not middle or not last.strip():
        return [last.rstrip() or last] if last else []
    common = os.path.commonprefix([last, middle])
    if common != last:  # such as <|end|>, after which the conversation has an end of its own
        common = common[: max(common.rfind(end) for end in "\n>]") + 1]
    if not common.strip():  # such as <|return|> and <|end|>
        return [last.rstrip()] + [match[0] for match in [_TOKEN.match(middle)] if match]
    return [common.rstrip()]


def _places(render, messages, text, where):
    """{message: (first character, after the last character)} of the messages that are in the rendering."""
    error = None
    assistants = {index for index, message in enumerate(messages) if message["role"] == "assistant"}
    # Templates look at the texts of questions and tool answers, or for a think tag at the beginning; then fewer
    # sentinels must do.
    for chosen, around_tags in itertools.product((set(range(len(messages))), assistants), (True, False)):
        try:
            marked = [_Marker(i, around_tags).message(m) if i in chosen else m for i, m in enumerate(messages)]
            rendered = render(marked)
        except BadDocument as caught:
            error = caught
            continue
        if _SENTINEL.sub("", rendered) != text:
            continue
        places, removed, seen = {}, 0, collections.Counter()
        for match in _SENTINEL.finditer(rendered):
            at = match.start() - removed
            removed += len(match[0])
            seen[match[0]] += 1
            if seen[match[0]] <= 2:  # one before a text and one after it; later ones are repetitions of the text
                index = int(match[1].translate(_FROM_DIGITS))
                first, last = places.get(index, (at, at))
                places[index] = (min(first, at), max(last, at))
        return places
    raise BadDocument(
        "the assistant's turns cannot be found in the rendering",
        f"{where}: the chat template does more with the texts than to copy them{f' ({error})' if error else ''}, so "
        f"that the assistant's tokens cannot be told apart. {_ADVICE}",
    )


def _begin(text, message, before, first, prompt):
    """Where the generation prompt before the turn ends. Without one, the turn begins with its text; None: with a tool
    call, of which the template writes the beginning."""
    at = text.rfind(prompt, before, first) if prompt else -1
    if at >= 0:  # what stands between the generation prompt and the content is for the model to write
        return at + len(prompt)
    for length in range(len(prompt) - 1, 0, -1):
        # Turns that are not the last may lack the end of the prompt: its think block.
        if prompt[length - 1] not in "\n>]" or "<think>" in prompt[:length]:
            continue
        at = text.rfind(prompt[:length], before, first)
        if at >= 0 and (message.get("tool_calls") or not _TAG.sub("", text[at + length : first]).strip()):
            return at + length
        if at >= 0:
            break
    if message.get("tool_calls"):
        return None
    content = message.get("content") or ""
    space = content[: len(content) - len(content.lstrip())]
    return first - len(space) if text.endswith(space, before, first) else first


def _begin_after(render, before_turn, text, before, first, begin):
    """Of a template without generation prompt: where the rendering of the earlier messages ends, if the sentinels
    allow it."""
    try:
        end = len(prefix) if text.startswith(prefix := render(before_turn)) else -1
    except BadDocument:
        return begin
    return end if before <= end <= first else begin


def _end(text, message, last, limit, turn_ends):
    """After the turn's end token, where the template writes one here. None: not found."""
    for turn_end in turn_ends:
        at = text.find(turn_end, last, limit)
        if at >= 0 and (message.get("tool_calls") or not text[last:at].strip()):
            return at + len(turn_end)
    if message.get("tool_calls"):
        return None  # what the template writes after the last text of a call is the assistant's
    content = message.get("content") or ""
    space = content[len(content.rstrip()) :]
    return last + len(space) if text.startswith(space, last, limit) else last


_TO_DIGITS = {ord(str(digit)): 0xFDE0 + digit for digit in range(10)}
_FROM_DIGITS = {code: digit for digit, code in _TO_DIGITS.items()}


def _sentinel(message, text=0):
    return f"\ufdd0{str(message).translate(_TO_DIGITS)}\ufdea{str(text).translate(_TO_DIGITS)}\ufdd1"


class _Marker:
    """Puts sentinels into the texts of a message that the model writes."""

    def __init__(self, index, around_tags):
        self.index, self.around_tags = index, around_tags
        self.texts = 0

    def message(self, message):
        out = dict(message)
        for name in ("content", *THINKING_KEYS):
            if isinstance(message.get(name), str) and (message[name] or not message.get("tool_calls")):
                out[name] = self.text(message[name])
        if isinstance(message.get("tool_calls"), list):
            out["tool_calls"] = [self.call(call) for call in message["tool_calls"]]
        return out

    def call(self, call):
        if not isinstance(call, dict):
            return call
        out = dict(call)  # not its id, whose length some templates check
        if "function" in call:
            out["function"] = self.call(call["function"])
        if isinstance(call.get("name"), str):
            out["name"] = self.text(call["name"])
        if "arguments" in call:
            out["arguments"] = self.value(call["arguments"])
        return out

    def value(self, value):
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {name: self.value(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.value(part) for part in value]
        return value

    def text(self, text):
        """Sentinels around the text and around what is between think tags, inside the white space at the ends, which
        templates strip."""
        if not text:
            return self._next()
        inner = "".join(piece if _TAG.fullmatch(piece) else self._around(piece) for piece in _TAG.split(text))
        return self._around(inner) if self.around_tags and _TAG.search(text) else inner

    def _around(self, text):
        core = text.strip()
        if not core:
            return text
        begin, sentinel = text.index(core), self._next()
        return text[:begin] + sentinel + core + sentinel + text[begin + len(core) :]

    def _next(self):
        self.texts += 1
        return _sentinel(self.index, self.texts)
