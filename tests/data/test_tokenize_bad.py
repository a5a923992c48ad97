"""Bad documents: what is said about each, how many may be left out."""

import json

import pytest
from conversion import convert, documents
from tokenize_runs import CHAT, make_tokenizer, write_jsonl


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad") / "model"
    make_tokenizer(folder)
    return folder


IDS = [9, 8, 7]
TURNS = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
# (record, reason, a part of the message after FILE:LINE)
BAD = [
    (
        {"promt": "a", "completion": "b"},
        "the keys of no format",
        "Nearest: prompt-completion, without prompt (found promt)",
    ),
    ({"question": "a", "answer": "b"}, "the keys of no format", "found the keys question, answer. Nearest: prompt-"),
    ({"Text": "a"}, "the keys of no format", "Nearest: text, without text (found Text)"),
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, "the keys of no format", "name the answer to learn `completion`"),
    ({"instruction": "a", "input": "b"}, "the keys of no format", "Nearest: alpaca, without output"),
    ({"input_ids": [1, 999]}, "an id outside the vocabulary", "token 1: expected an id from 0 to 288, found 999"),
    ({"input_ids": [-1]}, "an id outside the vocabulary", "token 0: expected an id from 0 to 288, found -1"),
    (
        {"input_ids": [1.5]},
        "ids are not whole numbers",
        "input_ids: expected a list of whole numbers, found a number at position 0: 1.5",
    ),
    ({"input_ids": [True]}, "ids are not whole numbers", "found true or false at position 0: True"),
    ({"input_ids": "abc"}, "ids are not whole numbers", "expected a list of whole numbers, found text"),
    ({"input_ids": [[1]]}, "ids are not whole numbers", "found a list at position 0"),
    ({"input_ids": [10**30]}, "ids are not whole numbers", "expected a list of whole numbers"),
    (
        {"input_ids": IDS, "labels": [-100, 8]},
        "a mask of another length",
        "labels: expected 3 values, as many as input_ids",
    ),
    (
        {"input_ids": IDS, "labels": [8, 7, -100]},
        "labels that are not the ids",
        "labels[0]: expected -100 or the id at the same place, 9, found 8",
    ),
    (
        {"input_ids": IDS, "loss_mask": [0, 2, 1]},
        "a mask that is not 0 and 1",
        "loss_mask[1]: expected 0 or 1, found 2",
    ),
    ({"input_ids": IDS, "labels": IDS, "loss_mask": [1] * 3}, "several masks", "found loss_mask, labels"),
    ({"conversations": []}, "conversations are not a list", "conversations: expected a list, found []"),
    (
        {"conversations": [{"from": "alice", "value": "a"}, TURNS[1]]},
        "an unknown role",
        "conversations[0]: from: expected one of user, human, assistant, gpt",
    ),
    (
        {"conversations": [{"from": "alice", "value": "a"}, TURNS[1]]},
        "an unknown role",
        'found "alice" (the roles alice, gpt)',
    ),
    (
        {"conversations": [*TURNS, {"from": "gpt"}]},
        "a turn has no from and value",
        "conversations[2]: expected an object with from and value, found an object with the keys from",
    ),
    (
        {"conversations": [TURNS[0], {"from": "function_call", "value": "add"}]},
        "not valid JSON",
        "messages[1] (function_call): the call: not valid JSON",
    ),
    (
        {"conversations": [TURNS[0], {"from": "function_call", "value": "[1]"}]},
        "a tool call is not an object",
        "found 1",
    ),
    (
        {"conversations": [TURNS[0], {"from": "gpt", "value": None}]},
        "a message has no content",
        "messages[1] (gpt): content: expected text, found null (the roles human, gpt)",
    ),
    (
        {"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]},
        "prompt and completion are not two texts or two lists of messages",
        "found text and a list",
    ),
    ({"prompt": CHAT[:1], "completion": []}, "completion is empty", "expected messages, found []"),
    (
        {"prompt": "a", "completion": "b", "teacher_prompt": 3},
        "teacher_prompt is not text",
        "expected text, found a number",
    ),
    (
        {"prompt": "a", "completion": "b", "teacher_messages": CHAT},
        "teacher_messages beside a prompt that is text",
        "prompt",
    ),
    (
        {"messages": CHAT[:3], "teacher_messages": CHAT[:1]},
        "teacher_messages without a completion",
        "ends with the assistant",
    ),
    ({"messages": CHAT, "teacher_messages": 1}, "teacher_messages is not a list", "a list of messages, found 1"),
    ({"messages": CHAT, "chat_template_kwargs": [1]}, "chat_template_kwargs is not an object", "found a list"),
    (
        {"messages": CHAT, "chat_template_kwargs": {"messages": []}},
        "chat_template_kwargs sets what each conversation sets",
        "expected variables of the template, found messages",
    ),
    ({"messages": CHAT, "tools": [1]}, "tools are not a list of objects", "tools[0]: expected a list of objects"),
    ({"instruction": 1, "output": "a"}, "instruction is not text", "instruction: expected text, found a number"),
    (
        {"instruction": "a", "output": "b", "history": ["x"]},
        "history is not a list of pairs",
        "history[0]: expected a pair",
    ),
    ({"prompt": "\ud800", "completion": "a"}, "text with half a surrogate pair", "prompt: not Unicode text"),
]


def test_every_mistake_is_named_with_its_line_and_reason(tmp_path, model):
    for index, (record, reason, message) in enumerate(BAD):
        source = tmp_path / f"{index}.jsonl"
        write_jsonl(source, [{"text": "fox"}, record])
        error = convert(model, tmp_path / "out", source, "--max-bad", 0, code=1)
        assert f"1 bad document of 2, and --max-bad allows 0 documents:\n  1 {reason}; the first: " in error, error
        assert f"{source}:2: " in error and message in error, error
        assert not (tmp_path / "out").exists()
    # All of them in one input: counted by reason, and the good document is there.
    every = write_jsonl(tmp_path / "all.jsonl", [{"text": "fox"}, *(record for record, _, _ in BAD)])
    said = convert(model, tmp_path / "out", every, "--max-bad", len(BAD))
    assert f"left out: {len(BAD)} bad documents" in said and len(documents(tmp_path / "out")) == 1
    reasons = [reason for _, reason, _ in BAD]
    for reason in set(reasons):
        line = 2 + reasons.index(reason)
        assert f"  {reasons.count(reason)} {reason}; the first: {every}:{line}: " in said, said


def test_a_key_that_stands_twice_is_a_bad_document_and_no_value_of_it_is_chosen(tmp_path, model):
    message = '{"role": "user", "content": "a", "content": "b"}, {"role": "assistant", "content": "c"}'
    records = ['{"text": "a", "text": "b"}', f'{{"messages": [{message}]}}', '{"text": "fox"}']
    for name, text in (("a.jsonl", "\n".join(records)), ("a.json", f"[{', '.join(records)}]")):
        (tmp_path / name).write_text(text)
        said = convert(model, tmp_path / f"{name}.out", tmp_path / name)
        assert "  2 not valid JSON; the first: " in said and "the key text stands there twice" in said, said
        assert len(documents(tmp_path / f"{name}.out")) == 1


def mixed(path, good, bad):
    """Bad lines first: a share is one of all documents, not of those until then."""
    path.write_text("{\n" * bad + "".join(json.dumps({"text": f"fox {i}"}) + "\n" for i in range(good)))
    return path


def test_one_bad_document_never_ends_a_corpus_and_the_limit_is_exact(tmp_path, model):
    few = mixed(tmp_path / "few.jsonl", 10, 10)
    many = mixed(tmp_path / "many.jsonl", 1980, 20)
    limits = [
        (few, [], True),  # 10 documents
        (many, [], True),  # 1 % of 2000
        (mixed(tmp_path / "f2.jsonl", 10, 11), [], False),
        (mixed(tmp_path / "m2.jsonl", 1979, 21), [], False),
        (many, ["--max-bad", "20"], True),
        (many, ["--max-bad", "19"], False),
        (few, ["--max-bad", "50%"], True),
        (few, ["--max-bad", "49.9%"], False),
        (few, ["--max-bad", "0%"], False),
    ]
    for index, (source, options, fine) in enumerate(limits):
        said = convert(model, tmp_path / str(index), source, *options, code=0 if fine else 1)
        assert ("left out: " in said) == fine, (index, said)
        assert f"{source}:1: not valid JSON" in said
    for wrong in ("x", "-1", "101%", "%"):
        with pytest.raises(SystemExit):
            convert(model, tmp_path / "no", few, "--max-bad", wrong)


def test_after_too_many_bad_documents_a_larger_limit_ends_at_once(tmp_path, model, monkeypatch):
    from token_shards.encode import Encoder

    source = mixed(tmp_path / "in.jsonl", 100, 15)
    error = convert(model, tmp_path / "out", source, code=1)
    assert "15 bad documents of 115, and --max-bad allows 1% or 10 documents" in error and "are kept" in error
    assert not list((tmp_path / "out").glob("*.dtok"))
    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "encode", None)  # nothing is encoded again
        convert(model, tmp_path / "out", source, "--max-bad", "15")
    assert len(documents(tmp_path / "out")) == 100
    # A corrected input begins anew, without --overwrite.
    convert(model, tmp_path / "again", source, code=1)
    convert(model, tmp_path / "again", mixed(source, 50, 0))
    assert len(documents(tmp_path / "again")) == 50


def test_a_corpus_that_is_mostly_bad_ends_early(tmp_path, model, monkeypatch):
    from token_shards import readers

    monkeypatch.setattr(readers, "CHUNK_BYTES", 1000)
    source = mixed(tmp_path / "in.jsonl", 2000, 2000)
    error = convert(model, tmp_path / "out", source, code=1)
    counted = int(error.split(" bad documents of ")[0].split()[-1].replace(",", ""))
    assert 1000 <= counted < 1600 and not (tmp_path / "out").exists()
