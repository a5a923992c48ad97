"""What the templates of `templates/` take, read off their texts by hand, and conversations in that form: the reference
for scripts/token_shards/template_form.py, which finds it out by rendering."""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    calls: str | None = None  # the arguments: object | text; None: the template leaves tool calls out
    alone: str | None = ""  # the content of a message with tool calls alone
    beside_text: bool = True  # whether the calls of a message with a text are written
    # A key of the message | parts: of the content | content: in tags | cut: cut off by the template | None
    thinking: str | None = None
    objects: bool = False  # whether the result of a tool may be an object
    text_after_results: bool = False  # whether the text beside calls is written after their results
    tools: str | None = None  # the key of the system message that has the tools as JSON text


FORMS = {
    "deepseek_r1_distill": Form("text", None, False, "cut"),
    "deepseek_r1_llama_cpp_llama": Form("text", None, False, "cut"),
    "deepseek_r1_llama_cpp_qwen": Form("object", None, True, "cut"),
    "gemma": Form(),
    "gemma3": Form(),
    "llama3": Form(),
    "llama3_1": Form("object", objects=True),
    "llama3_2": Form("object", objects=True),
    "mistral_nemo": Form("object"),
    "mistral_v0_1": Form(),
    "mistral_v0_2": Form(),
    "qwen2_5": Form("object"),
    "qwen3": Form("object", thinking="reasoning_content"),
    "qwen3_none_content": Form("object", thinking="reasoning_content"),
    "qwen3_instruct_2507": Form("object"),
    "smollm2": Form(),
    "smollm3_unsloth": Form(thinking="content"),
    "gemma4": Form("object", thinking="reasoning_content", objects=True, text_after_results=True),
    "ministral3": Form("object", thinking="parts"),
    "olmo2": Form(),
    "olmo3": Form("object"),
    "olmo3_think": Form(thinking="content", tools="functions"),
    "phi4_mini": Form(tools="tools"),
    "qwen3_5": Form("object", thinking="reasoning_content"),
}


class NoPlace(Exception):
    """The template has no place for something in the conversation."""


def cleaned(name, messages, tools=None):
    """The messages, whose shape is that of OpenAI's interface with objects as arguments or their JSON text and the
    thinking as reasoning_content, as the template `name` takes them. NoPlace: it does not."""
    form = FORMS[name]
    for message, later in zip(messages, messages[1:]):
        beside = message.get("tool_calls") and message["content"]
        if beside and later["role"] == "tool" and form.text_after_results:
            raise NoPlace
    out = [_cleaned(form, message) for message in messages]
    if tools and form.tools:
        if out[0]["role"] != "system":
            raise NoPlace
        out[0][form.tools] = _json([tool["function"] for tool in tools])
    return out


def has_place(name, messages, tools=None):
    try:
        return bool(cleaned(name, messages, tools))
    except NoPlace:
        return False


def _cleaned(form, message):
    out = dict(message)
    if out["role"] == "developer":
        out["role"] = "system"
    if out["role"] == "tool" and not isinstance(out["content"], str):
        container = isinstance(out["content"], (dict, list))
        out["content"] = out["content"] if form.objects and container else _json(out["content"])
    if out.get("reasoning_content"):
        if form.thinking is None:
            raise NoPlace
        if form.thinking == "content":
            thinking = out.pop("reasoning_content").strip("\n")
            out["content"] = f"<think>\n{thinking}\n</think>\n\n{out['content'] or ''}"
        if form.thinking == "parts":
            text = [{"type": "text", "text": out["content"]}] if out["content"] else []
            out["content"] = [{"type": "thinking", "thinking": out.pop("reasoning_content")}, *text]
    if out.get("tool_calls"):
        if not form.beside_text and not (out["content"] or "").strip():
            out["content"] = None
        if form.calls is None or (out["content"] and not form.beside_text):
            raise NoPlace
        out["tool_calls"] = [_call(form, call) for call in out["tool_calls"]]
        out["content"] = out["content"] or form.alone
    else:
        out.pop("tool_calls", None)
    return out


def _call(form, call):
    arguments = call["function"]["arguments"]
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    arguments = _json(arguments) if form.calls == "text" else arguments
    return {**call, "function": {"name": call["function"]["name"], "arguments": arguments}}


def _json(value):
    return json.dumps(value, ensure_ascii=False)
