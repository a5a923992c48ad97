"""Tool calls and tools in the shapes of several interfaces, as the one shape that chat templates are tested with:

{"type": "function", "id": ID, "function": {"name": NAME, "arguments": OBJECT}}
{"type": "function", "function": {"name": NAME, "description": TEXT, "parameters": JSON SCHEMA}}
"""

import json

from .errors import BadDocument
from .json_values import found_text, json_name, keys_text, load_json, once, short_text

# OpenAI and most; Llama; LangChain; Anthropic.
ARGUMENTS_KEYS = ("arguments", "parameters", "args", "input")
# All keys of a call, and of the function within, that are read.
CALL_KEYS = ("id", "call_id", "type", "function", "name", *ARGUMENTS_KEYS)
_CALL_TYPES = (None, "function", "function_call", "tool_call", "tool_use")
_CALL_FORM = 'a call as {"type": "function", "function": {"name": NAME, "arguments": OBJECT}}'
_TOOL_FORM = 'a tool as {"type": "function", "function": {"name": NAME, "parameters": JSON SCHEMA}}'


def read_calls(value, place):
    """The calls of a `tool_calls`: a list, or its JSON text; [] where it is null or empty."""
    value = _parsed(value, place)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadDocument(
            "tool_calls is not a list", f"{place}: expected a list of tool calls, found {found_text(value)}"
        )
    return [read_call(call, f"{place}[{index}]") for index, call in enumerate(value)]


def read_call(call, place):
    """One call: OpenAI's, with a `function`, or a flat one with a name and arguments."""
    call = _parsed(call, place)
    if not isinstance(call, dict):
        raise BadDocument("a tool call is not an object", f"{place}: expected {_CALL_FORM}, found {short_text(call)}")
    if call.get("type") not in _CALL_TYPES:
        raise BadDocument(
            "a tool call of another type", f"{place}: type: expected function, found {short_text(call['type'])}"
        )
    inner, inner_place = call, place
    if call.get("function") is not None:
        inner, inner_place = _parsed(call["function"], f"{place}: function"), f"{place}: function"
    if not isinstance(inner, dict):
        raise BadDocument("a tool call is not an object", f"{place}: expected {_CALL_FORM}, found {short_text(call)}")
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        found = short_text(name) if "name" in inner else keys_text(inner)
        raise BadDocument("a tool call without a name", f"{inner_place}: name: expected a text, found {found}")
    # A flat object around a function may hold its arguments.
    sources = [(inner, inner_place)] if inner is call else [(inner, inner_place), (call, place)]
    given = [(f"{at}: {key}", one[key]) for one, at in sources for key in ARGUMENTS_KEYS if one.get(key) is not None]
    if len(given) > 1:
        raise BadDocument(
            "a tool call with its arguments twice",
            f"{place}: expected one of {', '.join(ARGUMENTS_KEYS)}, found {' and '.join(at for at, _ in given)}",
        )
    arguments = read_arguments(given[0][1], given[0][0]) if given else {}
    identity = call.get("id") if call.get("id") is not None else call.get("call_id")
    if identity is not None and not isinstance(identity, str):
        raise BadDocument(
            "the id of a tool call is not text", f"{place}: id: expected a text, found {json_name(identity)}"
        )
    out = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": identity, **out} if identity is not None else out


def read_arguments(value, place):
    """The object of a call's arguments. OpenAI's interface has its JSON as a text, an empty one for no arguments; some
    exports encode that text once more."""
    for _ in range(2):
        if not isinstance(value, str) or not value.strip():
            break
        value = _strict_json(value, place)
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if not isinstance(value, dict):
        raise BadDocument(
            "arguments are not an object",
            f"{place}: expected an object or its JSON text, found {short_text(value)}",
        )
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise BadDocument(
            "arguments are not an object",
            f"{place}: expected numbers that JSON has, found {short_text(value)}",
        ) from error
    return value


def read_tools(value, place):
    """The tools of a record, or None: a list of tools or of bare functions, or the JSON text of either."""
    value = _parsed(value, place)
    if not value and (value is None or isinstance(value, (list, dict))):
        return None
    if not isinstance(value, list):
        raise BadDocument(
            "tools are not a list of objects", f"{place}: expected a list of objects, found {short_text(value)}"
        )
    return [_tool(tool, f"{place}[{index}]") for index, tool in enumerate(value)]


def _tool(tool, place):
    tool = _parsed(tool, place)
    if not isinstance(tool, dict):
        raise BadDocument(
            "tools are not a list of objects", f"{place}: expected a list of objects, found {short_text(tool)}"
        )
    if not (tool.get("type") in (None, "function") or "input_schema" in tool):
        raise BadDocument(
            "a tool that is not a function", f"{place}: type: expected function, found {short_text(tool['type'])}"
        )
    function = _parsed(tool.get("function"), f"{place}: function")
    wrapped = function is not None
    if not wrapped:  # a bare function: of OpenAI's older or newer interface, or Anthropic's
        function = {key: one for key, one in tool.items() if key != "type" and one is not None}
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadDocument("a tool without a name", f"{place}: expected {_TOOL_FORM}, found {short_text(tool)}")
    function = {("parameters" if key == "input_schema" else key): one for key, one in function.items()}
    if isinstance(function.get("parameters"), str):
        function["parameters"] = _parsed(function["parameters"], f"{place}: parameters")
    out = {"type": "function", **(tool if wrapped else {}), "function": function}
    return {key: out[key] for key in tool} if wrapped and "type" in tool else out  # in the order of the record


def _parsed(value, place):
    """The value of a JSON text; None for an empty one. Anything else as it is."""
    if isinstance(value, str):
        return load_json(value, place) if value.strip() else None
    return value


def _strict_json(text, place):
    """JSON without what Python reads beyond it: NaN, and a key twice."""

    def no_constant(name):
        raise ValueError(f"{name} is not JSON")

    try:
        return json.loads(text, parse_constant=no_constant, object_pairs_hook=once)
    except RecursionError as error:
        raise BadDocument("arguments are not an object", f"{place}: JSON that is nested too deeply") from error
    except ValueError as error:
        raise BadDocument(
            "arguments are not an object",
            f"{place}: expected an object or its JSON text, found {short_text(text)}: {error}",
        ) from error
