"""What a chat template takes, and messages in that form.

Templates differ in what they read: the arguments of a tool call as an object or as its JSON text, the key of the
thinking, the content of a message that has tool calls only, where the tools stand. A template says none of it; so it
renders probes, and what is in the rendering tells. What a template has no place for is an error where it would change
what is learned.
"""

import re
from functools import cached_property

from .chat_content import THINKING_KEYS, as_text
from .chat_roles import ALIASES, KNOWN_ROLES
from .errors import BadDocument

# Words that no template has.
_QUESTION, _TEXT, _THOUGHT, _NAME, _KEY, _VALUE = "qzquestion", "qztext", "qzthought", "qzname", "qzkey", "qzvalue"
_USER = {"role": "user", "content": _QUESTION}
_ANSWER = {"role": "assistant", "content": _TEXT}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "qztool",
            "description": "qzdescription",
            "parameters": {"type": "object", "properties": {_KEY: {"type": "string", "description": "qzparameter"}}},
        },
    }
]
_ID = "qz0123456"  # some templates want nine letters and digits
_TOOLS_KEYS = ("tools", "functions")  # of a system message: those of Phi-4-mini's and OLMo 3's templates
THINKING = {
    "template": "where the template has its place",
    "content": "in think tags before the content",
    "drop": "left out",
}


class TemplateForm:
    """`render(messages, tools, where)` renders with the template of this text; `thinking` is a key of THINKING."""

    def __init__(self, render, source, thinking="template"):
        self._render, self._source, self._option = render, source, thinking
        self._known_roles = {}

    def fit(self, messages, tools, where):
        """The messages (`chat_messages`) as the template takes them, with the tools where it reads them in a message.
        BadDocument: it has no place for one."""
        out = [self._message(message, f"{where}: messages[{index}]") for index, message in enumerate(messages)]
        for index, (message, later) in enumerate(zip(out, out[1:])):
            beside = message.get("tool_calls") and message["content"]
            result = later["role"] not in ("system", "user", "assistant")
            if beside and result and self._writes_results_before_text:
                raise BadDocument(
                    "the chat template writes the text beside tool calls after their results",
                    f"{where}: messages[{index}]: content: the chat template writes this text after the results of "
                    "the tool calls, where the model has not written it. Leave it out, or give a template that writes "
                    "it before the calls (--chat-template FILE)",
                )
        return self._with_tools(out, tools, where) if tools and self._tools_place in _TOOLS_KEYS else out

    def left_out(self, messages, tools):
        """What the template leaves out of the rendering of this conversation, in words."""
        if tools and self._tools_place is None:
            yield "tools"
        for message in messages:
            if message["role"] in ("system", "developer") and not self._shows_system:
                yield f"content of the role {message['role']}"
            if message.get("tool_calls") and message.get("content") and not self._shows_text_beside_calls:
                yield "content beside tool_calls"
            if any(message.get(key) for key in THINKING_KEYS):
                calls = bool(message.get("tool_calls"))
                if not (self._shows_thinking_of_calls if calls else self._shows_thinking_of_answers):
                    yield "thinking"

    def _message(self, message, place):
        out = {**message, "role": self._role(message["role"], place)}
        if message["role"] == "tool":
            out["content"] = self._result(message["content"])
        if out["role"] == "system" and isinstance(message["content"], list) and not self._shows_system_thinking:
            raise BadDocument(
                "the chat template has no place for thinking",
                f"{place}: content: expected text, found a part of type thinking, which the chat template does not "
                "write in a system message",
            )
        if message.get("reasoning_content"):
            out = self._with_thinking(out, place)
        if message.get("tool_calls"):
            out = self._with_calls(out, place)
        if message.get("function_calls") and not self._shows_function_calls:
            _refuse_calls(f"{place}: function_calls")
        return out

    # Roles.

    def _role(self, role, place):
        if role in ("system", "user", "assistant"):
            return role
        if role not in self._known_roles:
            self._known_roles[role] = self._find_role(role)
        if self._known_roles[role] is None:
            raise BadDocument(
                "a role that the chat template does not know",
                f"{place}: the chat template leaves out messages of the role {role}"
                if role in KNOWN_ROLES
                else f"{place}: role: expected one of {', '.join(KNOWN_ROLES)}, or one that the chat template names, "
                f"found the role {role}",
            )
        return self._known_roles[role]

    def _find_role(self, role):
        """The template's name for this role, or None."""
        if role == "developer" and not self._names(role):
            return "system"
        if role not in KNOWN_ROLES and not self._names(role):
            return None
        refused = False
        for other in (role, *ALIASES.get(role, ())):
            message = {"role": other, "content": _TEXT}
            probes = [[_USER, message], [message, _USER]]
            if role == "tool":
                probes.append([_USER, self._probe_call, {**message, "tool_call_id": _ID, "name": _NAME}])
            for probe in probes:
                text = self._try(probe)
                if text is not None and _TEXT in text:
                    return other
                refused |= text is None and other == role
        return role if refused else None  # the template says itself what it wants, when it renders the conversation

    def _names(self, role):
        return re.search(rf"""["']{re.escape(role)}["']""", self._source) is not None

    # Contents.

    def _result(self, content):
        """A tool's result: some templates write an object as JSON; the others get the JSON text."""
        kind = type(content)
        return content if kind in (dict, list) and self._writes_values(kind) else as_text(content)

    def _writes_values(self, kind):
        """Whether the template writes an object or a list in a form of its own: as JSON, or as Gemma 4's."""
        value = {_KEY: _VALUE} if kind is dict else [_VALUE]
        result = {"role": self._role("tool", ""), "content": value, "tool_call_id": _ID, "name": _NAME}
        text = self._rendering([_USER, self._probe_call, result], *([_KEY] if kind is dict else []), _VALUE)
        return text is not None and str(value) not in text  # Python's own text of it

    # Tools.

    @cached_property
    def _tools_place(self):
        """`variable`, the key of a system message that has them as a JSON text, or None: they are left out."""
        if self._shows([_USER], "qztool", tools=_TOOLS):
            return "variable"
        system = {"role": "system", "content": _TEXT}
        return next((key for key in _TOOLS_KEYS if self._shows([{**system, key: "qztool"}, _USER], "qztool")), None)

    def _with_tools(self, messages, tools, where):
        first, key = messages[0], self._tools_place
        if first["role"] != "system":
            raise BadDocument(
                "no system message for the tools",
                f"{where}: tools: the chat template writes tools in the system message only: expected one, found the "
                f"role {first['role']}",
            )
        if first.get(key) is not None:
            raise BadDocument("tools under two keys", f"{where}: tools: expected no {key} in messages[0] beside them")
        return [{**first, key: as_text([tool["function"] for tool in tools])}, *messages[1:]]

    @cached_property
    def _shows_system(self):
        answer = {"role": "assistant", "content": _VALUE}
        text = self._try([{"role": "system", "content": _TEXT}, _USER, answer])
        return text is None or _TEXT in text

    # Tool calls.

    def _with_calls(self, message, place):
        if self._calls is None:
            _refuse_calls(f"{place}: tool_calls")
        as_json_text, empty = self._calls
        content = message["content"] or empty
        if content and not self._shows_calls_beside_text:
            if not isinstance(content, str) or content.strip():
                raise BadDocument(
                    "the chat template has no place for tool calls beside a text",
                    f"{place}: tool_calls: the chat template leaves the tool calls of a message out that has a "
                    "content, too. Give a template that writes both (--chat-template FILE), or leave the content out",
                )
            content = empty
        calls = message["tool_calls"]
        if as_json_text:
            calls = [
                {**call, "function": {**call["function"], "arguments": as_text(call["function"]["arguments"])}}
                for call in calls
            ]
        return {**message, "content": content, "tool_calls": calls}

    @cached_property
    def _calls(self):
        """(whether arguments are their JSON text, the content of a message with tool calls alone), or None. Of two
        contents that the template takes, it is the one of which it writes less: nothing is what such a message says."""
        arguments = {_KEY: _VALUE}
        for as_json_text in (False, True):
            found = {}
            for content in ("", None):
                call = self._call(_NAME, content, as_text(arguments) if as_json_text else arguments)
                text = self._rendering([_USER, call], _NAME, _KEY, _VALUE)
                # Python's own text of an object is no JSON: the template wants a text.
                if text is not None and str(arguments) not in text:
                    found[content] = text
            if found:
                return as_json_text, min(found, key=lambda content: len(found[content]))
        return None

    @cached_property
    def _shows_function_calls(self):
        return self._shows([_USER, {"role": "assistant", "content": "", "function_calls": _VALUE}], _VALUE)

    @property
    def _probe_call(self):
        """A message with a tool call alone, as the template takes it, if it does."""
        as_json_text, empty = self._calls or (False, "")
        return self._call(_NAME, empty, "{}" if as_json_text else {})

    @cached_property
    def _shows_calls_beside_text(self):
        return self._beside_text(_NAME, _KEY, _VALUE)

    @cached_property
    def _shows_text_beside_calls(self):
        return self._beside_text(_TEXT)

    @cached_property
    def _writes_results_before_text(self):
        as_json_text = self._calls is not None and self._calls[0]
        call = self._call(_NAME, _TEXT, "{}" if as_json_text else {})
        result = {"role": self._role("tool", ""), "content": _VALUE, "tool_call_id": _ID, "name": _NAME}
        text = self._rendering([_USER, call, result], _TEXT, _VALUE)
        return text is not None and text.index(_VALUE) < text.index(_TEXT)

    def _beside_text(self, *shown):
        arguments = {_KEY: _VALUE}
        call = self._call(_NAME, _TEXT, as_text(arguments) if self._calls and self._calls[0] else arguments)
        return self._shows([_USER, call], *shown)

    @staticmethod
    def _call(name, content, arguments):
        call = {"id": _ID, "type": "function", "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": content, "tool_calls": [call]}

    # Thinking.

    def _with_thinking(self, message, place):
        rest = {key: value for key, value in message.items() if key != "reasoning_content"}
        thinking = message["reasoning_content"]
        if self._option == "drop":
            return rest
        kind = "content" if self._option == "content" else self._thinking
        if kind == "left out":
            return message
        if kind == "content":
            return {**rest, "content": _in_tags(thinking, message["content"])}
        if kind == "parts":
            return {**rest, "content": _in_parts(thinking, message["content"])}
        if kind is None:
            raise BadDocument(
                "the chat template has no place for thinking",
                f"{place}: the chat template has no place for the thinking of this message (reasoning_content, "
                "reasoning, thinking, or parts of the content). --thinking content writes it in think tags before the "
                "content, --thinking drop leaves it out",
            )
        return {**rest, kind: thinking}

    @cached_property
    def _thinking(self):
        """A key of the message; `parts`: a part of the content, as Mistral's; `content`: in think tags; `left out`: the
        template cuts it off; None: it has no place for it."""
        for key in THINKING_KEYS:
            if any(self._shows_key(key, message) for message in (_ANSWER, self._probe_call)):
                return key
        if self._writes_parts(lambda parts: [_USER, {**_ANSWER, "content": parts}]):
            return "parts"
        if "think>" not in self._source:
            return None
        text = self._try([_USER, {**_ANSWER, "content": _in_tags(_THOUGHT, _TEXT)}])
        if text is None or _THOUGHT not in text:
            return None if text is None else "left out"
        before = text[text.rfind(_QUESTION) : text.index(_THOUGHT)]
        return "content" if before.count("<think>") == 1 else None  # not after an empty think block of the template

    @cached_property
    def _shows_system_thinking(self):
        return self._writes_parts(lambda parts: [{"role": "system", "content": parts}, _USER])

    def _writes_parts(self, probe):
        """Whether the template writes a content with a part of type thinking, and not as Python's or JSON's text."""
        parts = _in_parts(_THOUGHT, _TEXT)
        text = self._rendering(probe(parts), _THOUGHT, _TEXT)
        return text is not None and str(parts[0]) not in text and as_text(parts[0]) not in text

    @cached_property
    def _shows_thinking_of_answers(self):
        return self._shows_key(self._thinking, _ANSWER)

    @cached_property
    def _shows_thinking_of_calls(self):
        return self._shows_key(self._thinking, self._probe_call)

    def _shows_key(self, key, message):
        if key == "parts":
            return self._shows([_USER, {**message, "content": _in_parts(_THOUGHT, message["content"])}], _THOUGHT)
        return key in THINKING_KEYS and self._shows([_USER, {**message, key: _THOUGHT}], _THOUGHT)

    # Rendering.

    def _try(self, messages, tools=None):
        try:
            return self._render(messages, tools, "a probe")
        except BadDocument:
            return None

    def _rendering(self, messages, *shown, tools=None):
        """The rendering without tools, or else with some, that has all these words; None: there is none."""
        for given in (tools,) if tools else (None, _TOOLS):
            text = self._try(messages, given)
            if text is not None and all(word in text for word in shown):
                return text
        return None

    def _shows(self, messages, *shown, tools=None):
        return self._rendering(messages, *shown, tools=tools) is not None


def _refuse_calls(place):
    raise BadDocument(
        "the chat template has no place for tool calls",
        f"{place}: the chat template leaves tool calls out. Give a template that writes them (--chat-template FILE), "
        "or write the calls into the content",
    )


def _in_parts(thinking, content):
    return [{"type": "thinking", "thinking": thinking}, *([{"type": "text", "text": content}] if content else [])]


def _in_tags(thinking, content):
    stripped = thinking.strip("\n")
    return f"<think>\n{stripped}\n</think>\n\n{content or ''}"
