"""Finds what the assistant wrote in the rendering of a template that has no marks.

Sentinels, which occur nowhere else, are put into the texts of the messages, at their first and last characters that are
not white space. Without the sentinels, the rendering must be that of the conversation itself: then the template copies
the texts, and the sentinels tell where they stand. Nothing is assumed about the rendering of a part of a conversation.

A turn begins where the generation prompt before its first sentinel ends, and ends with the template's end of a turn
after its last sentinel. Where the template has no prompt or no end there, because several messages are one turn, a
rendering of fewer messages tells: what it has after its last text is, with a generation prompt, how the next turn
begins, and without one, how this turn ends.
"""

import collections
import itertools
import os
import re

from .chat_content import THINK_TAGS, THINKING_KEYS
from .errors import BadDocument

# Noncharacters of Unicode: an opening one, the numbers of the message and of the text in it, a closing one.
_SENTINEL = re.compile("\ufdd0([\ufde0-\ufde9]+)\ufdea([\ufde0-\ufde9]+)\ufdd1")
_RESERVED = re.compile("[\ufdd0\ufdd1\ufde0-\ufdea]")
_TAG = re.compile("(" + "|".join(re.escape(tag) for tags in THINK_TAGS for tag in tags) + ")")
# The members of a message whose texts the model writes; the last one is a text with calls, in OLMo's conversations.
_WRITTEN = ("content", *THINKING_KEYS, "function_calls")
_TOKEN = re.compile(r"<\|?[^<>\s]+\|?>")
_ADVICE = (
    "Give a template with {% generation %} marks (--chat-template FILE), or take the loss on everything (--loss-on all)"
)


def locate(render, messages, prompt, turn_ends, where):
    """(text, the [begin, end) of each assistant message, the roles whose texts the template has left out).
    `render(messages, generation_prompt=False)` renders; `prompt` is the generation prompt of this conversation;
    `turn_ends` is what `find_turn_ends` returns."""
    text = render(messages)
    if _RESERVED.search(text):
        raise BadDocument(
            "the conversation has noncharacters",
            f"{where}: expected text, found a noncharacter of Unicode (U+FDD0 to U+FDEA)",
        )
    places, marked = _places(render, messages, text, where)
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
            others = [place[0] for i, place in places.items() if i != index]
            if any(first < at < last for at in others):
                raise BadDocument(
                    "the text of another message stands within a turn",
                    f"{where}: messages[{index}]: the chat template writes another message within this turn, so that "
                    f"the assistant's tokens cannot be told apart. {_ADVICE}",
                )
            limit = min((at for at in others if at >= last), default=len(text))
            begin = _begin(text, message, before, first, prompt)
            if begin is None:
                begin = _begin_after(render, messages[:index], places, text, before, first)
            if begin is None and not _has_calls(message):  # then the turn begins with its text
                begin = first - len(_space_before(message, text, first))
            bounded = index + 1 in places or index + 1 == len(messages)  # the limit is that of the next message
            end = _end(text, message, last, limit, bounded, turn_ends)
            if end is None:
                end = _end_of_rendering(render, messages[: index + 1], places, text, last, limit)
            if begin is None or end is None:
                raise BadDocument(
                    "the ends of a tool call are not found",
                    f"{where}: messages[{index}]: neither a generation prompt nor an end of the turn tells where its "
                    f"tool calls {'begin' if begin is None else 'end'}. {_ADVICE}",
                )
            spans.append((begin, end))
        before = max(before, last or 0)
    left_out = [messages[i] for i in marked if i not in places]
    return text, spans, {one["role"] for one in left_out if isinstance(one["content"], str) and one["content"].strip()}


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
    """({message: (first character, after the last character)} of the messages that are in the rendering, the numbers of
    those that were looked for)."""
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
        return _marked_places(rendered), chosen
    raise BadDocument(
        "the assistant's turns cannot be found in the rendering",
        f"{where}: the chat template does more with the texts than to copy them{f' ({error})' if error else ''}, so "
        f"that the assistant's tokens cannot be told apart. {_ADVICE}",
    )


def _marked_places(rendered):
    """{message: (first character, after the last character)} of a rendering with sentinels, counted without these."""
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


def _begin(text, message, before, first, prompt):
    """Where the generation prompt before the turn ends. None: there is none."""
    at = text.rfind(prompt, before, first) if prompt else -1
    if at >= 0:  # what stands between the generation prompt and the content is for the model to write
        return at + len(prompt)
    for length in range(len(prompt) - 1, 0, -1):
        # Turns that are not the last may lack the end of the prompt: its think block.
        if prompt[length - 1] not in "\n>]" or any(begin in prompt[:length] for begin, _ in THINK_TAGS):
            continue
        at = text.rfind(prompt[:length], before, first)
        if at >= 0 and (_has_calls(message) or not _TAG.sub("", text[at + length : first]).strip()):
            return at + length
        if at >= 0:
            break
    return None


def _begin_after(render, earlier, places, text, before, first):
    """Where the rendering of the earlier messages with a generation prompt ends. None: the sentinels do not allow it,
    or the template writes the end of it in another way before this turn."""
    try:
        prefix = render(earlier, generation_prompt=True)
    except BadDocument:
        return None
    end = len(prefix) if text.startswith(prefix) else -1
    if end < 0 and (after := _after_last_text(render, earlier, places, generation_prompt=True)) is not None:
        end = before + len(after) if text.startswith(after, before) else -1
    return end if before <= end <= first else None


def _end(text, message, last, limit, bounded, turn_ends):
    """After the turn's end token, where the template writes one here. None: not found after a tool call, and what the
    template writes after the last text of a call is the assistant's. `bounded`: no other message ends before
    `limit`."""
    for turn_end in turn_ends:
        at = text.find(turn_end, last, limit)
        if at >= 0 and (bounded or _has_calls(message) or not text[last:at].strip()):
            return at + len(turn_end)
    if _has_calls(message):
        return None
    content = message.get("content")
    space = content[len(content.rstrip()) :] if isinstance(content, str) else ""
    return last + len(space) if text.startswith(space, last, limit) else last


def _end_of_rendering(render, messages, places, text, last, limit):
    """Where a turn ends with which no conversation ends, because the results of tools belong to it: after what the
    template also writes where the conversation ends here."""
    after = _after_last_text(render, messages, places) or ""
    common = os.path.commonprefix([after, text[last:limit]]).rstrip()
    return last + len(common) if common else None


def _after_last_text(render, messages, places, **more):
    """What the template writes after the last text of these messages, in so far as `places` has them. None: it has no
    text of them."""
    try:
        rendered = render([_Marker(i, False).message(m) if i in places else m for i, m in enumerate(messages)], **more)
    except BadDocument:
        return None
    found = _marked_places(rendered)
    return _SENTINEL.sub("", rendered)[max(last for _, last in found.values()) :] if found else None


def without_space(text, begin, end, turn_ends):
    """`end`, or the end of the turn before it, if nothing but white space is between the two."""
    core = text[begin:end].rstrip()
    return begin + len(core) if any(core.endswith(turn_end) for turn_end in turn_ends) else end


def _has_calls(message):
    return bool(message.get("tool_calls") or message.get("function_calls"))


def _space_before(message, text, first):
    """The white space at the beginning of the content, if the template writes it."""
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():  # a sentinel stands before white space alone
        return ""
    space = content[: len(content) - len(content.lstrip())]
    return space if text.endswith(space, 0, first) else ""


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
        for name in _WRITTEN:
            if isinstance(message.get(name), str) and (message[name] or not _has_calls(message)):
                blank = message["role"] == "assistant" and not (message[name].strip() or _has_calls(message))
                out[name] = self._next() + message[name] if blank else self.text(message[name])
        if message["role"] == "tool" and isinstance(message["content"], (dict, list)):
            out["content"] = self.value(message["content"])
        elif isinstance(message.get("content"), list):
            out["content"] = [self.part(part) for part in message["content"]]
        if isinstance(message.get("tool_calls"), list):
            out["tool_calls"] = [self.call(call) for call in message["tool_calls"]]
        return out

    def part(self, part):
        if not isinstance(part, dict):
            return part
        marked = {name: self.text(part[name]) for name in ("thinking", "text") if isinstance(part.get(name), str)}
        return {**part, **marked}

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
