"""Renders conversations with a chat template, and finds the characters that the assistant wrote."""

import json
import re

from .inputs import InputError

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
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
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
        messages = _loads(messages, where, "messages")
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{where}: messages: expected a list of messages, found {_short(messages)}")
    out = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InputError(f"{where}: messages[{index}]: expected an object with a role, found {_short(message)}")
        message = {name: value for name, value in message.items() if value is not None}
        if "content" not in message and "tool_calls" not in message:
            raise InputError(f"{where}: messages[{index}]: expected content, found {_short(message)}")
        out.append(message)
    tools = record.get("tools")
    if isinstance(tools, str):
        tools = _loads(tools, where, "tools") if tools else None
    return out, tools or None


def _loads(text, where, name):
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: {name}: not valid JSON: {error}") from error


def _short(value):
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
