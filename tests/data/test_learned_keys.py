"""Keys of records that say what is to be learned: they are followed, with every way to find the assistant's turns, or
the document is bad."""

import json

import pyarrow
import pyarrow.parquet
import pytest
from chat_shapes import STOCK
from conversion import convert, documents, masks, teachers
from tokenize_runs import CHATML, MARKED, ROOT, make_tokenizer, write_jsonl

from token_shards.learned import LEARNED_KEYS, MASKS, REFUSED_KEYS, WANTED_KEYS

ASKED = ["2+2?", "Sure?"]
ANSWERS = ["It is five.", "Sorry, four."]
WANTED = "Sorry, four.<|im_end|>"


def chat(first=None, second=None, user=None):
    """The conversation; further keys of its first and second answer and of its last question."""
    return [
        {"role": "user", "content": ASKED[0]},
        {"role": "assistant", "content": ANSWERS[0], **(first or {})},
        {"role": "user", "content": ASKED[1], **(user or {})},
        {"role": "assistant", "content": ANSWERS[1], **(second or {})},
    ]


def sharegpt(messages):
    names = {"user": "human", "assistant": "gpt"}
    rest = [{k: v for k, v in one.items() if k not in ("role", "content")} for one in messages]
    return [{"from": names[one["role"]], "value": one["content"], **more} for one, more in zip(messages, rest)]


# What other trainers' data have, all of them with a loss on the last answer only.
RECORDS = {
    "weight": {"messages": chat({"weight": 0}, {"weight": 1})},
    "weight as floats": {"messages": chat({"weight": 0.0}, {"weight": 1.0})},
    "weight of one": {"messages": chat({"weight": 0})},
    "train": {"messages": chat({"train": False}, {"train": True})},
    "training": {"messages": chat({"training": False})},
    "loss": {"messages": chat({"loss": False}, {"loss": True}, {"loss": None})},
    "loss_scale": {"messages": chat({"loss_scale": 0})},
    "step_loss_mask": {"messages": chat({"step_loss_mask": 0}, {"step_loss_mask": 1})},
    "masked": {"messages": chat({"masked": True}, {"masked": False}, {"masked": True})},
    "two keys that agree": {"messages": chat({"weight": 0, "train": False})},
    "sharegpt weight": {"conversations": sharegpt(chat({"weight": 0}, {"weight": 1}))},
    "sharegpt loss": {"conversations": sharegpt(chat({"loss": False}, {"loss": True}))},
    "xtuner": {
        "conversation": [
            {"system": "", "input": ASKED[0], "output": ANSWERS[0], "output_with_loss": False},
            {"input": ASKED[1], "output": ANSWERS[1], "output_with_loss": True},
        ]
    },
    "loss_mask": {"messages": chat(), "loss_mask": [0, 0, 0, 1]},
    "loss_mask of true and null": {"messages": chat(), "loss_mask": [None, False, None, True]},
    "assistant_masks": {"messages": chat(), "assistant_masks": [0, 0, 0, 1]},
    "sharegpt loss_mask": {"conversations": sharegpt(chat()), "loss_mask": [0, 0, 0, 1]},
    "mask as text": {"messages": json.dumps(chat()), "weights": "[0, 0, 0, 1]"},
    "prompt and completion": {
        "prompt": chat()[:1],
        "completion": chat({"weight": 0})[1:],
        "weight": 1,
    },
    "label true": {"messages": chat({"weight": 0}), "label": True},
}
TEMPLATES = {"marked": MARKED, "located": CHATML, "known": STOCK["smollm2"]}


@pytest.fixture(scope="module", params=TEMPLATES)
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("learned") / "model"
    return folder, make_tokenizer(folder, template=TEMPLATES[request.param])


def in_loss(tokenizer, folder):
    return [
        tokenizer.decode([one for one, wanted in zip(ids, mask) if wanted], skip_special_tokens=False)
        for ids, mask in zip(documents(folder), masks(folder))
    ]


def test_the_loss_is_where_the_record_says(tmp_path, model):
    folder, tokenizer = model
    said = convert(folder, tmp_path / "out", write_jsonl(tmp_path / "in.jsonl", RECORDS.values()))
    assert dict(zip(RECORDS, in_loss(tokenizer, tmp_path / "out"))) == dict.fromkeys(RECORDS, WANTED)
    plain = convert(folder, tmp_path / "plain", write_jsonl(tmp_path / "plain.jsonl", [{"messages": chat()}]))
    assert "weight" not in said and "loss_mask" not in said  # they were used
    # The text is that of a record without the keys.
    assert documents(tmp_path / "out") == documents(tmp_path / "plain") * len(RECORDS), plain
    assert in_loss(tokenizer, tmp_path / "plain") == ["It is five.<|im_end|>" + WANTED]


def test_the_loss_is_where_a_row_of_parquet_says(tmp_path, model):
    folder, tokenizer = model
    rows = [{"messages": chat({"weight": 0}, {"weight": 1})}, {"messages": chat(), "loss_mask": [0, 0, 0, 1]}]
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{**rows[0], "loss_mask": None}, rows[1]]), tmp_path / "in.parquet"
    )
    convert(folder, tmp_path / "out", tmp_path / "in.parquet")
    assert in_loss(tokenizer, tmp_path / "out") == [WANTED] * 2


def test_turns_and_teachers_follow_the_keys_too(tmp_path, model):
    folder, tokenizer = model
    first, second = {"messages": chat({"weight": 0})}, {"messages": chat(None, {"weight": 0})}
    source = write_jsonl(tmp_path / "in.jsonl", [first, second])
    convert(folder, tmp_path / "each", source, "--turns", "each")
    assert in_loss(tokenizer, tmp_path / "each") == [WANTED, "It is five.<|im_end|>"]
    said = convert(folder, tmp_path / "last", source, "--turns", "last")
    assert in_loss(tokenizer, tmp_path / "last") == [WANTED]
    assert "left out: 1 conversations without an assistant's token" in said
    # The completion is both answers at the end, of which one is not learned.
    taught = {
        "messages": [chat()[0], chat()[2], chat({"weight": 0})[1], chat()[3]],
        "teacher_messages": [{"role": "user", "content": "four"}],
    }
    convert(folder, tmp_path / "taught", write_jsonl(tmp_path / "taught.jsonl", [taught]))
    assert in_loss(tokenizer, tmp_path / "taught") == [WANTED]
    ids, mask = teachers(tmp_path / "taught")[0]
    assert tokenizer.decode(list(ids[mask]), skip_special_tokens=False) == WANTED


def test_a_template_that_marks_several_parts_of_a_turn(tmp_path):
    parts = MARKED.replace("{% generation %}", "{% generation %}A{% endgeneration %}: {% generation %}")
    tokenizer = make_tokenizer(tmp_path / "model", template=parts)
    records = [{"messages": chat({"weight": 0})}, {"messages": chat(None, {"weight": 0})}]
    convert(tmp_path / "model", tmp_path / "out", write_jsonl(tmp_path / "in.jsonl", records))
    assert in_loss(tokenizer, tmp_path / "out") == ["A" + WANTED, "AIt is five.<|im_end|>"]


NOTHING = [
    {"messages": chat({"weight": 0}, {"weight": 0})},
    {"messages": chat(), "loss_mask": [0, 0, 0, 0]},
    {"messages": chat(), "weight": 0},
    {"prompt": "a", "completion": "b", "train": False},
    {"text": "a", "loss": False},
    {"input_ids": [5, 6], "weight": 0},
    {"messages": chat()[2:], "teacher_messages": chat()[:1], "loss_mask": [0, 0]},
]


def test_documents_of_which_nothing_is_learned_are_left_out_and_counted(tmp_path, model):
    folder, _ = model
    said = convert(folder, tmp_path / "out", write_jsonl(tmp_path / "in.jsonl", [{"text": "fox"}, *NOTHING]))
    assert f"left out: {len(NOTHING)} documents whose keys say that nothing of them is learned\n" in said
    assert len(documents(tmp_path / "out")) == 1


PAIR = {"prompt": "a", "completion": "b"}
# (record, reason, a part of the message)
BAD = [
    ({"messages": chat({"weight": 0.5})}, "weight is not 0 or 1", "messages[1]: weight: expected 0 or 1, or false or"),
    ({"messages": chat({"train": "yes"})}, "train is not 0 or 1", 'found "yes" (if the key means something else: --ig'),
    ({"messages": chat({"loss": "false"})}, "loss is not 0 or 1", "messages[1]: loss: expected 0 or 1"),
    ({"messages": chat({"weight": 2})}, "weight is not 0 or 1", "is taken or not, it has no other weights"),
    ({"messages": chat({"weight": [0]})}, "weight is not 0 or 1", "found [0]"),
    ({"messages": chat({"weight": 0, "train": True})}, "keys that contradict each other", "weight: 0 and train: true"),
    (
        {"messages": chat({"weight": 0}), "loss_mask": [0, 1, 0, 1]},
        "keys that contradict each other",
        "weight: 0 and loss_mask: 1",
    ),
    ({"messages": chat(None, None, {"train": True})}, "a loss where none can be", "messages[2] (user): train asks for"),
    ({"messages": chat(), "loss_mask": [1, 1, 1, 1]}, "a loss where none can be", "messages[0] (user): loss_mask"),
    (
        {"messages": chat(), "loss_mask": [0, 1]},
        "a mask of another length",
        "loss_mask: expected a value for each of the 4",
    ),
    (
        {"messages": chat(), "loss_mask": [0, 0, 0, "x"]},
        "loss_mask is not 0 or 1",
        "messages[3]: loss_mask: expected 0",
    ),
    ({"messages": chat(), "loss_mask": 0.3}, "loss_mask is not 0 or 1", "found 0.3"),
    ({"conversations": sharegpt(chat({"weight": 0.5}))}, "weight is not 0 or 1", "conversations[1]: weight"),
    (
        {"messages": chat({"mask": 1})},
        "mask cannot be followed",
        "messages[1]: mask: does 1 mean that the loss is taken",
    ),
    ({"messages": chat(), "mask": "User"}, "mask cannot be followed", 'found "User"'),
    (
        {"messages": chat({"train_detail": [{"begin_offset": 0, "end_offset": 1, "train": True}]})},
        "train_detail cannot be followed",
        "the loss is taken on whole turns",
    ),
    (
        {"prompt": chat({"weight": 1})[:3], "completion": chat()[3:]},
        "a loss where none can be",
        "on the completion only",
    ),
    ({**PAIR, "loss_mask": [0, 1]}, "a mask without messages", "loss_mask: expected no mask beside a prompt"),
    ({**PAIR, "weight": 0.7}, "weight is not 0 or 1", "found 0.7"),
    ({**PAIR, "label": False}, "label says that the answer is not wanted", "label: false: preference data"),
    ({"messages": chat(), "kto_tag": False}, "kto_tag says that the answer is not wanted", "kto_tag: false"),
    ({"instruction": "a", "output": "b", "loss_mask": [1]}, "a mask without messages", "beside instruction and output"),
    ({"input_ids": [5, 6], "turn_mask": [0, 1]}, "a mask without messages", "their masks are loss_mask"),
    (
        {"messages": chat({"wieght": 0})},
        "a key that is probably misspelt",
        "messages[1]: expected the key weight, or an",
    ),
    ({"messages": chat({"Train": False})}, "a key that is probably misspelt", "expected the key train, or another one"),
    ({"messages": chat(), "lossMask": [0, 0, 0, 1]}, "a key that is probably misspelt", "expected the key loss_mask"),
    ({"messages": chat(), "tool": []}, "a key that is probably misspelt", "found tool (if it is meant: --ignore-key"),
    ({**PAIR, "teacher_promt": "c"}, "a key that is probably misspelt", "expected the key teacher_prompt"),
]


def test_what_cannot_be_followed_is_a_bad_document_that_names_the_key(tmp_path):
    make_tokenizer(tmp_path / "model")
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "fox"}])
    for index, (record, reason, message) in enumerate(BAD):
        source = write_jsonl(tmp_path / f"{index}.jsonl", [{"text": "fox"}, record])
        error = convert(tmp_path / "model", tmp_path / "out", source, "--max-bad", 0, code=1)
        assert f"  1 {reason}; the first: {source}:2: " in error and message in error, error


def test_loss_on_all_does_not_override_a_key(tmp_path):
    make_tokenizer(tmp_path / "model")
    record = {"messages": chat({"weight": 0})}
    source = write_jsonl(tmp_path / "in.jsonl", [record, {"messages": chat({"weight": 1})}])
    said = convert(tmp_path / "model", tmp_path / "out", source, "--loss-on", "all")
    assert "1 a message without loss under --loss-on all; the first: " in said
    assert "in.jsonl:1: messages[1] (assistant): weight asks for no loss" in said


def test_an_ignored_key_is_passed_over_and_listed(tmp_path):
    tokenizer = make_tokenizer(tmp_path / "model", template=MARKED)
    records = [{"messages": chat({"weight": 0.5}), "weight": 12.5}, {"text": "fox", "weight": 3}]
    source = write_jsonl(tmp_path / "in.jsonl", records)
    said = convert(tmp_path / "model", tmp_path / "out", source, "--ignore-key", "weight")
    assert f"  weight in 2 records; the first: {source}:1\n" in said
    assert f"  messages[].weight in 1 record; the first: {source}:1\n" in said
    assert in_loss(tokenizer, tmp_path / "out")[0] == "It is five.<|im_end|>" + WANTED


@pytest.mark.parametrize("key", LEARNED_KEYS)
def test_every_key_of_a_message_is_followed(tmp_path, key):
    tokenizer = make_tokenizer(tmp_path / "model", template=MARKED)
    wanted, not_wanted = (int(LEARNED_KEYS[key] == value) for value in (True, False))
    source = write_jsonl(tmp_path / "in.jsonl", [{"messages": chat({key: not_wanted}, {key: wanted})}])
    convert(tmp_path / "model", tmp_path / "out", source, "--max-bad", 0)
    assert in_loss(tokenizer, tmp_path / "out") == [WANTED]


@pytest.mark.parametrize("key", MASKS)
def test_every_mask_is_followed(tmp_path, key):
    tokenizer = make_tokenizer(tmp_path / "model", template=MARKED)
    source = write_jsonl(tmp_path / "in.jsonl", [{"messages": chat(), key: [0, 0, 0, 1]}])
    convert(tmp_path / "model", tmp_path / "out", source, "--max-bad", 0)
    assert in_loss(tokenizer, tmp_path / "out") == [WANTED]


def test_the_documentation_has_every_key():
    text = (ROOT / "docs" / "tokenize.md").read_text()
    assert [
        key for key in (*LEARNED_KEYS, *MASKS, *WANTED_KEYS, "mask", "train_detail") if f"`{key}`" not in text
    ] == []
    assert set(REFUSED_KEYS) == {"mask", "train_detail", "training_detail"}
