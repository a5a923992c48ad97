"""What the files of a tokenizer's folder say, against transformers' AutoTokenizer of the same folder."""

import json

import pytest
from conversion import convert, documents
from test_random_tokenizers import reference
from tokenize_runs import make_tokenizer, write_jsonl

from token_shards import shard_file
from token_shards.tokenizer_files import TokenizerFiles

TEXT = "the quick brown fox says <|new|> hello <|bos|> to the other fox " * 3


def changed(folder, *, config=None, described=None, **files):
    """A folder with a byte-level tokenizer of 300 tokens; `config` and `described` replace keys of its two files."""
    make_tokenizer(folder)
    for name, more in (("tokenizer_config.json", config), ("tokenizer.json", described)):
        value = json.loads((folder / name).read_text())
        if name == "tokenizer_config.json":
            value |= {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>"}
        (folder / name).write_text(json.dumps(value | (more or {})))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def vocabulary(folder):
    return json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]


def token(content, **flags):
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"content": content, **{name: False for name in names}, **flags}


def converted(folder, tmp_path, *options, text=TEXT):
    source = write_jsonl(tmp_path / "text.jsonl", [{"text": text}])
    said = convert(folder, tmp_path / "out", "--overwrite", *options, source)
    return documents(tmp_path / "out")[0], said


def template(*tokens):
    """A post-processor that adds tokens of the vocabulary around `$A`."""
    single = [
        {"Sequence": {"id": "A", "type_id": 0}} if one == "$A" else {"SpecialToken": {"id": one, "type_id": 0}}
        for one in tokens
    ]
    ids = {"<|bos|>": 0, "<|end|>": 1, "<|im_start|>": 2, "<|im_end|>": 3}
    special = {one: {"id": one, "ids": [ids[one]], "tokens": [one]} for one in tokens if one != "$A"}
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": special}


ADDED = {
    "in added_tokens_decoder": {"config": {"added_tokens_decoder": {"700": token("<|new|>", special=True)}}},
    "with flags": {"config": {"added_tokens_decoder": {"300": token("<|new|>", lstrip=True, rstrip=True)}}},
    "named": {"config": {"sep_token": "<|new|>"}},
    "with a name of its own": {"config": {"image_token": "<|new|>"}},
    "in extra_special_tokens": {"config": {"extra_special_tokens": ["<|other|>", "<|new|>"]}},
    "in extra_special_tokens by name": {"config": {"extra_special_tokens": {"new_token": "<|new|>"}}},
    "in additional_special_tokens": {"config": {"additional_special_tokens": ["<|new|>"]}},
    "in special_tokens_map.json": {"special_tokens_map": {"additional_special_tokens": ["<|new|>"]}},
    "in added_tokens.json": {"added_tokens": {"<|new|>": 5, "<|more|>": 4}},
    "in added_tokens.json and as an object": {
        "config": {"sep_token": {"__type": "AddedToken", **token("<|new|>")}}, "added_tokens": {"<|new|>": 5},
    },
    "not in added_tokens.json": {"config": {"added_tokens_decoder": {}}, "added_tokens": {"<|new|>": 300}},
    "of the saved padding": {
        "described": {
            "padding": {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                        "pad_type_id": 0, "pad_token": "<|new|>"},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("case", ADDED)
def test_tokens_beside_tokenizer_json_are_added_as_transformers_adds_them(tmp_path, case):
    folder = changed(tmp_path / "model", **ADDED[case])
    theirs = reference(folder)
    ids, _ = converted(folder, tmp_path)
    assert ids == [*theirs(TEXT).input_ids, theirs.eos_token_id]
    added = (
        0 if case.startswith("not") else 2 if "<|other|>" in str(ADDED[case]) or "<|more|>" in str(ADDED[case]) else 1
    )
    size = shard_file.read(tmp_path / "out/shard-00000.dtok")[0]["vocab_size"]
    assert size == len(theirs) == len(vocabulary(folder)) + added
    assert (theirs.convert_tokens_to_ids("<|new|>") in ids) == (added > 0)


def test_flags_of_both_files_are_those_of_the_configuration(tmp_path):
    plain = changed(tmp_path / "plain")
    described, size = json.loads((plain / "tokenizer.json").read_text())["added_tokens"], len(vocabulary(plain))
    folder = changed(
        tmp_path / "model",
        described={"added_tokens": [*described, {"id": size, **token("<|new|>")}]},
        config={"added_tokens_decoder": {"7": token("<|new|>", lstrip=True, special=True)}},
    )
    found = TokenizerFiles.load(folder).tokenizer().get_added_tokens_decoder()[size]
    assert found == reference(folder).added_tokens_decoder[size] and found.lstrip and found.special


def test_saved_padding_and_truncation_are_switched_off(tmp_path):
    padding = {
        "strategy": {"Fixed": 16}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0,
        "pad_token": "<|end|>",
    }  # fmt: skip
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    around = {"post_processor": template("<|bos|>", "$A")}
    expected, _ = converted(changed(tmp_path / "plain", described=around), tmp_path)
    saved = changed(tmp_path / "model", described=around | {"padding": padding, "truncation": truncation})
    assert converted(saved, tmp_path)[0] == expected
    assert expected[0] == 0 and len(expected) > 20
    pair = write_jsonl(tmp_path / "pair.jsonl", [{"prompt": "the", "completion": " fox"}])
    convert(saved, tmp_path / "out", "--overwrite", pair)
    assert documents(tmp_path / "out") == [[*reference(saved)("the fox").input_ids, 3]]


@pytest.mark.parametrize(
    "around, options, before, after",
    [
        (("$A",), (), [], [3]),
        (("<|bos|>", "$A"), (), [0], [3]),
        (("<|bos|>", "$A", "<|im_end|>"), (), [0], [3]),
        (("<|bos|>", "<|im_start|>", "$A", "<|end|>"), (), [0, 2], [1, 3]),
        (("<|bos|>", "$A", "<|end|>"), ("--no-eos",), [0], []),
        (("<|bos|>", "$A"), ("--bos", "never"), [], [3]),
    ],
)
@pytest.mark.parametrize("text", ["hello", "<|bos|>hello<|im_end|>"])
def test_documents_have_what_the_post_processor_adds_and_one_end(tmp_path, around, options, before, after, text):
    folder = changed(tmp_path / "model", described={"post_processor": template(*around)})
    ids, _ = converted(folder, tmp_path, *options, text=text)
    plain = reference(folder)("hello", add_special_tokens=False).input_ids
    if text == "hello":
        assert ids == [*before, *plain, *after]
    else:  # never two of a kind
        assert ids.count(0) == 1 and ids.count(3) == 1 and ids[-1] == 3


def test_the_begin_token_is_found_where_common_letters_have_no_token(tmp_path):
    vocab = {"<|bos|>": 0, "<|end|>": 1, "<|im_start|>": 2, "<|im_end|>": 3, "fox": 4}
    folder = changed(
        tmp_path / "model",
        described={
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": template("<|bos|>", "$A"),
        },
    )
    assert converted(folder, tmp_path, text="<|im_start|> a fox")[0] == [0, 2, 3]


def test_the_text_of_special_tokens_is_split_where_the_configuration_says_so(tmp_path):
    folder = changed(tmp_path / "model", config={"split_special_tokens": True})
    ids, _ = converted(folder, tmp_path)
    assert ids == [*reference(folder)(TEXT).input_ids, 3] and 0 not in ids


def rebuilt(folder, *, tokens=("<|endoftext|>",)):
    """A folder that transformers loads with a class of its own, Qwen2Tokenizer."""
    changed(folder, config={"tokenizer_class": "Qwen2Tokenizer"})
    described = json.loads((folder / "tokenizer.json").read_text())
    for one in tokens:
        described["model"]["vocab"][one] = len(described["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return folder


def test_a_class_that_replaces_parts_of_the_file_is_followed_and_named(tmp_path):
    folder = rebuilt(tmp_path / "model")
    text = "the fox's 12345 e\u0301 ..."
    ids, said = converted(folder, tmp_path, text=text)
    assert ids == [*reference(folder)(text).input_ids, 3]
    assert "loads it as Qwen2Tokenizer, whose normalizer, pre_tokenizer differ from the file's" in said


def test_tokens_that_only_transformers_adds_are_named_and_saving_mends_it(tmp_path):
    folder = rebuilt(tmp_path / "model", tokens=())
    source = write_jsonl(tmp_path / "text.jsonl", [{"text": TEXT}])
    said = convert(folder, tmp_path / "out", source, code=1)
    assert f'only transformers: id {len(vocabulary(folder))} "<|endoftext|>"' in said and "save_pretrained" in said
    assert not list((tmp_path / "out").glob("*.dtok"))
    reference(folder).save_pretrained(tmp_path / "saved")
    ids, _ = converted(tmp_path / "saved", tmp_path)
    assert ids == [*reference(folder)(TEXT).input_ids, 3]


def test_a_file_of_another_name_is_read_with_the_files_beside_it(tmp_path):
    folder = rebuilt(tmp_path / "model")
    (folder / "tokenizer.json").rename(folder / "mine.json")
    ids, _ = converted(folder / "mine.json", tmp_path)
    (folder / "mine.json").rename(folder / "tokenizer.json")
    assert ids == converted(folder, tmp_path)[0] == [*reference(folder)(TEXT).input_ids, 3]


REFUSED = {
    "dropout": ({"model.dropout": 0.1}, {}, ["tokenizer.json: `model.dropout`: expected null", "found 0.1"]),
    "two texts in one": (
        {"post_processor": template("$A", "<|bos|>", "$A")}, {}, ["`post_processor`: expected one that adds tokens"],
    ),
    "one text after normalization": (
        {"normalizer": {"type": "Lowercase"}},
        {"added_tokens_decoder": {"1": token("<X>", normalized=True), "2": token("<x>", normalized=True)}},
        ['added tokens "<X>" and "<x>"', '"normalized": false'],
    ),
    "no text after normalization": (
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"added_tokens_decoder": {"1": token("\n", normalized=True)}},
        ['added token "\\n": expected a text of which normalization leaves something', '"normalized": false'],
    ),
    "no object": ({}, {"added_tokens_decoder": []}, ["tokenizer_config.json: `added_tokens_decoder`", "found []"]),
    "no token": ({}, {"added_tokens_decoder": {"1": {"content": 1}}}, ["`added_tokens_decoder.1`", '{"content": 1}']),
    "no id": ({}, {"added_tokens_decoder": {"x": {"content": "1"}}}, ["`added_tokens_decoder.x`", "expected an id"]),
    "no list": ({}, {"additional_special_tokens": 1}, ["`extra_special_tokens`: expected a list, found 1"]),
    "no text": ({}, {"eos_token": 3}, ["tokenizer_config.json: `eos_token`: expected a token", "found 3"]),
    "foreign code": ({}, {"tokenizer_class": "X", "auto_map": {"AutoTokenizer": [None, "x.X"]}}, ["cannot load"]),
    "no tokenizers": ({}, {"tokenizer_class": "ByT5Tokenizer"}, ["ByT5Tokenizer", "does not read tokenizer.json"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_as_transformers_reads_it_is_refused(tmp_path, case):
    described, config, says = REFUSED[case]
    folder = changed(tmp_path / "model", config=config, described={k: v for k, v in described.items() if "." not in k})
    if "model.dropout" in described:
        value = json.loads((folder / "tokenizer.json").read_text())
        value["model"]["dropout"] = described["model.dropout"]
        (folder / "tokenizer.json").write_text(json.dumps(value))
    source = write_jsonl(tmp_path / "text.jsonl", [{"text": TEXT}])
    said = convert(folder, tmp_path / "out", source, code=1)
    assert all(text in said for text in says), said
    assert str(folder) in said and not list((tmp_path / "out").glob("*.dtok"))


def test_an_id_of_two_tokens_is_a_warning_and_of_two_added_ones_an_error(tmp_path):
    folder = changed(tmp_path / "model", config={"added_tokens_decoder": {"900": token("<|new|>")}})
    described = json.loads((folder / "tokenizer.json").read_text())
    vocab = described["model"]["vocab"]
    size = len(vocab)
    described["model"]["vocab"] = vocab = {one: at + (at > 280) for one, at in vocab.items()}  # 281 is no id
    (folder / "tokenizer.json").write_text(json.dumps(described))
    ids, said = converted(folder, tmp_path)
    assert ids == [*reference(folder)(TEXT).input_ids, 3] and size in ids
    last = next(one for one, at in vocab.items() if at == size)
    tokens = " and ".join(json.dumps(one, ensure_ascii=False) for one in sorted(["<|new|>", last]))
    assert f"stand for several tokens, which no model can tell apart: {size} ({tokens})" in said
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"]["901"] = token(last)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    said = convert(folder, tmp_path / "out", "--overwrite", tmp_path / "text.jsonl", code=1)
    assert 'added tokens "<|new|>" and ' in said and f"found {size} for both" in said
