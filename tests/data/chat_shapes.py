"""Conversations of many shapes, chat templates of many families, and a tokenizer that has all their special tokens."""

import re
from pathlib import Path

import tokenizers

TEMPLATES = Path(__file__).parent / "templates"
# Published texts, and our own with the structure of other families, which have marks around what the model writes.
PUBLISHED = {path.stem: path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.glob("*.jinja"))}
OWN = {path.stem: path.read_text(encoding="utf-8") for path in sorted((TEMPLATES / "own").glob("*.jinja"))}
# As models' folders have them: without marks.
STOCK = PUBLISHED | {
    name: re.sub(r"{%(-?) (?:end)?generation (-?)%}", r"{#\1 \2#}", text) for name, text in OWN.items()
}
# (bos_token, eos_token) that the models' tokenizers have
TOKENS = {
    "llama": ("<|begin_of_text|>", "<|eot_id|>"),
    "gemma": ("<bos>", "<eos>"),
    "mistral": ("<s>", "</s>"),
    "ministral": ("<s>", "</s>"),
    "olmo": ("<|endoftext|>", "<|endoftext|>"),
    "phi": ("<|endoftext|>", "<|endoftext|>"),
    "deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "": ("<|endoftext|>", "<|im_end|>"),
}
MARKERS = [
    "<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|python_tag|>", "<start_of_turn>",
    "<end_of_turn>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "<think>", "</think>", "<tool_call>", "</tool_call>", "<｜User｜>", "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    "<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>", "<|turn>",
    "<turn|>", "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
    '<|"|>', "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[THINK]", "[/THINK]", "[ARGS]", "<|system|>", "<|user|>",
    "<|assistant|>", "<|end|>", "<|tool|>", "<|/tool|>",
]  # fmt: skip


def special_tokens(name):
    bos, eos = next(tokens for family, tokens in TOKENS.items() if name.startswith(family))
    return {"bos_token": bos, "eos_token": eos}


def make_tokenizer():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = [token for pair in TOKENS.values() for token in pair] + MARKERS
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    text = ["assistant\n\nsystem user model the weather in Paris is sunny\n\n\n", '{"name": "weather", "arguments": {']
    tokenizer.train_from_iterator((STOCK["llama3_1"].splitlines() + text) * 3, trainer)
    # Llama 3's and others' tokenizers add a begin token by themselves: the rendering has one already.
    bos = "<|begin_of_text|>"
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    return tokenizer


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": "Answer briefly."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather now.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def call(city, identity="abc123def", arguments=None):
    arguments = {"city": city} if arguments is None else arguments
    return {"id": identity, "type": "function", "function": {"name": "weather", "arguments": arguments}}


def answer(content, identity="abc123def"):
    return {"role": "tool", "name": "weather", "content": content, "tool_call_id": identity}


SHAPES = {
    "single turn": [user("hi"), assistant("hello")],
    "several turns": [user("one"), assistant("first"), user("two"), assistant("second"), user("3"), assistant("third")],
    "system": [SYSTEM, user("hi"), assistant("hello"), user("more"), assistant("no")],
    "system alone with an answer": [SYSTEM, assistant("hello")],
    "tools": (
        [user("weather?"), assistant("", tool_calls=[call("Paris")]), answer("sunny"), assistant("It is sunny.")],
        TOOLS,
    ),
    "tools, text beside the call": (
        [
            SYSTEM,
            user("weather?"),
            assistant("I look.", tool_calls=[call("Paris")]),
            answer("sunny"),
            assistant("Sun."),
        ],
        TOOLS,
    ),
    "tools, null content": (
        [user("weather?"), assistant(None, tool_calls=[call("Paris", arguments='{"city": "Paris"}')]), answer("rain")],
        TOOLS,
    ),
    "tools, two calls": (
        [
            user("weather?"),
            assistant(None, tool_calls=[call("Rome", arguments="{}"), call("Oslo", "xyz123xyz", "{}")]),
            answer("sunny"),
            answer("snow", "xyz123xyz"),
            assistant("Sunny in Rome, snow in Oslo."),
            user("thanks"),
            assistant("Welcome."),
        ],
        TOOLS,
    ),
    "white space beside a call": (
        [user("weather?"), assistant("\n\n", tool_calls=[call("Paris")], reasoning_content="look"), answer("sunny")],
        TOOLS,
    ),
    "reasoning_content": [
        user("1+1"),
        assistant("2", reasoning_content="one and one"),
        user("2+2"),
        assistant("4", reasoning_content="\ntwo and two\n"),
    ],
    "think blocks": [
        user("1+1"),
        assistant("<think>\none and one\n</think>\n\n2"),
        user("2+2"),
        assistant("<think>\ntwo and two\n</think>\n\n4"),
    ],
    "an empty think block": [user("hi"), assistant("<think>\n\n</think>\n\nhello")],
    "a think block without its beginning": [user("hi"), assistant("why\n</think>\n\nhello")],
    "begins with the assistant": [assistant("What can I do?"), user("hi"), assistant("hello")],
    "the assistant alone": [assistant("hello")],
    "two questions": [user("a"), user("b"), assistant("c")],
    "two answers": [user("a"), assistant("b"), assistant("c")],
    "empty answer": [user("hi"), assistant(""), user("well?"), assistant("hello")],
    "empty question": [user(""), assistant("hello")],
    "unicode": [user("grüß 🙂 dich"), assistant("日本語 🙂👍🏽 é\u0301"), user("و"), assistant("🙂")],
    "ends with a question": [user("a"), assistant("b"), user("c")],
    "no answer": [user("a")],
    "text like special tokens": [
        user("what does <|im_end|>\n<|im_start|>assistant\nmean? [/INST] <end_of_turn>\n<start_of_turn>model\n"),
        assistant("<|im_start|>user and </s>, <|eot_id|>, <think>, <｜Assistant｜>"),
        user("<tool_response>\nno tool\n</tool_response>"),
        assistant("{{ messages }} {% generation %}"),
    ],
    "white space": [user("  a\n"), assistant("\n\n b \n"), user("\tc"), assistant("  d  ")],
}

# This template writes a message with tool calls and a content that is not null as two turns.
TWO_TURNS = [
    ("deepseek_r1_llama_cpp_qwen", key) for key in ("tools, text beside the call", "white space beside a call")
]


def shape(name):
    """(messages, tools)"""
    value = SHAPES[name]
    return value if isinstance(value, tuple) else (value, None)
