"""scripts/tokenize.py with two tokenizers: what is written of texts, pairs and conversations, and what is refused."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizer_folders import TEXTS, byte_level, sentence_piece
from tokenizers import Tokenizer, normalizers

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from token_shards import shard_file
from token_shards.two_tokenizers import TokenBytes, TwoTokenizers

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    return {
        "small": byte_level(folder / "small", 300),
        "large": byte_level(folder / "large", 600),
        "llama": sentence_piece(folder / "llama", 400),
        "lower": byte_level(folder / "lower", 320, normalizer=normalizers.Lowercase()),
    }


def tokenize(tmp_path, folders, student, teacher, records, *options, code=0):
    source = tmp_path / "records.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = [sys.executable, REPOSITORY / "scripts/tokenize.py", "--tokenizer", folders[student], "--quiet"]
    command += ["--teacher-tokenizer", folders[teacher], "--output", tmp_path / "out", "--overwrite", "--workers", 1]
    done = subprocess.run([str(part) for part in [*command, *options, source]], capture_output=True, text=True)
    assert done.returncode == code, done.stderr + done.stdout
    if code:
        return done.stderr
    (path,) = (tmp_path / "out").glob("*.dtok")
    header, tokens, masks = shard_file.read(path)
    return header, list(zip(tokens, masks, *zip(*shard_file.read_teacher(path)))), done.stdout


def known(folders, name):
    file = folders[name] / "tokenizer.json"
    return TokenBytes(Tokenizer.from_file(str(file)), file)


@pytest.mark.parametrize(
    "student, teacher", [("small", "large"), ("large", "small"), ("small", "llama"), ("llama", "large")]
)
def test_both_streams_have_the_text(tmp_path, folders, student, teacher):
    texts = ["Plain words, and 12 numbers.", "Ünïcode — 日本語 🙂 end", " two  spaces\n\tand a tab", "x"]
    header, documents, _ = tokenize(tmp_path, folders, student, teacher, [{"text": text} for text in texts])
    assert header["version"] == 4 and header["flags"] == 11
    assert header["teacher_vocab_size"] == known(folders, teacher).lengths.size
    own, its = known(folders, student), known(folders, teacher)
    for text, (tokens, in_loss, its_tokens, its_in_loss) in zip(texts, documents, strict=True):
        for one, vocabulary, ids, mask in ((student, own, tokens, in_loss), (teacher, its, its_tokens, its_in_loss)):
            found = vocabulary.text(ids[mask]).decode()
            assert found == text or (one == "llama" and found == " " + text)


def test_parts_end_where_both_have_a_boundary_and_begin_with_the_begin_token(tmp_path, folders):
    text = TEXTS[1][:3000]
    options = ("--part-tokens", "40", "--bos", "always")
    header, documents, _ = tokenize(tmp_path, folders, "small", "large", [{"text": text}, {"text": "short"}], *options)
    own, its = known(folders, "small"), known(folders, "large")
    parts = documents[:-1]
    assert len(parts) > 20
    joined = ""
    for tokens, in_loss, its_tokens, its_in_loss in parts:
        assert max(len(tokens), len(its_tokens)) <= 40
        assert tokens[0] == its_tokens[0] == 1 and not in_loss[0] and not its_in_loss[0]
        assert in_loss[1:].all() and its_in_loss[1:].all()
        assert own.text(tokens) == its.text(its_tokens)
        joined += own.text(tokens).decode()
    assert joined == text
    ends = [(int(tokens[-1]), int(its_tokens[-1])) for tokens, _, its_tokens, _ in parts]
    assert ends[-1] == (0, 0) and (0, 0) not in ends[:-1]
    whole, _, its_whole, _ = tokenize(tmp_path, folders, "small", "large", [{"text": text}])[1][0]
    assert sum(len(part[0]) - 1 for part in parts) == len(whole)
    assert sum(len(part[2]) - 1 for part in parts) == len(its_whole)


def test_a_piece_that_is_longer_than_a_part_is_a_part():
    class Lengths:
        drops_first_space = False

        def __init__(self, lengths):
            self.lengths = np.array(lengths)

    both = TwoTokenizers(Lengths([1, 2, 0]), Lengths([1, 8, 0]), 3)
    own, its = np.array([0] * 16 + [2]), np.array([1, 1, 2])  # 16 bytes, and a token without any
    parts = both.divide(own, its, 0, 0)
    assert [(len(a), len(b)) for a, b in parts] == [(8, 1), (9, 2)]


def test_pairs_and_their_teachers_prompts_have_the_completion_in_both_tokens(tmp_path, folders):
    records = [
        {"prompt": "Ranks are ", "completion": "processes."},
        {"prompt": "Q: ", "completion": "the answer", "teacher_prompt": "The answer is the answer. Q: "},
    ]
    _, documents, _ = tokenize(tmp_path, folders, "small", "large", records)
    own, its = known(folders, "small"), known(folders, "large")
    for record, (tokens, in_loss, its_tokens, its_in_loss) in zip(records, documents, strict=True):
        assert own.text(tokens[in_loss]).decode() == its.text(its_tokens[its_in_loss]).decode() == record["completion"]
        assert own.text(tokens[~in_loss]).decode() == record["prompt"]
        assert its.text(its_tokens[~its_in_loss]).decode() == record.get("teacher_prompt", record["prompt"])


def test_a_text_that_a_normalizer_changes_is_a_bad_document(tmp_path, folders):
    records = [{"text": "all lower"}, {"text": "Not Lower"}]
    error = tokenize(tmp_path, folders, "small", "lower", records, "--max-bad", "0", code=1)
    assert re.search(r"record 2|line 2|:2", error) and "from byte 0" in error and "'Not Lower'" in error
    _, documents, said = tokenize(tmp_path, folders, "small", "lower", records, "--max-bad", "1")
    assert len(documents) == 1 and "changes the text in another way" in said


def test_what_cannot_be_is_refused(tmp_path, folders):
    text = [{"text": "a"}]
    assert "found the same" in tokenize(tmp_path, folders, "small", "small", text, code=1)
    ids = [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}]
    assert "ready ids" in tokenize(tmp_path, folders, "small", "large", ids, "--max-bad", "0", code=1)
    source = tmp_path / "records.jsonl"
    command = [sys.executable, REPOSITORY / "scripts/tokenize.py", "--tokenizer", folders["small"], "--output", "x"]
    command += ["--part-tokens", "9", source]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 2 and "--part-tokens goes with --teacher-tokenizer" in done.stderr
