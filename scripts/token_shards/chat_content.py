"""The content of a message: a text, or a list of parts of the interfaces of OpenAI, Anthropic and others."""

import json
import re
from dataclasses import dataclass, field

from .chat_calls import read_call
from .errors import BadDocument
from .json_values import found_text, json_name, keys_text, short_text

# The members of a message that hold its thinking, in the order in which a template is asked for them.
THINKING_KEYS = ("reasoning_content", "reasoning", "thinking")
# What stands around thinking in the texts of models: most; Mistral and Ministral; Gemma 4.
THINK_TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>", "<channel|>"))
_TEXT_PARTS = (None, "text", "input_text", "output_text")
_THINKING_PARTS = ("thinking", "reasoning")
_THINK_BLOCK = re.compile(r"\A\s*(?:<think>)?(.*?)</think>", re.DOTALL)
# The keys of parts that are read.
PART_KEYS = ("type", "text", "thinking", "reasoning", "id", "name", "input", "tool_use_id", "content")
_PARTS_ORDER = ("thinking", "text", "call")


@dataclass
class Content:
    """What the parts of a content hold."""

    text: str | None = None  # of all text parts, joined; None: there is none
    thinking: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    runs: list = field(default_factory=list)  # of a message with tool results: each result's message, each text


def read_content(content, role, place):
    """Content. A text stays as it is; of parts, the texts are joined. A tool's result may be any value of JSON."""
    if isinstance(content, str) or (role == "tool" and not _is_parts(content)):
        return Content(text=content)
    if not isinstance(content, list):
        raise BadDocument(
            "content is not text", f"{place}: expected text, or a list of parts of type text, found {_found(content)}"
        )
    out, last = Content(), ""
    for index, part in enumerate(content):
        kind, value = _part(part, role, f"{place}[{index}]")
        if kind == "thinking":
            out.thinking.append(value)
        elif kind == "call":
            out.calls.append(value)
        elif kind == "result":
            out.runs.append(value)
        else:
            out.text = (out.text or "") + value
            if value and out.runs and isinstance(out.runs[-1], str):
                out.runs[-1] += value
            elif value:
                out.runs.append(value)
        if kind in _PARTS_ORDER and value:
            if last and _PARTS_ORDER.index(kind) < _PARTS_ORDER.index(last):
                raise BadDocument(
                    "content has its parts in another order",
                    f"{place}[{index}]: expected thinking, then text, then tool calls, found a {kind} after a {last}",
                )
            last = kind
    return out


def has_thinking(content):
    return _is_parts(content) and any(part["type"] in _THINKING_PARTS for part in content)


def read_parts(content, place):
    """The parts of a content that `has_thinking`, each of type text or thinking, in their order."""
    out = []
    for index, part in enumerate(content):
        kind, value = _part(part, "assistant", f"{place}[{index}]")
        if kind not in ("text", "thinking"):
            raise BadDocument(
                "content has a part that is not text",
                f"{place}[{index}]: expected a part of type text or thinking, found type {short_text(part['type'])}",
            )
        out.append({"type": kind, kind: value})
    return out


def read_thinking(message, parts, place):
    """The thinking of a message from its members and the parts of its content, or None."""
    found = {}
    for key in THINKING_KEYS:
        value = message.get(key)
        if isinstance(value, list):
            value = "".join(_thinking_text(part, f"{place}: {key}") for part in value)
        if not (value is None or isinstance(value, str)):
            raise BadDocument("thinking is not text", f"{place}: {key}: expected text, found {found_text(value)}")
        if value and value.strip():
            found[key] = value
    if parts:
        found["content"] = "".join(parts)
    if len({text.strip() for text in found.values()}) > 1:
        raise BadDocument(
            "thinking under several keys", f"{place}: expected one thinking, found others in {' and '.join(found)}"
        )
    return next(iter(found.values()), None)


def without_think_block(text, thinking, place):
    """The content of a message whose thinking has a key of its own: a think block with the same text is not written
    twice."""
    block = _THINK_BLOCK.match(text or "")
    if block is None:
        return text
    if block[1].strip() != thinking.strip():
        raise BadDocument(
            "thinking under several keys",
            f"{place}: content: expected no think block beside a thinking of its own, found {short_text(block[1])}",
        )
    return text[block.end() :].lstrip("\n")


def as_text(value):
    """A value as a text: itself, or its JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_parts(content):
    return (
        isinstance(content, list)
        and bool(content)
        and all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content)
    )


def _part(part, role, place):
    """(text | thinking | call | result, its value)"""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _THINKING_PARTS and role == "assistant":
        return "thinking", _thinking_text(part, place)
    if kind == "tool_use" and role == "assistant":
        return "call", read_call(part, place)
    if kind == "tool_result" and role in ("user", "tool"):
        return "result", _tool_result(part, place)
    if kind not in _TEXT_PARTS:
        raise BadDocument(
            "content has a part that is not text",
            f"{place}: expected a part of type text, found type {short_text(kind)}",
        )
    text = part.get("text") if isinstance(part, dict) else part
    if not isinstance(text, str):
        found = f"an object with {keys_text(part)}" if isinstance(part, dict) else json_name(part)
        raise BadDocument("content has a part that is not text", f"{place}: expected a part with a text, found {found}")
    return "text", text


def _thinking_text(part, place):
    """Anthropic's {type: thinking, thinking: TEXT}, Mistral's with a list of texts, others' {type: reasoning, text}."""
    if isinstance(part, str):
        return part
    values = [part.get(key) for key in ("thinking", "reasoning", "text")] if isinstance(part, dict) else []
    value = next((one for one in values if one is not None), None)
    if isinstance(value, list):
        return "".join(_thinking_text(one, place) for one in value)
    if not isinstance(value, str):
        raise BadDocument("thinking is not text", f"{place}: expected a part with a text, found {found_text(part)}")
    return value


def _tool_result(part, place):
    """The message of a tool for Anthropic's {type: tool_result, tool_use_id, content}."""
    content = part.get("content")
    content = read_content("" if content is None or content == [] else content, "tool", f"{place}: content")
    if content.thinking or content.calls or any(not isinstance(run, str) for run in content.runs):
        raise BadDocument("content has a part that is not text", f"{place}: content: expected parts of type text")
    out = {"role": "tool", "content": content.text}
    if part.get("tool_use_id") is not None:
        out["tool_call_id"] = part["tool_use_id"]
    return out


def _found(content):
    return f"an object with {keys_text(content)}" if isinstance(content, dict) else json_name(content)
