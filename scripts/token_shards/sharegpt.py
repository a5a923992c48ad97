"""Conversations of other forms as messages with `role` and `content`: ShareGPT's `from` and `value`, turns whose keys
are the speakers."""

from .chat_roles import KNOWN_ROLES
from .errors import BadDocument
from .json_values import found_text, load_json, short_text

# Turns with a text for each speaker: {"human": ..., "assistant": ...}, and XTuner's {"system", "input", "output"}.
SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "input": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "output": "assistant",
}


def conversation_messages(turns, place, is_messages):
    """The messages of a conversation in any of these forms; every other key of a turn stays as it is. `is_messages`:
    the key of the record is that of messages, so that check_messages() says what is wrong with other values."""
    if isinstance(turns, str):
        turns = load_json(turns, place)
    if not isinstance(turns, list) or not turns:
        if is_messages:
            return turns
        raise BadDocument("conversations are not a list", f"{place}: expected a list, found {short_text(turns)}")
    if all(_has_speakers(turn) for turn in turns):
        return [message for index, turn in enumerate(turns) for message in _speakers(turn, f"{place}[{index}]")]
    has_roles = isinstance(turns[0], dict) and "role" in turns[0]  # OpenAI's messages have both keys, too
    if has_roles or (is_messages and not all(_is_turn(turn) for turn in turns)):
        return list(turns)
    return [_sharegpt_turn(turn, f"{place}[{index}]", turns) for index, turn in enumerate(turns)]


def _is_turn(turn):
    return isinstance(turn, dict) and "from" in turn and "value" in turn and "role" not in turn


def _has_speakers(turn):
    return isinstance(turn, dict) and not turn.keys() & {"role", "from", "content", "value"} and turn.keys() & SPEAKERS


def _speakers(turn, place):
    said = [(key, role) for key, role in SPEAKERS.items() if turn.get(key) is not None]
    roles = [role for _, role in said]
    if not said or len(set(roles)) < len(roles):
        raise BadDocument(
            "a turn has no speaker, or one twice",
            f"{place}: expected a text for each of system, user and assistant, found {found_text(turn)}",
        )
    # XTuner writes an empty system text where there is none.
    messages = [{"role": role, "content": turn[key]} for key, role in said if (role, turn[key]) != ("system", "")]
    rest = {key: value for key, value in turn.items() if key not in SPEAKERS}
    return [*messages[:-1], messages[-1] | rest] if messages else []


def _sharegpt_turn(turn, place, turns):
    if not isinstance(turn, dict) or "from" not in turn or "value" not in turn:
        raise BadDocument(
            "a turn has no from and value", f"{place}: expected an object with from and value, found {found_text(turn)}"
        )
    speaker = turn["from"]
    if not isinstance(speaker, str) or speaker.lower() not in KNOWN_ROLES:
        found = ", ".join(dict.fromkeys(str(one.get("from")) for one in turns if isinstance(one, dict)))
        raise BadDocument(
            "an unknown role",
            f"{place}: from: expected one of {', '.join(KNOWN_ROLES)}, found {short_text(speaker)} (the roles {found})",
        )
    rest = {key: value for key, value in turn.items() if key not in ("from", "value")}
    return {"role": speaker, "content": turn["value"], **rest}
