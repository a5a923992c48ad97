"""The messages of a conversation in the one shape that the authors of chat templates test with, whatever interface
they come from. `template_form` then adapts them to a template.

A message has a `role` (system, developer, user, assistant, tool, or one that only a template knows), a `content` (a
text; None beside tool calls that have none; any value of JSON as a tool's result; a list of parts in a system message
with thinking), and where it has them `tool_calls` (`chat_calls` has their shape) and the thinking as
`reasoning_content`. Its other members are kept, but for null ones.
"""

from .chat_calls import read_call, read_calls, read_tools
from .chat_content import (
    THINKING_KEYS,
    has_thinking,
    read_content,
    read_parts,
    read_thinking,
    without_think_block,
)
from .chat_roles import CALL_ROLES, canonical_role
from .errors import BadDocument
from .json_values import found_text, json_name, keys_text, load_json, short_text

_READ = ("role", "content", "tool_calls", "function_call", *THINKING_KEYS)


def check_messages(record, where):
    """(messages, tools or None) of an object with `messages`, and `tools` or `functions`."""
    return [one for pieces in read_messages(record["messages"], where) for one in pieces], record_tools(record, where)


def record_tools(record, where):
    """The tools of a record: `tools`, or `functions` of OpenAI's older interface."""
    found = {key: tools for key in ("tools", "functions") if (tools := read_tools(record.get(key), f"{where}: {key}"))}
    if len(found) > 1:
        raise BadDocument("tools under two keys", f"{where}: expected tools or functions, found both")
    return next(iter(found.values()), None)


def read_messages(messages, where):
    """For each message of the record a list of the messages that it becomes: one; several where a content has the
    results of tools; none where a call of its own belongs to the message before. BadDocument: `where: messages[i]`."""
    if isinstance(messages, str):
        messages = load_json(messages, f"{where}: messages")
    if not isinstance(messages, list) or not messages:
        raise BadDocument(
            "messages are not a list of messages",
            f"{where}: messages: expected a list of messages, found {short_text(messages)}",
        )
    out, calling = [], None
    for index, message in enumerate(messages):
        pieces = _message(message, f"{where}: messages[{index}]")
        if message["role"].lower() not in CALL_ROLES:
            calling = None
        elif calling is not None and _same_but_calls(calling, pieces[0]):  # one turn's calls, each in a message
            calling["tool_calls"] += pieces[0]["tool_calls"]
            pieces = []
        else:
            calling = pieces[0]
        out.append(pieces)
    return out


def is_assistant(message):
    """Whether this is a message that the assistant has written."""
    role = message.get("role") if isinstance(message, dict) else None
    return isinstance(role, str) and canonical_role(role) in ("assistant", *CALL_ROLES)


def _message(message, place):
    if not isinstance(message, dict):
        raise BadDocument(
            "a message is not an object",
            f"{place}: expected an object with role and content, found {json_name(message)}",
        )
    if not isinstance(message.get("role"), str):
        raise BadDocument(
            "a message has no role",
            f"{place}: expected an object with a role, found {keys_text(message)}: {short_text(message)}",
        )
    role = canonical_role(message["role"])
    rest = {key: value for key, value in message.items() if value is not None and key not in _READ}
    place = f"{place} ({message['role']})"
    if role in CALL_ROLES:
        thinking = read_thinking(message, [], place)
        out = {"role": "assistant", "content": None, "tool_calls": _calls_of_content(message, place), **rest}
        return [{**out, "reasoning_content": thinking} if thinking else out]
    calls = read_calls(message.get("tool_calls"), f"{place}: tool_calls")
    if message.get("function_call"):  # OpenAI's older interface
        if calls:
            raise BadDocument(
                "a tool call under two keys", f"{place}: expected tool_calls or function_call, found both"
            )
        calls = [read_call(message["function_call"], f"{place}: function_call")]
    given = message.get("content")
    if role == "system" and has_thinking(given):  # Mistral's: how to think stands in the prompt
        return [{"role": role, "content": read_parts(given, f"{place}: content"), **rest}]
    content = read_content("" if given is None else given, role, f"{place}: content")
    calls += content.calls
    thinking = read_thinking(message, content.thinking, place)
    if role != "assistant" and (calls or thinking):
        raise BadDocument(
            f"{'tool calls' if calls else 'thinking'} of a message that is not the assistant's",
            f"{place}: expected the role assistant, whose {'tool calls' if calls else 'thinking'} it has",
        )
    if any(not isinstance(run, str) for run in content.runs):
        return [_run(run, role, rest) for run in content.runs]
    text = None if given is None else content.text
    if text is None and message.get("function_calls"):  # OLMo's: a text with the calls, which its templates write
        text = ""
    if text is None and not calls:
        found = "null" if "content" in message else f"no such key ({keys_text(message)})"
        found = found if given is None else f"a list of {len(given)} parts without a text"
        raise BadDocument("a message has no content", f"{place}: content: expected text, found {found}")
    if thinking:
        text = without_think_block(text, thinking, place)
    out = {"role": role, "content": text}
    if calls:
        out |= {"content": text or None, "tool_calls": calls}
    if thinking:
        out["reasoning_content"] = thinking
    return [out | rest]


def _run(run, role, rest):
    return {"role": role, "content": run, **rest} if isinstance(run, str) else {**run, **rest}


def _calls_of_content(message, place):
    """The calls of a message whose role says that its content is one, or a list of them."""
    content = message.get("content")
    if isinstance(content, str):
        content = load_json(content, f"{place}: the call") if content.strip() else None
    calls = content if isinstance(content, list) else [content]
    if not calls or calls == [None]:
        found = found_text(message.get("content"))
        raise BadDocument("a message has no content", f"{place}: content: expected a tool call, found {found}")
    return [read_call(call, f"{place}: the call") for call in calls]


def _same_but_calls(one, other):
    return {**one, "tool_calls": 0} == {**other, "tool_calls": 0}
