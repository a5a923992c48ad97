"""What a chat template takes, and messages in that form.

Templates differ in what they read: the arguments of a tool call as an object or as its JSON text, the key of the
thinking, the content of a message that has tool calls only. A template says none of it; so it renders probes, and what
is in the rendering tells. What a template has no place for is an error where it would change what is learned.
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

    def fit(self, messages, where):
        """The messages (`chat_messages`) as the template takes them. BadDocument: it has no place for one."""
        return [self._message(message, f"{where}: messages[{index}]") for index, message in enumerate(messages)]

    def left_out(self, messages, tools):
        """What the template leaves out of the rendering of this conversation, in words."""
        if tools and not self._shows_tools:
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
        if message.get("reasoning_content"):
            out = self._with_thinking(out, place)
        if message.get("tool_calls"):
            out = self._with_calls(out, place)
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
        return content if kind in (dict, list) and self._writes_json(kind) else as_text(content)

    def _writes_json(self, kind):
        value = {_KEY: _VALUE} if kind is dict else [_VALUE]
        result = {"role": self._role("tool", ""), "content": value, "tool_call_id": _ID, "name": _NAME}
        return self._shows([_USER, self._probe_call, result], as_text(value))

    @cached_property
    def _shows_tools(self):
        return self._shows([_USER], "qztool", tools=_TOOLS)

    @cached_property
    def _shows_system(self):
        answer = {"role": "assistant", "content": _VALUE}
        text = self._try([{"role": "system", "content": _TEXT}, _USER, answer])
        return text is None or _TEXT in text

    # Tool calls.

    def _with_calls(self, message, place):
        if self._calls is None:
            raise BadDocument(
                "the chat template has no place for tool calls",
                f"{place}: tool_calls: the chat template leaves tool calls out. Give a template that writes them "
                "(--chat-template FILE), or write the calls into the content",
            )
        as_json_text, empty = self._calls
        content = message["content"] or empty
        if content and not self._shows_calls_beside_text:
            if content.strip():
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
        """A key of the message; `content`: in think tags; `left out`: the template cuts it off; None: it has no place
        for it."""
        for key in THINKING_KEYS:
            if any(self._shows_key(key, message) for message in (_ANSWER, self._probe_call)):
                return key
        if "think>" not in self._source:
            return None
        text = self._try([_USER, {**_ANSWER, "content": _in_tags(_THOUGHT, _TEXT)}])
        if text is None or _THOUGHT not in text:
            return None if text is None else "left out"
        before = text[text.rfind(_QUESTION) : text.index(_THOUGHT)]
        return "content" if before.count("<think>") == 1 else None  # not after an empty think block of the template

    @cached_property
    def _shows_thinking_of_answers(self):
        return self._shows_key(self._thinking, _ANSWER)

    @cached_property
    def _shows_thinking_of_calls(self):
        return self._shows_key(self._thinking, self._probe_call)

    def _shows_key(self, key, message):
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


def _in_tags(thinking, content):
    stripped = thinking.strip("\n")
    return f"<think>\n{stripped}\n</think>\n\n{content or ''}"
