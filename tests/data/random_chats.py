"""Random conversations: each in the shape that chat templates are tested with, and as a record in the spelling of some
interface."""

import json
import string

WORDS = (
    "weather", "2+2=4", "Straße", "naïve", "Ünïcode", "日本語", "한국어", "مرحبا", "שלום", "हिन्दी",
    "🙂", "👩‍👩‍👧‍👦", "é\u0301",
    "a\u200bb", "\u00a0", "\t", "\\n", '"quoted"', "it's", "<b>bold</b>", "&amp;", "{{ x }}", "{% raw %}", "{'a': 1}",
    '{"a": [1, 2]}', "```json\n{}\n```", "C:\\temp\\new", "https://a.b/?q=1&r=2", "\n", "\n\n", "  ", "1e400", "NaN",
    "null", "None", "true", "% 100", "<tool_response>", "</tool_response>",
)  # fmt: skip
NAMES = ("get_weather", "search", "run_code", "Überprüfe", "a.b-c", "f")
KEYS = ("city", "days", "Straße", "a b", "日", "x-y", "q", "")
# The interfaces, and whether their calls have ids.
STYLES = {"openai": True, "plain": True, "older": False, "anthropic": True, "sharegpt": False, "swift": False}


class Conversation:
    """`messages` and `tools` in the clean shape; `prompt`: the number of messages before the completion, or None;
    `record`: the same in the spelling of an interface."""

    def __init__(self, rng):
        self.rng = rng
        self.style = rng.choice(list(STYLES))
        self.has_tools = rng.random() < 0.5
        self.thinks = rng.random() < 0.25
        self.ids = STYLES[self.style] and (self.style == "anthropic" or rng.random() < 0.8)
        self.messages = self._messages()
        self.tools = [self._tool() for _ in range(rng.randint(1, 3))] if rng.random() < 0.7 * self.has_tools else None
        self.prompt = None
        self.record = self._record()

    # The clean shape.

    def text(self, least=1, most=8):
        rng = self.rng
        words = [rng.choice(WORDS) for _ in range(rng.randint(least, most))]
        return "".join(word + rng.choice(("", " ", " ", " ")) for word in words)

    def _value(self, depth=0):
        kinds = ["text", "integer", "float", "null", "bool"] + ["list", "object"] * (depth < 2)
        kind = self.rng.choice(kinds)
        if kind == "list":
            return [self._value(depth + 1) for _ in range(self.rng.randint(0, 3))]
        if kind == "object":
            return self._object(depth + 1)
        number = self.rng.choice((0, 1, -7, 2**53, 10**20))
        return {"text": self.text(0, 3), "integer": number, "float": self.rng.choice((0.5, -1e-7, 3.0, 1e22)),
                "null": None, "bool": self.rng.random() < 0.5}[kind]  # fmt: skip

    def _object(self, depth=0):
        return {self.rng.choice(KEYS): self._value(depth) for _ in range(self.rng.randint(0, 3))}

    def _tool(self):
        properties = {key: {"type": "string", "description": self.text(1, 3)} for key in self.rng.sample(KEYS, 2)}
        function = {"name": self.rng.choice(NAMES), "description": self.text(1, 4),
                    "parameters": {"type": "object", "properties": properties}}  # fmt: skip
        return {"type": "function", "function": function}

    def _call(self):
        function = {"name": self.rng.choice(NAMES), "arguments": self._object()}
        if not self.ids:
            return {"type": "function", "function": function}
        length = 9 if self.rng.random() < 0.9 else 12  # Mistral's have 9
        identity = "".join(self.rng.choices(string.ascii_letters + string.digits, k=length))
        return {"id": identity, "type": "function", "function": function}

    def _assistant(self, calls=0):
        rng = self.rng
        content = self.text()
        if calls:
            content = self.text() if rng.random() < 0.3 else None
        elif rng.random() < 0.03:
            content = ""
        out = {"role": "assistant", "content": content}
        if calls:
            out["tool_calls"] = [self._call() for _ in range(calls)]
        if self.thinks and rng.random() < 0.7:
            out["reasoning_content"] = self.text() + "x"
        elif rng.random() < 0.05 and content:
            out["content"] = f"<think>\n{self.text()}x\n</think>\n\n{content}"
        return out

    def _messages(self):
        rng, out = self.rng, []
        if rng.random() < 0.5:
            roles = ("system", "developer") if self.style in ("openai", "plain") else ("system",)
            out.append({"role": rng.choice(roles), "content": self.text()})
        for _ in range(rng.randint(1, 3)):
            out.append({"role": "user", "content": self.text() if rng.random() > 0.03 else ""})
            while self.has_tools and rng.random() < 0.5:
                out.append(
                    self._assistant(calls=1 if self.style == "older" or rng.random() < 0.7 else rng.randint(2, 3))
                )
                for call in out[-1]["tool_calls"]:
                    out.append(self._result(call))
            out.append(self._assistant())
        return out

    def _result(self, call):
        value = self._value() if self.style != "anthropic" and self.rng.random() < 0.2 else self.text()
        out = {"role": "tool", "content": self.text() if value is None else value}
        if "id" in call:
            out["tool_call_id"] = call["id"]
        if self.style in ("older", "plain"):
            out["name"] = call["function"]["name"]
        return out

    # Its spellings.

    def _json(self, value):
        return json.dumps(value, ensure_ascii=self.rng.random() < 0.5, indent=self.rng.choice((None, None, 1)),
                          separators=self.rng.choice((None, (",", ":"))))  # fmt: skip

    def _record(self):
        rng = self.rng
        spelled = {"openai": self._openai, "plain": lambda message: [dict(message)], "older": self._older,
                   "anthropic": None, "sharegpt": self._sharegpt, "swift": self._swift}[self.style]  # fmt: skip
        if spelled is None:
            messages = self._anthropic()
        else:
            messages = [one for message in self.messages for one in spelled(message)]
        record = {"conversations" if self.style == "sharegpt" else "messages": messages}
        if self.style in ("openai", "plain") and rng.random() < 0.3:
            answers = [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]
            self.prompt = rng.choice(answers)
            record = {"prompt": messages[: self.prompt], "completion": messages[self.prompt :]}
        elif rng.random() < 0.1:
            record = {key: self._json(value) for key, value in record.items()}
        if self.tools:
            key, tools = self._spelled_tools()
            record[key] = self._json(tools) if rng.random() < 0.3 else tools
        elif rng.random() < 0.3:
            record["tools"] = rng.choice((None, [], "", "[]"))
        return record

    def _spelled_tools(self):
        functions = [tool["function"] for tool in self.tools]
        if self.style == "older":
            return "functions", functions
        if self.style == "anthropic":
            return "tools", [{("input_schema" if key == "parameters" else key): one for key, one in function.items()}
                             for function in functions]  # fmt: skip
        if self.style == "openai" and self.rng.random() < 0.3:
            return "tools", [{"type": "function", **function} for function in functions]
        return "tools", self.tools if self.rng.random() < 0.7 else functions

    def _with_thinking(self, message, out):
        """`out` with the thinking of the message under some key, or null or empty ones."""
        keys = ["reasoning_content", "reasoning", "thinking"]
        self.rng.shuffle(keys)
        if "reasoning_content" in message:
            out[keys[0]] = message["reasoning_content"]
            keys = keys[1:]
        if self.rng.random() < 0.1:
            out[keys[0]] = self.rng.choice((None, ""))
        return out

    def _openai(self, message):
        rng, role = self.rng, message["role"]
        names = {"user": ("user", "user", "human"), "assistant": ("assistant", "assistant", "gpt", "model"),
                 "tool": ("tool", "tool", "ipython", "observation")}  # fmt: skip
        out = {"role": rng.choice(names.get(role, (role,))), "content": message["content"]}
        content = message["content"]
        if isinstance(content, str) and content and rng.random() < 0.3:
            cut = rng.randint(0, len(content))
            out["content"] = [{"type": "text", "text": part} for part in (content[:cut], content[cut:])]
        if "tool_call_id" in message:
            out["tool_call_id"] = message["tool_call_id"]
        if role == "assistant":
            self._with_thinking(message, out)
            self._openai_calls(message, out)
        return [out]

    def _openai_calls(self, message, out):
        rng = self.rng
        if "tool_calls" not in message:
            if rng.random() < 0.3:
                out["tool_calls"] = rng.choice((None, [], "[]"))
            return
        if not message["content"]:
            out["content"] = rng.choice((None, ""))
            if rng.random() < 0.3:
                del out["content"]
        calls = []
        for call in message["tool_calls"]:
            function = dict(call["function"])
            arguments = function["arguments"]
            function["arguments"] = rng.choice((arguments, self._json(arguments), json.dumps(self._json(arguments))))
            if not arguments and rng.random() < 0.5:
                function["arguments"] = rng.choice((None, "", "null"))
            if rng.random() < 0.2:
                function[rng.choice(("parameters", "args", "input"))] = function.pop("arguments")
            calls.append(
                {**call, "function": function} if rng.random() < 0.8 else {**call, **function, "function": None}
            )
        out["tool_calls"] = self._json(calls) if rng.random() < 0.1 else calls

    def _older(self, message):
        out = {"role": message["role"], "content": message["content"]}
        if message["role"] == "tool":
            out |= {"role": "function", "name": message["name"]}
        if message["role"] == "assistant":
            self._with_thinking(message, out)
            out["function_call"] = None
            for call in message.get("tool_calls", []):
                out["function_call"] = {"name": call["function"]["name"],
                                        "arguments": self._json(call["function"]["arguments"])}  # fmt: skip
        return [out]

    def _sharegpt(self, message):
        names = {"user": "human", "assistant": "gpt", "tool": "observation", "system": "system"}
        out = {"from": names[message["role"]], "value": message["content"]}
        if "tool_calls" in message:
            message["content"] = None  # there is no place for a text together with a call
            calls = [{**call["function"], "arguments": self.rng.choice((call["function"]["arguments"],
                      self._json(call["function"]["arguments"])))} for call in message["tool_calls"]]  # fmt: skip
            value = calls if len(calls) > 1 else self.rng.choice((calls, calls[0]))
            out = {"from": "function_call", "value": self._json(value) if self.rng.random() < 0.7 else value}
        return [self._with_thinking(message, out)] if message["role"] == "assistant" else [out]

    def _swift(self, message):
        out = {"role": message["role"], "content": message["content"]}
        if message["role"] == "tool":
            out["role"] = self.rng.choice(("tool", "tool_response"))
        if "tool_calls" in message:
            message["content"] = None
            message.pop("reasoning_content", None)
            return [{"role": "tool_call", "content": self._json(call["function"])} for call in message["tool_calls"]]
        return [self._with_thinking(message, out)] if message["role"] == "assistant" else [out]

    def _anthropic(self):
        out = []
        for message in self.messages:
            role, content = message["role"], message["content"]
            if role == "tool":
                part = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
                if self.rng.random() < 0.5:
                    part["content"] = [{"type": "text", "text": content}]
                if out[-1]["role"] != "user":
                    out.append({"role": "user", "content": []})
                out[-1]["content"].append(part)
                continue
            parts = [{"type": "text", "text": content}] if content else []
            if "reasoning_content" in message:
                parts.insert(0, {"type": "thinking", "thinking": message["reasoning_content"], "signature": "x"})
            for call in message.get("tool_calls", []):
                function = call["function"]
                parts.append({"type": "tool_use", "id": call["id"], "name": function["name"],
                              "input": function["arguments"]})  # fmt: skip
            plain = content == "" or (len(parts) == 1 and parts[0]["type"] == "text" and self.rng.random() < 0.5)
            if plain and "reasoning_content" in message:
                out.append({"role": role, "content": content, "thinking": message["reasoning_content"]})
            else:
                out.append({"role": role, "content": content if plain else parts})
        return out
