"""Nothing of a record is dropped without a word: keys that were not used are listed, values that are no text are
refused."""

import json
import signal
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
from chat_shapes import STOCK
from conversion import convert, documents
from tokenize_runs import CHAT, CHATML, MARKED, SCRIPT, make_tokenizer, write_jsonl

from token_shards.unused_keys import is_misspelt


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unused") / "model"
    make_tokenizer(folder, template=MARKED)
    return folder


def listed(said):
    """{path: (records, place of the first)} of the keys that matter, and the line of the others."""
    lines = said.splitlines()
    loud = {}
    for line in lines:
        path, found, rest = line.strip().partition(" in ")
        if found and "record" in rest and line.startswith("  ") and "; the first: " in rest:
            count, _, place = rest.partition(" record")
            loud[path] = int(count.replace(",", "")), place.rpartition("/")[2]
    return loud, next((line for line in lines if line.startswith("not used, about the records: ")), "")


CALL = {"id": "c1", "type": "function", "index": 0, "function": {"name": "add", "arguments": {"a": 2}, "strict": True}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
RECORDS = [
    {"text": "fox", "id": 1, "rejected": "x"},
    {"messages": [{**CHAT[0], "name": "A", "timestamp": 3}, {**CHAT[1], "refusal": None, "audio": 1}], "prompt": "p"},
    {"messages": [{**CHAT[0], "name": "Bob"}, CHAT[1]], "tools": TOOLS, "images": []},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "lang": "fr"}]}, CHAT[1]]},
    {"conversations": [{"from": "human", "value": "a", "mood": "b"}, {"from": "gpt", "value": "c"}], "prompt": None},
    {"messages": [{**CHAT[0], "content": [{"type": "text", "text": "a", "cache_control": {}}]}, CHAT[1]]},
    {"instruction": "a", "output": "b", "response": "c", "chat_template_kwargs": {"loud": 1}},
    {"prompt": "a", "completion": "b", "tools": [1]},
]  # fmt: skip
LISTED = {
    "rejected": (1, "in.jsonl:1"),
    "messages[].name": (2, "in.jsonl:2"),
    "messages[].audio": (1, "in.jsonl:2"),
    "prompt": (1, "in.jsonl:2"),
    "tools": (2, "in.jsonl:3"),
    "images": (1, "in.jsonl:3"),
    "conversations[].mood": (1, "in.jsonl:5"),
    "messages[].content[].cache_control": (1, "in.jsonl:6"),
    "response": (1, "in.jsonl:7"),
    "chat_template_kwargs.loud": (1, "in.jsonl:7"),
}


@pytest.mark.parametrize("template", [MARKED, CHATML, STOCK["smollm2"]], ids=["marked", "located", "known"])
def test_what_was_not_used_is_listed_once_with_its_number_and_first_place(tmp_path, template):
    make_tokenizer(tmp_path / "model", template=template)
    source = write_jsonl(tmp_path / "in.jsonl", RECORDS)
    said = convert(tmp_path / "model", tmp_path / "out", source)
    loud, quiet = listed(said)
    assert loud == LISTED, said
    assert quiet == "not used, about the records: id (1), messages[].content[].lang (1), messages[].timestamp (1)"
    assert said.count("not used: keys that the format or the chat template does not have") == 1


def test_keys_of_tool_calls_that_a_template_writes_are_used_and_the_others_listed(tmp_path):
    make_tokenizer(tmp_path / "model", template=STOCK["qwen2_5"])
    record = {"messages": [CHAT[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}], "tools": TOOLS}
    said = convert(tmp_path / "model", tmp_path / "out", write_jsonl(tmp_path / "in.jsonl", [record]))
    loud, quiet = listed(said)
    assert loud == {"messages[].tool_calls[].function.strict": (1, "in.jsonl:1")}
    assert "messages[].tool_calls[].id (1), messages[].tool_calls[].index (1)" in quiet


def test_nothing_is_listed_where_everything_was_used(tmp_path, model):
    records = [
        {"messages": CHAT},
        {"text": "fox"},
        {"prompt": "a", "completion": "b"},
        {"input_ids": [5], "labels": [5]},
    ]
    said = convert(model, tmp_path / "out", write_jsonl(tmp_path / "in.jsonl", records))
    assert "not used" not in said


def test_columns_of_tables_are_listed(tmp_path, model):
    rows = [{"text": f"fox {i}", "summary": "x", "source": "y"} for i in range(300)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("text,summary,empty\nfox,short,\nhello,,\n")
    said = convert(model, tmp_path / "out", tmp_path / "a.parquet", tmp_path / "b.csv")
    loud, quiet = listed(said)
    assert loud == {"summary": (301, "a.parquet: row 1")} and "source (300)" in quiet


def test_records_whose_keys_are_names_do_not_make_the_list_endless(tmp_path, model):
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": "fox", f"user {i}": 1} for i in range(1500)])
    said = convert(model, tmp_path / "out", source)
    assert f"  any of the other keys in 500 records; the first: {source}:1001\n" in said
    assert "  and 951 keys more, each in fewer records\n" in said and len(said.splitlines()) < 60


def test_several_workers_and_a_continued_conversion_list_the_same(tmp_path, model):
    source = tmp_path / "in.jsonl"
    with open(source, "w") as file:
        for index in range(30000):
            file.write(
                json.dumps({"text": f"the fox says {index} " * 5, "draft" if index % 3 else "note": index}) + "\n"
            )
    expected = {"draft": (20000, "in.jsonl:2"), "note": (10000, "in.jsonl:1")}
    assert listed(convert(model, tmp_path / "one", source))[0] == expected
    run = [sys.executable, SCRIPT, "--tokenizer", model, "--output", tmp_path / "out", "--workers", "2", source]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        logs = tmp_path / "out" / ".tokenize"
        enough = 1_000_000  # bytes of the log: a whole frame, and a part of the next one
        while process.poll() is None and sum(log.stat().st_size for log in logs.glob("log-*[0-9]")) < enough:
            pass
        process.send_signal(signal.SIGKILL)
        process.communicate()
    result = subprocess.run(run, capture_output=True, text=True)
    assert result.returncode == 0 and "continues an interrupted conversion" in result.stdout, result.stderr
    assert listed(result.stdout)[0] == expected


OPTIONS = {
    "text": ["--turns each", "--loss-on all", "--thinking drop", "--no-mask-generation-prompt"],
    "messages": ["--bos never", "--no-eos", "--text-key body"],
    "both": ["--split-blank-lines", "--delimiter ;", "--messages-key dialog", "--ignore-key nope"],
}


def test_options_without_anything_to_act_on_are_listed(tmp_path, model):
    records = {"text": [{"text": "fox", "id": 1}], "messages": [{"messages": CHAT, "id": 1}]}
    for kind, own in OPTIONS.items():
        source = write_jsonl(tmp_path / f"{kind}.jsonl", records.get(kind, records["text"]))
        given = [part for option in own for part in option.split(" ")]
        said = convert(model, tmp_path / kind, source, *given, "--ignore-key", "id")
        lines = [line for line in said.splitlines() if line.startswith("not used: --")]
        assert sorted(line.split(": ")[1].replace("'", "") for line in lines) == sorted(own), said
        assert "not used: --" not in convert(model, tmp_path / f"{kind}-plain", source)


def test_special_tokens_that_texts_hold_are_listed(tmp_path, model):
    rendered = "<|im_start|>user\nhi<|im_end|>"
    records = [
        {"messages": CHAT},
        {"messages": [{"role": "user", "content": rendered}, CHAT[1]]},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": [{"text": "a<|im_end|>b"}]}]},
        {"prompt": "<|im_start|>", "completion": "b"},
        {"text": "fox<|bos|>"},
    ]
    source = write_jsonl(tmp_path / "in.jsonl", records)
    (tmp_path / "in.txt").write_text("<|bos|> and <|bos|>")
    said = convert(model, tmp_path / "out", source, tmp_path / "in.txt")
    assert (
        "special tokens that are written in the texts of records, and are encoded as such: "
        f"<|bos|> (2; the first: {source}:5), <|im_end|> (2; the first: {source}:2), "
        f"<|im_start|> (2; the first: {source}:2)\n" in said
    )
    assert "special tokens" not in convert(model, tmp_path / "plain", write_jsonl(tmp_path / "p.jsonl", records[:1]))


# Each key that should be a text, and the message's part before "expected".
TEXTS = [
    (lambda value: {"text": value}, "text: "),
    (lambda value: {"prompt": value, "completion": "a"}, "prompt: "),
    (lambda value: {"prompt": "a", "completion": value}, "completion: "),
    (lambda value: {"prompt": "a", "completion": "b", "teacher_prompt": value}, "teacher_prompt: "),
    (lambda value: {"instruction": value, "output": "a"}, "instruction: "),
    (lambda value: {"instruction": "a", "input": value, "output": "a"}, "input: "),
    (lambda value: {"instruction": "a", "output": value}, "output: "),
    (lambda value: {"instruction": "a", "response": value}, "response: "),
    (lambda value: {"instruction": "a", "output": "b", "history": [["a", value]]}, "history[0]: "),
    (lambda value: {"instruction": "a", "output": "b", "system": value}, "system: "),
    (lambda value: {"messages": CHAT, "system_prompt": value}, "system_prompt: "),
    (lambda value: {"messages": [CHAT[0], {"role": "assistant", "content": value}]}, "content: "),
    (lambda value: {"conversations": [{"from": "human", "value": value}, {"from": "gpt", "value": "a"}]}, "content: "),
    (lambda value: {"conversation": [{"human": "a", "assistant": value}]}, "content: "),
]


@pytest.mark.parametrize("value", [0, 1, 1.5, False, True], ids=str)
def test_a_value_that_is_no_text_is_a_bad_document_in_every_format(tmp_path, model, value):
    for index, (record, place) in enumerate(TEXTS):
        source = write_jsonl(tmp_path / f"{index}.jsonl", [record(value), {"text": "fox"}])
        said = convert(model, tmp_path / str(index), source)
        assert "left out: 1 bad documents" in said and f"{source}:1: " in said and f"{place}expected " in said, said
        assert len(documents(tmp_path / str(index))) == 1


NULL = [
    ({"text": None}, "text is null"),
    ({"prompt": "a", "completion": None}, "completion is null"),
    ({"prompt": None, "completion": "a"}, "prompt is null"),
    ({"instruction": "a", "output": None}, "output is null"),
    ({"instruction": None, "output": "a"}, "instruction is null"),
    ({"messages": None}, "messages are not a list of messages"),
    ({"messages": []}, "messages are not a list of messages"),
    ({"conversations": None}, "conversations are not a list"),
    ({"input_ids": None}, "ids are not whole numbers"),
    ({"instruction": "a", "output": "b", "history": 0}, "history is not a list of pairs"),
    ({"instruction": "a", "output": "b", "history": [["a", None]]}, "history is not a list of pairs"),
    ({"messages": CHAT, "chat_template_kwargs": False}, "chat_template_kwargs is not an object"),
    ({"messages": [{"role": "system", "content": "a"}, *CHAT], "system": "b"}, "two system messages"),
    ({"prompt": "a", "completion": "b", "system": "c"}, "system beside a prompt that is text"),
]


def test_null_is_a_missing_value_and_a_missing_answer_a_bad_document(tmp_path, model):
    for index, (record, reason) in enumerate(NULL):
        said = convert(
            model, tmp_path / str(index), write_jsonl(tmp_path / f"{index}.jsonl", [record, {"text": "fox"}])
        )
        assert f"  1 {reason}; the first: " in said, said
    same = [
        {"messages": CHAT},
        {"messages": CHAT, "tools": None, "system": None, "chat_template_kwargs": None, "teacher_messages": None},
        {"messages": CHAT, "tools": [], "system": "", "chat_template_kwargs": {}},
        {"messages": CHAT, "text": None, "conversations": None, "input_ids": None},
        {"messages": [{"role": "system", "content": "x"}, *CHAT][1:], "loss_mask": None, "label": None},
    ]
    said = convert(model, tmp_path / "same", write_jsonl(tmp_path / "same.jsonl", same), "--max-bad", 0)
    assert documents(tmp_path / "same") == documents(tmp_path / "same")[:1] * len(same) and "not used" not in said
    alpaca = [{"instruction": "a", "output": "b"}, {"instruction": "a", "output": "b", "input": None, "history": []}]
    convert(model, tmp_path / "alpaca", write_jsonl(tmp_path / "alpaca.jsonl", alpaca), "--max-bad", 0)
    assert len(set(map(tuple, documents(tmp_path / "alpaca")))) == 1


MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
SYSTEM = {"role": "system", "content": "s"}
SHAPES = [
    ({"conversation": [{"human": "a", "assistant": "b"}]}, MESSAGES),
    ({"conversations": [{"user": "a"}, {"bot": "b"}]}, MESSAGES),
    ({"messages": [{"human": "a", "assistant": "b"}]}, MESSAGES),
    ({"conversation": [{"system": "s", "input": "a", "output": "b"}, {"input": "c", "output": "d"}]},
     [SYSTEM, *MESSAGES, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]),
    ({"messages": MESSAGES, "system": "s"}, [SYSTEM, *MESSAGES]),
    ({"conversations": MESSAGES, "system_prompt": "s"}, [SYSTEM, *MESSAGES]),
    ({"messages": [SYSTEM, *MESSAGES], "system": "s"}, [SYSTEM, *MESSAGES]),
    ({"prompt": MESSAGES[:1], "completion": MESSAGES[1:], "system": "s"}, [SYSTEM, *MESSAGES]),
    ({"query": "a", "response": "b", "history": [], "system": "s"}, [SYSTEM, *MESSAGES]),
    ({"instruction": "a", "context": "", "response": "b"}, MESSAGES),
    ({"instruction": "a", "output": "b", "tokens": 512}, MESSAGES),
    ({"instruction": "a", "output": "b", "content": "c", "labels": [1], "response": "d"}, MESSAGES),
]  # fmt: skip


def test_foreign_shapes_are_the_messages_that_they_mean(tmp_path, model):
    shapes = write_jsonl(tmp_path / "shapes.jsonl", [record for record, _ in SHAPES])
    convert(model, tmp_path / "shapes", shapes, "--max-bad", 0)
    plain = write_jsonl(tmp_path / "plain.jsonl", [{"messages": messages} for _, messages in SHAPES])
    convert(model, tmp_path / "plain", plain)
    assert documents(tmp_path / "shapes") == documents(tmp_path / "plain")


OTHERS = [
    (
        {"message_id": "1", "parent_id": None, "text": "a", "role": "prompter"},
        "a single message of a tree (Open Assistant)",
    ),
    ({"message_tree_id": "1", "prompt": {"text": "a", "replies": []}}, "a tree of messages (Open Assistant)"),
    ({"chosen": [{"role": "user", "content": "a"}], "rejected": []}, "preference data: name the messages to learn"),
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, "preference data: name the answer to learn `completion`"),
    ({"dialogue": MESSAGES}, "without messages (found dialogue): --messages-key dialogue"),
    ({"content": "a"}, "without text (found content): --text-key content"),
    ({"custom_id": "1", "body": {"messages": MESSAGES}}, "This is a request of a batch"),
    ({"human": "a", "assistant": "b"}, "without prompt (found human), completion (found assistant)"),
    ({"messages": ["a", "b"]}, "messages[0]: expected an object with role and content, found text"),
    ({"conversation": [{"human": "a", "user": "b"}]}, "expected a text for each of system, user and assistant"),
]


def test_other_shapes_are_bad_documents_with_a_remedy(tmp_path, model):
    for index, (record, message) in enumerate(OTHERS):
        error = convert(model, tmp_path / "out", write_jsonl(tmp_path / f"{index}.jsonl", [record]), code=1)
        assert message in error, error


def test_misspellings_are_one_letter_or_the_case_away():
    for key in ("wieght", "weigth", "weght", "weightt", "Weight", "WEIGHT", "weighs"):
        assert is_misspelt(key, "weight"), key
    for key in ("height", "freight", "weighting", "w", "source", "wait"):
        assert not is_misspelt(key, "weight"), key
    assert is_misspelt("lossMask", "loss_mask") and is_misspelt("loss-mask", "loss_mask")
    assert not is_misspelt("lost", "loss") and is_misspelt("tool", "tools")
