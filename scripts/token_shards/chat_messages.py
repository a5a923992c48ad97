"""Checks the messages of a conversation before a chat template sees them."""

import json

from .errors import BadDocument
from .json_values import json_name, load_json


def check_messages(record, where):
    """(messages, tools) of a record. Members that are null are dropped (parquet has them for absent keys), except a
    null `content` beside tool calls: templates tell it from an absent one."""
    messages = record["messages"]
    if isinstance(messages, str):
        messages = load_json(messages, f"{where}: messages")
    if not isinstance(messages, list) or not messages:
        raise BadDocument(
            "messages are not a list of messages",
            f"{where}: messages: expected a list of messages, found {_short(messages)}",
        )
    messages = [_message(message, f"{where}: messages[{index}]") for index, message in enumerate(messages)]
    tools = record.get("tools")
    if isinstance(tools, str):
        tools = load_json(tools, f"{where}: tools") if tools else None
    if tools and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise BadDocument(
            "tools are not a list of objects", f"{where}: tools: expected a list of objects, found {_short(tools)}"
        )
    return messages, tools or None


def _message(message, place):
    if not isinstance(message, dict):
        raise BadDocument(
            "a message is not an object",
            f"{place}: expected an object with role and content, found {json_name(message)}",
        )
    if not isinstance(message.get("role"), str):
        raise BadDocument(
            "a message has no role",
            f"{place}: expected an object with a role, found {_keys(message)}: {_short(message)}",
        )
    content = message.get("content")
    if content is None and message.get("tool_calls") is None:
        found = "null" if "content" in message else f"no such key ({_keys(message)})"
        raise BadDocument(
            "a message has no content", f"{place} ({message['role']}): content: expected text, found {found}"
        )
    out = {name: value for name, value in message.items() if value is not None or name == "content"}
    if content is not None:
        out["content"] = _content_text(content, f"{place} ({message['role']}): content")
    return out


def _content_text(content, place):
    """A text as it is; a list of parts, as OpenAI's interface has them, joined: all of them must be texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        found = f"an object with {_keys(content)}" if isinstance(content, dict) else json_name(content)
        raise BadDocument(
            "content is not text", f"{place}: expected text, or a list of parts of type text, found {found}"
        )
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) else part
        kind = part.get("type", "text") if isinstance(part, dict) else "text"
        if kind != "text":
            raise BadDocument(
                "content has a part that is not text",
                f"{place}[{index}]: expected a part of type text, found type {_short(kind)}",
            )
        if not isinstance(text, str):
            found = f"an object with {_keys(part)}" if isinstance(part, dict) else json_name(part)
            raise BadDocument(
                "content has a part that is not text", f"{place}[{index}]: expected a part with a text, found {found}"
            )
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
