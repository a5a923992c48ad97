"""ShareGPT's conversations, `from` and `value`, as messages with `role` and `content`."""

from .errors import BadDocument
from .json_values import found_text, load_json, short_text

# ShareGPT's `from` and the role of the chat templates. function_call is the assistant's, see below.
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}


def is_sharegpt(messages):
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(one, dict) and "from" in one and "value" in one and "role" not in one for one in messages)
    )


def from_sharegpt(turns, place):
    return [_sharegpt_turn(turn, f"{place}[{index}]", turns) for index, turn in enumerate(turns)]


def _sharegpt_turn(turn, place, turns):
    if not isinstance(turn, dict) or "from" not in turn or "value" not in turn:
        raise BadDocument(
            "a turn has no from and value", f"{place}: expected an object with from and value, found {found_text(turn)}"
        )
    speaker = turn["from"]
    role = SHAREGPT_ROLES.get(speaker.lower()) if isinstance(speaker, str) else None
    if role is None:
        found = ", ".join(dict.fromkeys(str(one.get("from")) for one in turns if isinstance(one, dict)))
        raise BadDocument(
            "an unknown role",
            f"{place}: from: expected one of {', '.join(SHAREGPT_ROLES)}, found {short_text(speaker)} "
            f"(the roles {found})",
        )
    if speaker.lower() != "function_call":
        return {"role": role, "content": turn["value"]}
    calls = turn["value"]
    if isinstance(calls, str):
        calls = load_json(calls, f"{place}: value of a function_call")
    calls = calls if isinstance(calls, list) else [calls]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise BadDocument(
                "a function_call without a name",
                f"{place}: expected a function_call with name and arguments, found {short_text(call)}",
            )
    functions = [{"name": call["name"], "arguments": call.get("arguments") or {}} for call in calls]
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": one} for one in functions]}
