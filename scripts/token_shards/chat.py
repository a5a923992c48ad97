"""Renders conversations with a chat template, and finds the characters that the assistant wrote."""

import json
import re

from .inputs import InputError, json_name, load_json

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatTemplate:
    def __init__(self, template, special_tokens):
        self.template = template
        self.special_tokens = special_tokens
        self.marks_generation = GENERATION.search(template) is not None

    def render(self, messages, tools, where, *, generation_prompt=False, marks=False):
        """(text, [(begin, end)] of the {% generation %} blocks)"""
        from jinja2.exceptions import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            texts, spans = render_jinja_template(
                [messages],
                tools=tools,
                chat_template=self.template,
                add_generation_prompt=generation_prompt,
                return_assistant_tokens_mask=marks,
                **self.special_tokens,
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"{where}: the chat template fails on this conversation: {error}") from error
        return texts[0], (spans[0] if marks else [])

    def spans(self, messages, tools, where):
        """The text of the conversation, and the [begin, end) of the assistant's parts in characters.

        The parts come from the {% generation %} marks of the template. A template without them must render each prefix
        of the conversation to a prefix of the whole text; the parts are then the differences between these prefixes.
        """
        if self.marks_generation:
            text, spans = self.render(messages, tools, where, marks=True)
            return text, [(begin, end) for begin, end in spans if end > begin]
        text, _ = self.render(messages, tools, where)
        spans = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, _ = self.render(messages[:index], tools, where, generation_prompt=True)
            after, _ = self.render(messages[: index + 1], tools, where)
            for prefix in (before, after):
                if not text.startswith(prefix):
                    raise InputError(self._disagreement(text, prefix, index, where))
            if len(after) > len(before):
                spans.append((len(before), self._end(text, len(before), len(after))))
        return text, spans

    def _end(self, text, begin, end):
        """`end` without the white space after the end-of-turn token: the template writes it, the model never does."""
        eos = self.special_tokens.get("eos_token")
        if eos:
            at = text.rfind(eos, begin, end)
            if at >= 0 and not text[at + len(eos) : end].strip():
                return at + len(eos)
        return end

    @staticmethod
    def _disagreement(text, prefix, index, where):
        same = next((i for i, (a, b) in enumerate(zip(text, prefix)) if a != b), min(len(text), len(prefix)))
        return (
            f"{where}: the chat template renders the conversation up to message {index} differently from its "
            f"beginning in the whole conversation, so that the assistant's tokens cannot be told apart: expected "
            f"{prefix[same : same + 40]!r}, found {text[same : same + 40]!r} after {same} characters. Give a template "
            "with {% generation %} marks (--chat-template FILE), or take the loss on everything (--loss-on all)"
        )


def check_messages(record, where):
    """The record's messages and tools, None members dropped (parquet has them for absent keys)."""
    messages = record["messages"]
    if isinstance(messages, str):
        messages = load_json(messages, f"{where}: messages")
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{where}: messages: expected a list of messages, found {_short(messages)}")
    out = []
    for index, message in enumerate(messages):
        place = f"{where}: messages[{index}]"
        if not isinstance(message, dict):
            raise InputError(f"{place}: expected an object with role and content, found {json_name(message)}")
        if not isinstance(message.get("role"), str):
            raise InputError(f"{place}: expected an object with a role, found {_keys(message)}: {_short(message)}")
        content = message.get("content")
        if content is None and message.get("tool_calls") is None:
            found = "null" if "content" in message else f"no such key ({_keys(message)})"
            raise InputError(f"{place} ({message['role']}): content: expected text, found {found}")
        message = {name: value for name, value in message.items() if value is not None}
        if content is not None:
            message["content"] = _content_text(content, f"{place} ({message['role']}): content")
        out.append(message)
    tools = record.get("tools")
    if isinstance(tools, str):
        tools = load_json(tools, f"{where}: tools") if tools else None
    return out, tools or None


def _content_text(content, place):
    """A text as it is; a list of parts, as OpenAI's interface has them, joined: all of them must be texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        found = f"an object with {_keys(content)}" if isinstance(content, dict) else json_name(content)
        raise InputError(f"{place}: expected text, or a list of parts of type text, found {found}")
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) else part
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if kind != "text":
            raise InputError(f"{place}[{index}]: expected a part of type text, found type {_short(kind)}")
        if not isinstance(text, str):
            found = f"an object with {_keys(part)}" if isinstance(part, dict) else json_name(part)
            raise InputError(f"{place}[{index}]: expected a part with a text, found {found}")
        texts.append(text)
    return "".join(texts)


def _keys(value):
    return f"the keys {', '.join(value) or '(none)'}"


def _short(value):
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return json_name(value)
    return text if len(text) <= 80 else text[:77] + "..."
