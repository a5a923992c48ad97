"""Folders of the families that people distil: tokenizers of their classes, their chat templates, and the ids at which
their generation ends, from conversations to shards, against transformers' AutoTokenizer of the folder."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from chat_reference import TOKENIZER, by_transformers, encoder, in_loss, marked_text, samples, text
from chat_shapes import (
    MARKERS,
    SHAPES,
    STOCK,
    SYSTEM,
    TOOLS,
    answer,
    assistant,
    call,
    shape,
    special_tokens,
    user,
)  # fmt: skip
from conversion import convert, documents, masks
from test_random_tokenizers import reference
from tokenize_runs import write_jsonl

from token_shards.chat_messages import check_messages
from token_shards.errors import BadDocument

BYTE_SPLIT = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"


@dataclass(frozen=True)
class Folder:
    model_type: str
    tokenizer_class: str
    ends: tuple  # the tokens of generation_config.json's eos_token_id, that of the base model's first
    spaces: bool = False  # the tokenizer is Gemma's, with ▁ for spaces; others have bytes


FOLDERS = {
    "gemma3": Folder("gemma3", "GemmaTokenizer", ("<eos>", "<end_of_turn>"), spaces=True),
    "gemma4": Folder("gemma4", "GemmaTokenizer", ("<eos>", "<turn|>", "<|tool_response>"), spaces=True),
    "ministral3": Folder("mistral3", "PreTrainedTokenizerFast", ("</s>",)),
    "olmo2": Folder("olmo2", "GPT2Tokenizer", ("<|endoftext|>",)),
    "olmo3": Folder("olmo3", "GPT2Tokenizer", ("<|endoftext|>", "<|im_end|>")),
    "olmo3_think": Folder("olmo3", "GPT2Tokenizer", ("<|endoftext|>", "<|im_end|>")),
    "phi4_mini": Folder("phi3", "GPT2Tokenizer", ("<|endoftext|>", "<|end|>", "<|assistant|>")),
    "qwen3": Folder("qwen3_moe", "Qwen2Tokenizer", ("<|endoftext|>", "<|im_end|>")),
    "qwen3_5": Folder("qwen3_5", "Qwen2Tokenizer", ("<|endoftext|>", "<|im_end|>")),
    "smollm3_unsloth": Folder("smollm3", "PreTrainedTokenizerFast", ("<|endoftext|>", "<|im_end|>")),
}


def described(name):
    """The tokenizer.json of a family."""
    bos = special_tokens(name)["bos_token"]
    out = json.loads(TOKENIZER.to_str())
    if FOLDERS[name].spaces:
        out |= with_spaces()
    elif name == "ministral3":  # as Mistral's tekken
        split = {"type": "Split", "pattern": {"Regex": BYTE_SPLIT}, "behavior": "Isolated", "invert": False}
        bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        out["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_]}
    out["post_processor"] = None
    if name.startswith(("gemma", "ministral")):
        index = next(one["id"] for one in out["added_tokens"] if one["content"] == bos)
        single = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        special = {bos: {"id": bos, "ids": [index], "tokens": [bos]}}
        out["post_processor"] = {
            "type": "TemplateProcessing", "single": single, "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": special,
        }  # fmt: skip
    return out


def with_spaces():
    """The parts of Gemma's tokenizer.json: BPE with ▁ for spaces and tokens for the bytes of other characters."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *MARKERS]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("i", "s"), ("▁", "is"), ("\n", "\n"), ("a", "n"), ("o", "n")]
    characters = sorted(set("▁\n" + "".join(map(chr, range(33, 127)))))
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *characters, *map("".join, merges)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    return {
        "added_tokens": [{"id": index, "content": token, **flags} for index, token in enumerate(special)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                          "invert": False},
        "decoder": {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)}, "merges": [list(pair) for pair in merges],
        },
    }  # fmt: skip


def ids_of(folder, tokens):
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return [next(one["id"] for one in added if one["content"] == token) for token in tokens]


def write_folder(folder, name):
    folder.mkdir()
    config = {"tokenizer_class": FOLDERS[name].tokenizer_class, **special_tokens(name)}
    for file, value in (
        ("tokenizer.json", described(name)),
        ("tokenizer_config.json", config),
        ("config.json", {"model_type": FOLDERS[name].model_type}),
    ):
        (folder / file).write_text(json.dumps(value), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(STOCK[name], encoding="utf-8")
    return folder


def write_ends(folder, ends, file="generation_config.json"):
    (folder / file).write_text(json.dumps({"eos_token_id": ends}))
    return ends


@pytest.mark.parametrize("name", FOLDERS)
def test_shards_of_a_familys_folder_have_the_ids_and_the_assistants_tokens_of_transformers(tmp_path, name):
    folder = write_folder(tmp_path / "model", name)
    write_ends(folder, ids_of(folder, FOLDERS[name].ends))
    theirs = reference(folder)
    assert theirs.chat_template == STOCK[name]
    theirs.chat_template = marked_text(name)
    records = [{"messages": shape(key)[0], "tools": shape(key)[1]} for key in SHAPES]
    source = write_jsonl(tmp_path / "chats.jsonl", records)
    said = convert(folder, tmp_path / "out", "--max-bad", "100%", source)
    expected = [by_transformers(theirs, *shape(key), form=name, return_assistant_tokens_mask=True) for key in SHAPES]
    expected = [sample for sample in expected if sample is not None and any(sample[1])]
    assert len(expected) > 9 and "generation_config.json" not in said
    written = list(zip(documents(tmp_path / "out"), [list(map(int, mask)) for mask in masks(tmp_path / "out")]))
    assert written == [(list(ids), list(mask)) for ids, mask in expected]
    for ids, _ in written:  # the template writes the begin token, and the tokenizer adds none
        assert ids.count(theirs.bos_token_id) <= 1 or theirs.bos_token_id == theirs.eos_token_id
    source = write_jsonl(tmp_path / "text.jsonl", [{"text": "the weather is sunny"}])
    convert(folder, tmp_path / "text", source)
    assert documents(tmp_path / "text") == [[*theirs("the weather is sunny").input_ids, theirs.eos_token_id]]


@pytest.mark.parametrize("name", FOLDERS)
def test_turns_that_end_where_generation_does_not_are_named(tmp_path, name):
    folder = write_folder(tmp_path / "model", name)
    chat = write_jsonl(tmp_path / "chat.jsonl", [{"messages": [user("a"), assistant("b"), user("c"), assistant("d")]}])

    def warnings():
        said = convert(folder, tmp_path / "out", "--overwrite", chat)
        return [line for line in said.splitlines() if "warning" in line and "with which turns end" in line]

    assert not warnings()  # nothing says where generation ends
    first, *others = ids_of(folder, FOLDERS[name].ends)
    [ids], [mask] = documents(tmp_path / "out"), masks(tmp_path / "out")
    ends = {ids[at] for at in range(len(ids)) if mask[at] and (at + 1 == len(ids) or not mask[at + 1])}
    assert ends <= {first, *others}
    write_ends(folder, first)  # as the base model's
    found = warnings()
    assert len(found) == len(ends - {first})
    for line, index in zip(found, ends - {first}):
        token = FOLDERS[name].ends[1 + others.index(index)]
        assert f"generation_config.json: `eos_token_id`: expected {index} ({token}), with which turns end" in line
        assert f"found {first} ({FOLDERS[name].ends[0]})" in line
    write_ends(folder, [first, *others])
    assert not warnings()


def test_the_ends_of_generation_are_read_as_transformers_reads_them(tmp_path):
    folder = write_folder(tmp_path / "model", "gemma3")
    eos, end = ids_of(folder, ("<eos>", "<end_of_turn>"))
    source = write_jsonl(tmp_path / "text.jsonl", [{"text": "the weather"}])

    def said(*args, code=0):
        return convert(folder, tmp_path / "out", "--overwrite", *args, source, code=code)

    assert "warning" not in said()
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": {"eos_token_id": end}}))
    expected = f"`text_config.eos_token_id`: expected {eos} (<eos>), with which text documents end, found {end}"
    assert f"config.json: {expected} (<end_of_turn>)" in said()
    assert "warning" not in said("--no-eos") and "warning" not in said("--eos-token", "<end_of_turn>")
    write_ends(folder, [end, 100_000])  # goes before config.json
    assert f"generation_config.json: `eos_token_id`: expected {eos} (<eos>)" in said()
    assert "`eos_token_id`: 100000: no token of the tokenizer has this id" in said()
    for bad in ("<eos>", -1, True, [1, 2.5], {"a": 1}):
        write_ends(folder, bad)
        assert "generation_config.json: `eos_token_id`: expected an id or a list of ids, found" in said(code=1)
    # Without a named end token, it is the first of these.
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**config, "eos_token": None, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    (folder / "config.json").unlink()
    write_ends(folder, [end, eos])
    said()
    assert documents(tmp_path / "out")[0][-1] == end


# Calls one after the other within one turn, of which an earlier one has thinking that a later question drops.
STEPS = [
    user("weather?"),
    assistant(None, tool_calls=[call("Rome", "a00000001")], reasoning_content="look at Rome"),
    answer({"degrees": 20}, "a00000001"),
    assistant(None, tool_calls=[call("Oslo", "a00000002")], reasoning_content="now Oslo"),
    answer("snow", "a00000002"),
    assistant("Warm in Rome, snow in Oslo."),
]
ROME, OSLO = (
    f'<|tool_call>call:weather{{city:<|"|>{city}<|"|>}}<tool_call|><|tool_response>' for city in ("Rome", "Oslo")
)
WARM = "Warm in Rome, snow in Oslo.<turn|>"


def test_a_turn_of_gemma_4_holds_several_calls():
    thoughts = [f"<|channel>thought\n{one}\n<channel|>" for one in ("look at Rome", "now Oslo")]
    [sample] = samples(encoder("gemma4"), STEPS)
    assert in_loss(sample) == [thoughts[0] + ROME, thoughts[1] + OSLO, WARM]
    [sample] = samples(encoder("gemma4"), [*STEPS, user("thanks"), assistant("Welcome.")])
    assert in_loss(sample) == [ROME, OSLO, WARM, "Welcome.<turn|>"]
    each = samples(encoder("gemma4", turns="each"), [*STEPS, user("thanks"), assistant("Welcome.")])
    assert [in_loss(one) for one in each] == [[thoughts[0] + ROME], [thoughts[1] + OSLO], [WARM], ["Welcome.<turn|>"]]
    assert text(each[1][0]).endswith("response:weather{degrees:20}<tool_response|>" + thoughts[1] + OSLO)
    with pytest.raises(BadDocument, match=r"messages\[1\]: content: .* writes this text after the results of the tool"):
        samples(encoder("gemma4"), [STEPS[0], {**STEPS[1], "content": "I look."}, *STEPS[2:]])


def test_larger_gemmas_4_open_an_empty_thought_in_the_prompt():
    prompt = "    {{- '<|turn>model\\n' -}}\n{%- endif -%}\n"
    thought = "    {{- '' if enable_thinking else '<|channel>thought\\n<channel|>' -}}\n{%- endif -%}\n"
    template = STOCK["gemma4"].replace(prompt, prompt.replace("{%- endif -%}\n", thought))
    assert template != STOCK["gemma4"]
    chat = [user("a"), assistant("b"), *STEPS[:3], STEPS[5]]
    [sample] = samples(encoder("gemma4", template), chat)
    assert in_loss(sample) == ["b<turn|>", "<|channel>thought\nlook at Rome\n<channel|>" + ROME, WARM]
    [first, *_] = samples(encoder("gemma4", template, turns="each"), chat[:2])
    assert text(first[0]).endswith("<|turn>model\n<|channel>thought\n<channel|>b<turn|>")
    assert in_loss(first) == ["b<turn|>"]
    with pytest.raises(BadDocument, match="the think block is closed already"):
        samples(encoder("gemma4", template, turns="each"), chat)


def test_keys_of_messages_hold_the_functions_and_calls_of_olmo_3():
    functions, calls = json.dumps([TOOLS[0]["function"]]), 'weather(city="Paris")'
    chat = [
        {**SYSTEM, "functions": functions},
        user("weather?"),
        {"role": "assistant", "content": None, "function_calls": calls},
        {"role": "environment", "content": "sunny"},
        assistant("<think>Sun.</think>It is sunny."),
    ]
    [sample] = samples(encoder("olmo3_think"), chat)
    expected = [f"<function_calls>{calls}</function_calls><|im_end|>", "Sun.</think>It is sunny.<|endoftext|>"]
    assert in_loss(sample) == expected
    # The tools of the record come to the same place.
    [moved] = samples(encoder("olmo3_think"), [SYSTEM, *chat[1:]], TOOLS)
    assert list(moved[0]) == list(sample[0])
    with pytest.raises(BadDocument, match="tools in the system message only: expected one, found the role user"):
        samples(encoder("olmo3_think"), chat[1:], TOOLS)
    with pytest.raises(BadDocument, match="expected no functions in"):
        samples(encoder("olmo3_think"), chat, TOOLS)
    with pytest.raises(BadDocument, match=r"messages\[2\]: function_calls: the chat template leaves tool calls out"):
        samples(encoder("olmo3"), chat)
    assert check_messages({"messages": [{"role": "environment", "content": "a"}]}, "x:1")[0][0]["role"] == "tool"


def test_the_tools_of_phi_4_mini_stand_in_the_system_turn():
    chat = [SYSTEM, user("weather?"), assistant("sunny")]
    [sample] = samples(encoder("phi4_mini"), chat, TOOLS)
    tools = json.dumps([TOOLS[0]["function"]])
    assert f"Answer briefly.<|tool|>{tools}<|/tool|><|end|><|user|>" in text(sample[0])
    assert text(sample[0]).endswith("<|assistant|>sunny<|end|><|endoftext|>") and in_loss(sample) == ["sunny<|end|>"]


def test_ministral_3_is_told_how_to_think():
    parts = [
        {"type": "text", "text": "First "},
        {"type": "thinking", "thinking": "thoughts", "closed": True},
        {"type": "text", "text": "then the answer."},
    ]
    chat = [{"role": "system", "content": parts}, user("a"), assistant("b")]
    [sample] = samples(encoder("ministral3"), chat)
    assert text(sample[0]) == (
        "<s>[SYSTEM_PROMPT]First [THINK]thoughts[/THINK]then the answer.[/SYSTEM_PROMPT][INST]a[/INST]b</s>"
    )
    assert in_loss(sample) == ["b</s>"]
    with pytest.raises(BadDocument, match=r"messages\[0\]: content: expected text, found a part of type thinking"):
        samples(encoder("qwen3"), chat)
    chat[0]["content"].append({"type": "image"})
    with pytest.raises(BadDocument, match=r'content\[3\]: expected a part of type text, found type "image"'):
        samples(encoder("ministral3"), chat)


def test_tekken_json_beside_tokenizer_json_changes_nothing(tmp_path, monkeypatch):
    """Where mistral-common is installed, transformers would read tekken.json, and our programs never do."""
    from transformers.integrations.mistral import tokenizer
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    folder = write_folder(tmp_path / "model", "ministral3")
    chat = write_jsonl(tmp_path / "chat.jsonl", [{"messages": [user("a"), assistant("b")]}])
    convert(folder, tmp_path / "out", chat)
    (folder / "tekken.json").write_text("{}")
    monkeypatch.setattr(tokenizer, "resolve_mistral_format", lambda *_, **__: (True, str(folder / "tekken.json")))
    monkeypatch.setitem(TOKENIZER_MAPPING_NAMES, "mistral3", "MistralCommonBackend")
    convert(folder, tmp_path / "other", chat)
    assert documents(tmp_path / "other") == documents(tmp_path / "out")


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "ministral3", "qwen3_5"])
def test_images_are_refused_with_file_and_line(tmp_path, name):
    folder = write_folder(tmp_path / "model", name)
    picture = {"type": "image", "image": "cat.png"}
    chats = [[user("a"), assistant("b")], [user([{"type": "text", "text": "a cat?"}, picture]), assistant("yes")]]
    source = write_jsonl(tmp_path / "chat.jsonl", [{"messages": one} for one in chats])
    said = convert(folder, tmp_path / "out", source)
    place = "chat.jsonl:2: messages[0] (user): content[1]"
    assert f'{place}: expected a part of type text, found type "image"' in said
    assert len(documents(tmp_path / "out")) == 1


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5"])
def test_thinking_in_its_key_and_in_the_content_are_one(name):
    keyed, tagged = (samples(encoder(name), shape(key)[0])[0] for key in ("reasoning_content", "think blocks"))
    assert list(keyed[0]) == list(tagged[0]) and np.array_equal(keyed[1], tagged[1])


def test_smollm3_thinks_as_the_system_message_says():
    for flag, head in (("/think", ""), ("/no_think", "<think>\n\n</think>\n")):
        chat = [{"role": "system", "content": f"Be short. {flag}"}, user("a"), assistant("b")]
        [sample] = samples(encoder("smollm3_unsloth"), chat)
        assert f"Reasoning Mode: {flag}\n\n## Custom Instructions\n\nBe short.\n\n" in text(sample[0])
        assert text(sample[0]).endswith(f"<|im_start|>assistant\n{head}b<|im_end|>\n")
        assert in_loss(sample) == ["b<|im_end|>"]
