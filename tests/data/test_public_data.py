"""Ten files as public data sets have them, as a new user would give them: the right samples, and what is said."""

import csv
import json

import pyarrow
import pyarrow.parquet
import pytest
from chat_shapes import STOCK, make_tokenizer
from conversion import convert, documents, masks

SYSTEM = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "w", "parameters": {"type": "object"}}}
]


def question(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("public") / "model"
    folder.mkdir()
    make_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": STOCK["qwen2_5"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def lines(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def chatgpt_export():
    def node(name, parent, role, text, **more):
        content = {"content_type": "text", "parts": [text]}
        message = {
            "id": name,
            "author": {"role": role, "name": None},
            "content": content,
            "weight": 1.0,
            "recipient": "all",
        }
        return {"id": name, "parent": parent, "children": [], "message": {**message, "status": "finished", **more}}

    mapping = {
        "root": {"id": "root", "parent": None, "children": ["s"], "message": None},
        "s": node("s", "root", "system", "", weight=0.0),
        "u": node("u", "s", "user", "Capital of France?"),
        "other": node("other", "u", "assistant", "Lyon."),
        "a": node("a", "u", "assistant", "Paris."),
    }
    text = {"title": "Capital", "create_time": 1.5, "mapping": mapping, "current_node": "a", "is_archived": False}
    image = {"content_type": "multimodal_text", "parts": [{"asset_pointer": "file"}, "What is it?"]}
    with_image = {**mapping, "u": node("u", "s", "user", "", content=image)}
    return json.dumps([text, {**text, "mapping": with_image}]).encode()


def openai_tools():
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "weight": 0},
        {"role": "tool", "tool_call_id": "call_1", "content": "20"},
        {"role": "assistant", "content": "20 degrees.", "weight": 1},
    ]
    return lines([{"messages": messages, "tools": TOOLS, "parallel_tool_calls": False}])


ALPACA = [
    {"instruction": "Add.", "input": "2 and 2", "output": "4"},
    {"instruction": "Say hi.", "input": "", "output": "Hi."},
    {"instruction": "Is it spam?", "input": "win", "output": 1},
]
SHAREGPT = [
    {"id": "x_0", "conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": "hi"},
                                    {"from": "gpt", "value": "hello", "weight": 0}, {"from": "human", "value": "bye"},
                                    {"from": "gpt", "value": "see you"}]},
]  # fmt: skip
PAIR = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
MIXED = [
    {"prompt": "hi", "prompt_id": "p", "messages": PAIR, "chosen": PAIR, "rejected": PAIR},
    {"text": "plain text", "meta": {"from": "web"}},
    {"prompt": "a", "completion": " b", "label": True},
]
THINKING = [{"messages": [PAIR[0], {**PAIR[1], "reasoning_content": "hm"}]}, {"messages": [PAIR[0], PAIR[1]]}]
OASST = [
    {"message_id": "1", "parent_id": None, "text": "Hi?", "role": "prompter"},
    {"message_id": "2", "parent_id": "1", "text": "Hello", "role": "assistant"},
]


def dolly(path):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["instruction", "context", "response", "category"])
        writer.writerow(["When?", 'In 2000,\n"officially".', "In 2000.", "closed_qa"])
        writer.writerow(["A fish?", "", "Tuna", "open_qa"])


def write_all(folder):
    folder.mkdir()
    contents = {
        "conversations.json": chatgpt_export(),
        "openai.jsonl": openai_tools(),
        "alpaca_data.json": json.dumps(ALPACA, indent=2).encode(),
        "sharegpt.jsonl": lines(SHAREGPT),
        "mixed.JSONL": lines(MIXED),
        "thinking.jsonlines": lines(THINKING),
        "oasst.ndjson": lines(OASST),
        "pairs.tsv": b"prompt\tcompletion\nWho?\tMe\n",
    }
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    dolly(folder / "dolly.csv")
    rows = [{"source": "a", "messages": [{**PAIR[0], "name": None}, {**PAIR[1], "name": "bot"}], "reward": 0.5}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet")
    return folder


END, BOS = "<|im_end|>", "<|begin_of_text|>"  # BOS: what this tokenizer puts before texts
# file: [(text without what has a loss, what has a loss)] of its documents, and what is said of it.
EXPECTED = {
    "alpaca_data.json": ([(SYSTEM + question("Add.\n2 and 2"), "4" + END), (SYSTEM + question("Say hi."), "Hi." + END)],
                         "1 output is not text; the first: IN:12: output: expected text, found a number (1)"),
    "conversations.json": ([(SYSTEM + question("Capital of France?"), "Paris." + END)],
                           '1 a message is not text; the first: IN:1: mapping: u: content_type: expected a text'),
    "dolly.csv": ([(SYSTEM + question('When?\nIn 2000,\n"officially".'), "In 2000." + END),
                   (SYSTEM + question("A fish?"), "Tuna" + END)],
                  "not used, about the records: category (2)"),
    "mixed.JSONL": ([(SYSTEM + question("hi"), "ho" + END), ("", BOS + "plain text" + END), (BOS + "a", " b" + END)],
                    "  rejected in 1 record; the first: IN:1"),
    "oasst.ndjson": ([], "2 a single message of a tree (Open Assistant); the first: IN:1: found a single message of a"),
    "openai.jsonl": (None, "  parallel_tool_calls in 1 record; the first: IN:1"),
    "pairs.tsv": ([(BOS + "Who?", "Me" + END)], "records: 1 prompt-completion"),
    "sharegpt.jsonl": ([("<|im_start|>system\nBe brief.<|im_end|>\n" + question("hi") + "hello" + END + "\n"
                         + question("bye"), "see you" + END)], "not used, about the records: id (1)"),
    "thinking.jsonlines": ([(SYSTEM + question("hi"), "ho" + END)],
                           "1 the chat template has no place for thinking; the first: IN:1: messages[1]: the chat"),
    "train-00000-of-00001.parquet": ([(SYSTEM + question("hi"), "ho" + END)],
                                     "  messages[].name in 1 record; the first: IN: row 1"),
}  # fmt: skip


def decoded(folder):
    """[(text without a loss, text with one)] of the documents; the line end after a turn left out."""
    tokenizer = make_tokenizer()
    out = []
    for ids, mask in zip(documents(folder), masks(folder)):
        parts = [[one for one, wanted in zip(ids, mask) if wanted == kind] for kind in (False, True)]
        without, learned = (tokenizer.decode(part, skip_special_tokens=False) for part in parts)
        out.append((without[:-1] if without.endswith("assistant\n\n") else without, learned))
    return out


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_has_the_samples_that_its_authors_mean(tmp_path, model, name):
    source = write_all(tmp_path / "in") / name
    expected, message = EXPECTED[name]
    said = convert(model, tmp_path / "out", source, code=1 if expected == [] else 0)
    assert message.replace("IN", str(source)) in said, said
    if expected:
        assert decoded(tmp_path / "out") == expected


def test_calls_of_an_interface_are_learned_where_their_weight_says_so(tmp_path, model):
    source = write_all(tmp_path / "in") / "openai.jsonl"
    convert(model, tmp_path / "out", source)
    ((without, learned),) = decoded(tmp_path / "out")
    assert learned == "20 degrees." + END
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>' in without
    assert json.dumps(TOOLS[0]) in without


def test_the_whole_folder_is_read_at_once(tmp_path, model):
    folder = write_all(tmp_path / "in")
    (folder / "README").write_text("about this data")
    said = convert(model, tmp_path / "out", folder)
    assert "records: 4 alpaca, 1 chatgpt, 4 messages, 2 prompt-completion, 1 sharegpt, 1 text\n" in said
    assert (
        "left out: 5 bad documents" in said
        and f"not read: 1 files in folders, because of their names: {folder}" in said
    )
    assert len(documents(tmp_path / "out")) == 13


def test_every_table_without_a_header_that_fits_is_named_before_anything_is_read(tmp_path, model):
    folder = write_all(tmp_path / "in")
    (folder / "qa.tsv").write_text("question\tanswer\nWho?\tMe\n")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"x": 1}]), folder / "z.parquet")
    error = convert(model, tmp_path / "out", folder, code=1)
    assert f"{folder}/qa.tsv: expected a header with the column text or messages, found question, answer" in error
    assert "completion (found answer): rename the keys" in error and f"{folder}/z.parquet: expected a column" in error
    assert not (tmp_path / "out").exists()
