"""ShareGPT's conversations, `from` and `value`, as messages with `role` and `content`."""

from .chat_roles import KNOWN_ROLES
from .errors import BadDocument
from .json_values import found_text, short_text


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
    if not isinstance(speaker, str) or speaker.lower() not in KNOWN_ROLES:
        found = ", ".join(dict.fromkeys(str(one.get("from")) for one in turns if isinstance(one, dict)))
        raise BadDocument(
            "an unknown role",
            f"{place}: from: expected one of {', '.join(KNOWN_ROLES)}, found {short_text(speaker)} (the roles {found})",
        )
    rest = {key: value for key, value in turn.items() if key not in ("from", "value")}
    return {"role": speaker, "content": turn["value"], **rest}
