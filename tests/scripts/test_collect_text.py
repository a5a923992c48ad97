"""scripts/collect_text.py on the libraries of the interpreter that runs the tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "collect_text.py"


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text") / "all"
    subprocess.run([sys.executable, SCRIPT, "--out", folder], check=True, capture_output=True)
    return folder


def test_train_and_held_out_files_share_nothing(collected):
    train, held_out = read(collected / "train.jsonl"), read(collected / "eval.jsonl")
    assert len(train) > 300 and len(held_out) > 10
    sources = {document["source"] for document in train}
    assert len(sources) == len(train)
    assert not sources & {document["source"] for document in held_out}
    texts = {" ".join(document["text"].split()) for document in train}
    assert len(texts) == len(train), "no document twice"
    assert {source.split("/")[0] for source in sources} == {"python", "torch"}
    share = len(held_out) / (len(train) + len(held_out))
    assert 0.02 < share < 0.08


def test_tests_and_tables_are_left_out(collected):
    documents = read(collected / "train.jsonl")
    for document in documents:
        parts = document["source"].split("/")
        assert not {"test", "tests", "testing"} & set(parts), document["source"]
        assert not parts[-1].startswith("test_")
        assert 700 < len(document["text"]) <= 200_000
    assert "python/encodings/cp037.py" not in {document["source"] for document in documents}


def test_held_out_excerpts_are_consecutive_lines_of_their_files(collected, tmp_path, script):
    script("collect_text.py", "--out", tmp_path / "whole", "--eval-excerpt", "0")
    whole = {document["source"]: document["text"] for document in read(tmp_path / "whole" / "eval.jsonl")}
    excerpts = read(collected / "eval.jsonl")
    assert {document["source"] for document in excerpts} == set(whole)
    for document in excerpts:
        assert document["text"] in whole[document["source"]]
        assert len(document["text"]) <= 4000
    assert (tmp_path / "whole" / "train.jsonl").read_bytes() == (collected / "train.jsonl").read_bytes()


def test_limits_take_a_part_of_the_same_order(collected, tmp_path, script):
    for name in ("one", "two"):
        script("collect_text.py", "--out", tmp_path / name, "--train-mb", "1", "--eval-kb", "20")
    assert (tmp_path / "one" / "train.jsonl").read_bytes() == (tmp_path / "two" / "train.jsonl").read_bytes()
    part, whole = read(tmp_path / "one" / "train.jsonl"), read(collected / "train.jsonl")
    assert part == whole[: len(part)]
    size = sum(len(document["text"].encode()) for document in part)
    assert 500_000 < size <= 1_000_000
    held_out = read(tmp_path / "one" / "eval.jsonl")
    assert 0 < sum(len(document["text"].encode()) for document in held_out) <= 20_000


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--eval-fraction", "1"], "--eval-fraction"),
        (["--train-mb", "-1"], "--train-mb"),
        (["--train-mb", "0.000001"], "nothing left for training"),
    ],
)
def test_bad_limits_are_refused(tmp_path, script, arguments, expected):
    assert expected in script("collect_text.py", "--out", tmp_path / "out", *arguments, code=1)
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_not_replaced(tmp_path, script):
    (tmp_path / "notes.txt").write_text("mine")
    assert "notes.txt" in script("collect_text.py", "--out", tmp_path, "--train-mb", "1", code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
