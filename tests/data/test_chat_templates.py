"""Conversations of many shapes in the chat templates of many families, against transformers' apply_chat_template."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from chat_reference import (
    KNOWN,
    TOKENIZER,
    arguments,
    by_transformers,
    encoder,
    in_loss,
    marked_text,
    reference,
    samples,
    text,
    unknown,
)
from chat_shapes import OWN, SHAPES, STOCK, TWO_TURNS, assistant, shape, special_tokens, user

from token_shards import chat_marks, shard_file
from token_shards.errors import BadDocument

ROOT = Path(__file__).resolve().parents[2]


def test_the_stock_templates_of_all_families_are_here_and_recognised():
    assert {chat_marks.recognise(STOCK[name]).name for name in KNOWN} == {f.name for f in chat_marks.FAMILIES}
    assert len(SHAPES) >= 10 and len(KNOWN) >= 6
    for name in KNOWN:
        family = chat_marks.recognise(STOCK[name])
        assert chat_marks.recognise(STOCK[name].replace("\n", "\r\n") + "\n") is family
        assert f"recognised as {family.name}, masks by our marked template" in encoder(name).description
        assert chat_marks.recognise(unknown(STOCK[name])) is None
    documented = (ROOT / "docs" / "tokenize.md").read_text().partition("## Chat templates")[2]
    for family in chat_marks.FAMILIES:
        assert re.search(rf"[|,] {re.escape(family.name)} ?[|,]", documented), family.name


@pytest.mark.parametrize("generation_prompt", [False, True])
@pytest.mark.parametrize("name", KNOWN)
def test_a_marked_template_renders_the_text_of_the_stock_one(name, generation_prompt):
    stock = reference(name)
    marked = reference(name, chat_marks.marked(STOCK[name], chat_marks.recognise(STOCK[name])))
    refused = 0
    for key in SHAPES:
        messages, tools = shape(key)
        for more in ({}, {"enable_thinking": False}, {"enable_thinking": True}, {"mask_generation_prompt": False}):
            options = {"add_generation_prompt": generation_prompt, **more}
            expected = by_transformers(stock, messages, tools, **options)
            assert by_transformers(marked, messages, tools, **options) == expected, (key, more)
            refused += expected is None
    assert refused < 2 * len(SHAPES)


@pytest.mark.parametrize("name", STOCK)
def test_tokens_and_masks_are_those_of_transformers(name):
    stock, ours = reference(name), encoder(name)
    assert ("finding the assistant's texts" in ours.description) == (name in OWN)
    marked = reference(name, marked_text(name)) if marked_text(name) else None
    refused = {"ours": 0, "transformers": 0}
    for key in SHAPES:
        messages, tools = shape(key)
        expected = by_transformers(stock, messages, tools, form=name)
        refused["transformers"] += expected is None
        try:
            [(ids, mask)] = samples(ours, messages, tools)
        except BadDocument as error:
            refused["ours"] += 1
            assert expected is None, (key, str(error))
            assert error.reason and "x:1" in str(error) and "x:1" not in error.reason
            continue
        assert expected is not None and list(ids) == expected[0], key
        if marked:
            _, expected_mask = by_transformers(marked, messages, tools, form=name, return_assistant_tokens_mask=True)
            assert list(mask.astype(int)) == expected_mask, (key, in_loss((ids, mask)))
    assert refused["ours"] == refused["transformers"] < len(SHAPES) - 6


EXPECTED = {
    ("qwen3", "think blocks"): ["2<|im_end|>", "<think>\ntwo and two\n</think>\n\n4<|im_end|>"],
    ("qwen3", "reasoning_content"): ["2<|im_end|>", "<think>\ntwo and two\n</think>\n\n4<|im_end|>"],
    ("qwen3", "single turn"): ["hello<|im_end|>"],
    ("qwen3", "an empty think block"): ["hello<|im_end|>"],
    ("qwen3", "tools"): [
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>',
        "It is sunny.<|im_end|>",
    ],
    ("qwen2_5", "tools, text beside the call"): [
        'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>',
        "Sun.<|im_end|>",
    ],
    ("llama3_1", "tools"): [
        '{"name": "weather", "parameters": {"city": "Paris"}}<|eot_id|>',
        "It is sunny.<|eot_id|>",
    ],
    ("mistral_nemo", "tools"): [
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}, "id": "abc123def"}]</s>',
        "It is sunny.</s>",
    ],
    ("mistral_v0_1", "several turns"): ["first</s>", "second</s>", "third</s>"],
    ("gemma", "several turns"): ["first<end_of_turn>", "second<end_of_turn>", "third<end_of_turn>"],
    ("gemma3", "system"): ["hello<end_of_turn>", "no<end_of_turn>"],
    ("smollm2", "begins with the assistant"): ["What can I do?<|im_end|>", "hello<|im_end|>"],
    ("smollm3_unsloth", "several turns"): ["first<|im_end|>", "second<|im_end|>", "third<|im_end|>"],
    ("deepseek_r1_distill", "think blocks"): ["\n\n2<｜end▁of▁sentence｜>", "\n\n4<｜end▁of▁sentence｜>"],
    ("deepseek_r1_llama_cpp_qwen", "several turns"): [
        f"{t}<｜end▁of▁sentence｜>" for t in ("first", "second", "third")
    ],
    ("gemma4", "several turns"): ["first<turn|>", "second<turn|>", "third<turn|>"],
    ("gemma4", "tools"): [
        '<|tool_call>call:weather{city:<|"|>Paris<|"|>}<tool_call|><|tool_response>',
        "It is sunny.<turn|>",
    ],
    ("ministral3", "reasoning_content"): ["[THINK]one and one[/THINK]2</s>", "[THINK]\ntwo and two\n[/THINK]4</s>"],
    ("ministral3", "tools"): ['[TOOL_CALLS]weather[ARGS]{"city": "Paris"}</s>', "It is sunny.</s>"],
    ("olmo2", "several turns"): ["first<|endoftext|>", "second<|endoftext|>", "third<|endoftext|>"],
    ("olmo3", "tools"): [
        '<function_calls>weather(city="Paris")</function_calls><|im_end|>',
        "It is sunny.<|endoftext|>",
    ],
    ("olmo3_think", "think blocks"): [
        "\none and one\n</think>\n\n2<|im_end|>",
        "\ntwo and two\n</think>\n\n4<|endoftext|>",
    ],
    ("olmo3_think", "single turn"): ["hello<|endoftext|>"],
    ("phi4_mini", "several turns"): ["first<|end|>", "second<|end|>", "third<|end|>"],
    ("qwen3_5", "single turn"): ["hello<|im_end|>"],
    ("qwen3_5", "reasoning_content"): ["2<|im_end|>", "two and two\n</think>\n\n4<|im_end|>"],
    ("qwen3_5", "tools, text beside the call"): [
        "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
        "<|im_end|>",
        "Sun.<|im_end|>",
    ],
}


@pytest.mark.parametrize("name, key", EXPECTED, ids=[f"{name}: {key}" for name, key in EXPECTED])
def test_what_has_loss(name, key):
    [sample] = samples(encoder(name), *shape(key))
    assert in_loss(sample) == EXPECTED[name, key]


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("args", [{}, {"enable_thinking": False}, {"enable_thinking": True}], ids=str)
def test_each_turn_follows_the_prompt_of_inference(name, args):
    if args and "enable_thinking" not in STOCK[name]:
        pytest.skip("the template has no such variable")
    # R1's prompt ends in an open think block; its end is a part of the completion here, as it is at inference.
    options = {"template_args": arguments(**args), "mask_generation_prompt": "deepseek" not in name}
    wrapped, ours = reference(name), encoder(name, turns="each", **options)
    whole = encoder(name, template_args=arguments(**args))
    compared = 0
    for key in SHAPES:
        messages, tools = shape(key)
        if (name, key) in TWO_TURNS:
            continue
        try:
            out = samples(ours, messages, tools)
        except BadDocument:
            # A template that cannot render a part of the conversation; or R1's, unknown, which drops the reasoning.
            continue
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not turns:
            assert len(out) == 1 and not out[0][1].any()
            continue
        assert len(out) == len(turns)
        for index, (ids, mask) in zip(turns, out):
            # A turn without thinking may follow the prompt that has the empty think block.
            may_have = [args] if args or "enable_thinking" not in STOCK[name] else [{}, {"enable_thinking": False}]
            prompts = [
                by_transformers(wrapped, messages[:index], tools, form=name, add_generation_prompt=True, **one)
                for one in may_have
            ]
            assert mask.any() and not mask[: np.argmax(mask)].any()
            if None not in prompts:
                prompt = next(prompt for prompt, _ in prompts if list(ids[: len(prompt)]) == prompt)
                assert not mask[: len(prompt)].any(), (key, index)
            run = in_loss((ids, mask))
            assert len(run) == 1 and text(ids).endswith(run[0]), (key, index)
            compared += 1
        ends = "olmo3" not in name or messages[-1]["role"] == "assistant"  # the last turn has an end of its own
        if "deepseek" not in name and ends and not args and by_transformers(wrapped, messages, tools, form=name):
            [sample] = samples(whole, messages, tools)
            assert in_loss(out[-1])[0] == in_loss(sample)[-1], key
    assert compared >= (6 if "deepseek" not in name else 2)


def test_each_turn_of_r1_has_its_reasoning():
    name, end = "deepseek_r1_distill", "<｜end▁of▁sentence｜>"
    ours = encoder(name, turns="each")
    for key in ("think blocks", "reasoning_content"):
        first, second = samples(ours, *shape(key))
        assert text(first[0]).startswith("<｜begin▁of▁sentence｜><｜User｜>1+1<｜Assistant｜><think>\n")
        assert in_loss(first) == [f"one and one\n</think>\n\n2{end}"]
        assert in_loss(second) == [f"two and two\n</think>\n\n4{end}"]
        assert "one and one" not in text(second[0]) and text(second[0]).count("<think>") == 1
    [plain] = samples(ours, [user("hi"), assistant("hello")])
    assert text(plain[0]).endswith("<think>\n\n</think>\n\nhello" + end) and in_loss(plain) == ["hello" + end]
    [plain] = samples(encoder(name, turns="each", mask_generation_prompt=False), [user("hi"), assistant("hello")])
    assert in_loss(plain) == ["\n</think>\n\nhello" + end]
    assert ours.description.endswith("each turn as generated: the last turn is its reasoning, </think> and its answer")
    with pytest.raises(BadDocument, match="the think block is never closed"):
        samples(encoder(name, unknown(STOCK[name]), turns="each"), *shape("think blocks"))


def test_each_turn_without_thinking_leaves_the_reasoning_out():
    ours = encoder("qwen3", turns="each", template_args=arguments(enable_thinking=False))
    first, second = samples(ours, *shape("reasoning_content"))
    assert in_loss(first) == ["2<|im_end|>"] and in_loss(second) == ["4<|im_end|>"]
    assert "two and two" not in text(second[0]) and text(second[0]).count("<think>") == 1
    found = encoder("qwen3", unknown(STOCK["qwen3"]), turns="each", template_args=arguments(enable_thinking=False))
    with pytest.raises(BadDocument, match="the think block is closed already"):
        samples(found, *shape("reasoning_content"))


@pytest.mark.parametrize("template", ["known", "found"])
def test_last_turn_and_messages_of_a_prompt(template):
    def make(**options):
        return encoder("qwen3", unknown(STOCK["qwen3"]) if template == "found" else None, **options)

    chat = [user("a"), assistant("b"), user("c"), assistant("d"), user("e")]
    [all_turns], [last] = samples(make(), chat), samples(make(turns="last"), chat)
    assert list(all_turns[0]) == list(last[0])
    assert in_loss(all_turns) == ["b<|im_end|>", "d<|im_end|>"] and in_loss(last) == ["d<|im_end|>"]
    for loss_from, expected in ((0, 2), (1, 2), (2, 1), (3, 1), (4, 0)):
        [sample] = samples(make(), chat, loss_from=loss_from)
        assert in_loss(sample) == in_loss(all_turns)[2 - expected :], loss_from
        assert len(samples(make(turns="each"), chat, loss_from=loss_from)) == max(expected, 1)
        [sample] = samples(make(turns="last"), chat, loss_from=loss_from)
        assert in_loss(sample) == in_loss(all_turns)[2 - min(expected, 1) :]
    [(ids, mask)] = samples(make(loss_on="all"), chat)
    assert list(ids) == list(all_turns[0]) and mask is None


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    records = [{"messages": shape(key)[0], "tools": shape(key)[1]} for key in SHAPES]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def tokenise(*args, code=0):
    command = [sys.executable, str(ROOT / "scripts" / "tokenize.py"), "--quiet", *map(str, args)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == code and "Traceback" not in result.stderr, result.stdout + result.stderr
    return result.stderr if code else result.stdout


def write_model(folder, name, template=None):
    folder.mkdir()
    TOKENIZER.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(special_tokens(name)))
    (folder / "chat_template.jinja").write_text(template or STOCK[name], encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["qwen3", "llama3_1", "mistral_nemo", "gemma3", "smollm2", "deepseek_r1_distill"])
def test_a_corpus_of_all_shapes_has_the_documents_of_transformers(tmp_path, chats, name):
    model = write_model(tmp_path / "model", name)
    said = tokenise("--tokenizer", model, "--output", tmp_path / "out", "--max-bad", "100%", "--workers", 2, chats)
    family = chat_marks.recognise(STOCK[name])
    assert f"chat template: recognised as {family.name}" in said
    marked = reference(name, chat_marks.marked(STOCK[name], family))
    out = [by_transformers(marked, *shape(key), form=name, return_assistant_tokens_mask=True) for key in SHAPES]
    refused = sum(sample is None for sample in out)
    without = sum(sample is not None and not any(sample[1]) for sample in out)
    assert f"left out: {refused} bad documents" in said or not refused
    assert f"left out: {without} conversations without an assistant's token" in said
    _, documents, masks = shard_file.read(tmp_path / "out" / "shard-00000.dtok")
    written = [(list(map(int, ids)), list(map(int, mask))) for ids, mask in zip(documents, masks)]
    assert written == [sample for sample in out if sample is not None and any(sample[1])]


def test_the_command_line_has_turns_and_template_arguments(tmp_path, chats):
    model = write_model(tmp_path / "model", "qwen3")
    source = tmp_path / "chat.jsonl"
    source.write_text(json.dumps({"messages": [user("a"), assistant("b"), user("c"), assistant("d")]}) + "\n")
    common = ("--tokenizer", model, "--workers", 1)
    tokenise(
        *common, "--output", tmp_path / "out", "--turns", "each", "--template-arg", "enable_thinking=false", source
    )
    _, documents, masks = shard_file.read(tmp_path / "out" / "shard-00000.dtok")
    assert [in_loss((np.array(d), np.array(m))) for d, m in zip(documents, masks)] == [["b<|im_end|>"], ["d<|im_end|>"]]
    for args, message in (
        (("--template-arg", "nothing=1"), "--template-arg nothing: the chat template has no variable of this name"),
        (("--template-arg", "tools=[]"), "tools is not for --template-arg"),
        (("--template-arg", "enable_thinking=False"), "expected false as JSON writes it"),
        (
            ("--template-arg", "enable_thinking=false", "--template-arg", "enable_thinking=true"),
            "expected each name once, found enable_thinking, enable_thinking",
        ),
        (("--template-arg", "enable_thinking"), "expected NAME=VALUE, found enable_thinking"),
        (("--turns", "some"), "invalid choice: 'some'"),
    ):
        code = 1 if "nothing=1" in args else 2
        assert message in tokenise(*common, "--output", tmp_path / "no", *args, source, code=code)
    (model / "chat_template.jinja").unlink()
    error = tokenise(*common, "--output", tmp_path / "no", source, code=1)
    assert "need a chat template" in error and "--chat-template FILE" in error and not (tmp_path / "no").exists()
