"""Where records come from: compression, arrays, tables, standard input; and files that are damaged."""

import errno
import gzip
import io
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from conversion import convert, documents
from tokenize_runs import CHAT, SCRIPT, contents, make_tokenizer, write_jsonl

from token_shards import compressed as compressed_files
from token_shards import readers


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs") / "model"
    make_tokenizer(folder)
    return folder


def records(count=300, words=40):
    random = np.random.default_rng(0)
    names = ["the", "quick", "brown", "fox", "says", "é", "hello", "日本"]
    return [{"text": f"{i} " + " ".join(random.choice(names, words))} for i in range(count)]


def lines(texts):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in texts).encode()


def compressed(kind, data):
    """Of two members, which both kinds of files may have."""
    cut = len(data) // 2
    if kind == "gzip":
        return gzip.compress(data[:cut]) + gzip.compress(data[cut:]) + bytes(512)
    return zstandard.compress(data[:cut]) + zstandard.compress(data[cut:])


def many_chunks(monkeypatch):
    monkeypatch.setattr(readers, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(compressed_files, "PACKED_BYTES", 500)


@pytest.fixture
def expected(tmp_path, model):
    (tmp_path / "plain.jsonl").write_bytes(lines(records()))
    convert(model, tmp_path / "plain", tmp_path / "plain.jsonl")
    return contents(tmp_path / "plain")


# Names do not count: a compressed file is known by its first bytes.
FILES = {
    "in.jsonl.gz": lambda data: compressed("gzip", data),
    "in.jsonl.zst": lambda data: compressed("zstd", data),
    "in.ndjson": lambda data: compressed("gzip", data),
    "in.jsonl": lambda data: data.rstrip(b"\n"),
    "in.json": lambda data: b" \n[" + data.rstrip().replace(b"\n", b"\n, ") + b"]\n",
    "in.json.gz": lambda data: compressed("gzip", json.dumps([json.loads(one) for one in data.splitlines()]).encode()),
    "pretty.json": lambda data: json.dumps([json.loads(one) for one in data.splitlines()], indent=2).encode(),
    "bom.jsonl": lambda data: b"\xef\xbb\xbf" + data,
}


@pytest.mark.parametrize("name", FILES)
def test_every_container_gives_the_same_shards(tmp_path, model, expected, name, monkeypatch):
    many_chunks(monkeypatch)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_bytes(FILES[name](lines(records())))
    (tmp_path / "in" / "dataset_info.json").write_text('{"not": "an array"}')
    convert(model, tmp_path / "out", tmp_path / "in")  # in a folder, where a .json without an array is passed over
    assert contents(tmp_path / "out") == expected


def test_parquet_rows_are_read_in_their_order_from_several_row_groups(tmp_path, model, expected, monkeypatch):
    monkeypatch.setattr(readers, "ROWS", 7)
    table = pyarrow.Table.from_pylist([{"id": 1, **record} for record in records()])
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet", row_group_size=50)
    convert(model, tmp_path / "out", tmp_path / "in.parquet")
    assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_standard_input(tmp_path, model, expected, kind):
    data = lines(records())
    command = [sys.executable, SCRIPT, "--tokenizer", model, "--output", tmp_path / "out", "--workers", "2", "-"]
    data = data if kind == "plain" else compressed(kind, data)
    result = subprocess.run(command, input=data, capture_output=True, env={**os.environ, "TERM": "dumb"})
    assert result.returncode == 0, result.stderr
    assert contents(tmp_path / "out") == expected
    assert b"MB read" in result.stderr and b"tokens/s" in result.stderr and b"eta" not in result.stderr


def test_standard_input_as_a_text_and_as_an_array(tmp_path, model, monkeypatch):
    class Input:
        def __init__(self, data):
            self.buffer = io.BufferedReader(io.BytesIO(data))

    for data, kind in ((b"the fox\n\nhello", "text"), (b'[{"text": "the fox\\n\\nhello"}]', "json")):
        out = tmp_path / kind
        convert(model, out, "-", "--format", kind, stdin=Input(data), monkeypatch=monkeypatch)
    assert documents(tmp_path / "text") == documents(tmp_path / "json")
    error = convert(model, tmp_path / "no", "-", "--format", "parquet", code=1)
    assert "standard input: parquet cannot be read from a pipe" in error


def test_a_torn_file_is_an_error_that_says_how_far_it_could_be_read(tmp_path, model, monkeypatch):
    many_chunks(monkeypatch)
    data = lines(records())
    for kind, name in (("gzip", "a.jsonl.gz"), ("zstd", "a.jsonl.zst")):
        source = tmp_path / name
        whole = gzip.compress(data) if kind == "gzip" else zstandard.compress(data)
        for cut in (len(whole) - 3, len(whole) // 2, 30):
            source.write_bytes(whole[:cut])
            error = convert(model, tmp_path / "out", source, code=1)
            assert (
                f"{name}: the {kind} data ends in the middle, after {cut:,} bytes; it could be read up to byte" in error
            )
            assert "whole lines" in error
            assert not (tmp_path / "out").exists()
        source.write_bytes(whole[: len(whole) // 2] + b"garbage" + whole[len(whole) // 2 + 7 :])
        error = convert(model, tmp_path / "out", source, "--max-bad", "100%", code=1)
        assert f"{name}: the {kind} data is damaged" in error
        assert not (tmp_path / "out").exists()


def test_a_torn_array_is_an_error_that_says_how_far_it_could_be_read(tmp_path, model):
    source = tmp_path / "a.json"
    texts = json.dumps(records(20), indent=1)
    for damaged, message in (
        (texts[:-1], "expected , or ] after element 20, found the end of the file (the 20 elements before"),
        (texts[: len(texts) // 2], "not valid JSON: "),
        (
            texts.replace("}, \n", "}\n", 1).replace("},\n", "}\n", 1),
            "a.json:5: expected , or ] after element 1, found '{'",
        ),
        (texts + "]", "expected nothing after the array, found ']' (the 20 elements before could be read)"),
        ("[" + "[" * 100_000, "nested too deeply"),
        ("[1, 2", "a.json:1: expected , or ] after element 2"),
    ):
        source.write_text(damaged)
        error = convert(model, tmp_path / "out", source, "--max-bad", "100%", code=1)
        assert message in error, error
        assert not (tmp_path / "out").exists()
    source.write_text("[]")
    assert "no document came to this output" in convert(model, tmp_path / "out", source, code=1)


def test_a_parquet_file_without_a_known_column_or_with_torn_pages_is_an_error(tmp_path, model):
    two = pyarrow.table([["fox"], ["dog"]], names=["text", "text"])
    pyarrow.parquet.write_table(two, tmp_path / "two.parquet")
    said = convert(model, tmp_path / "out", tmp_path / "two.parquet", code=1)
    assert f"{tmp_path / 'two.parquet'}: expected a name for each column, found text twice" in said
    source = tmp_path / "a.parquet"
    table = pyarrow.table({"question": ["a"] * 5000, "answer": [f"{i}" for i in range(5000)]})
    pyarrow.parquet.write_table(table, source)
    error = convert(model, tmp_path / "out", source, code=1)
    assert "a.parquet: expected a column text or messages, found question, answer" in error
    assert "Nearest: prompt-completion, without prompt (found question), completion (found answer)" in error
    pyarrow.parquet.write_table(pyarrow.table({"text": [f"fox {i}" for i in range(5000)]}), source)
    data = bytearray(source.read_bytes())
    data[200:4000] = bytes(3800)
    source.write_bytes(data)
    assert "a.parquet: not a readable parquet file" in convert(model, tmp_path / "out", source, code=1)
    source.write_bytes(data[:-100])
    assert "a.parquet: not a readable parquet file" in convert(model, tmp_path / "out", source, code=1)
    assert not (tmp_path / "out").exists()


def test_folders_are_searched_through_links_and_in_patterns_each_file_once(tmp_path, model):
    corpus, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    for folder, name in ((corpus / "inner", "a.txt"), (elsewhere, "b.txt")):
        folder.mkdir(parents=True)
        (folder / name).write_text(name)
    (corpus / "link").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(corpus)
    for name, given in (("one", corpus), ("two", corpus / "*"), ("three", corpus / "**" / "*")):
        assert "records: 2 text\n" in convert(model, tmp_path / name, given)
    twice = [corpus / "inner" / "a.txt"] * 2
    assert f"read once: 1 files that were found more than once: {twice[0]}\n" in convert(
        model, tmp_path / "four", *twice
    )
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "three")


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, model, monkeypatch):
    (tmp_path / "corpus" / "closed").mkdir(parents=True)
    (tmp_path / "corpus" / "a.txt").write_text("fox")
    scan = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    said = convert(model, tmp_path / "out", tmp_path / "corpus", code=1)
    assert f"{tmp_path / 'corpus' / 'closed'}: cannot read the folder: Permission denied" in said


def test_patterns_that_no_file_has_are_listed(tmp_path, model):
    (tmp_path / "corpus" / "old").mkdir(parents=True)
    (tmp_path / "corpus" / "old" / "a.txt").write_text("fox")
    (tmp_path / "corpus" / "b.txt").write_text("fox")
    patterns = ["--include", "*.txt", "--include", "*.md", "--exclude", "old", "--exclude", "b.*"]
    said = convert(model, tmp_path / "out", tmp_path / "corpus", *patterns)
    assert [line for line in said.splitlines() if "not used" in line] == [
        "not used: --include *.md: no file in a folder has such a name",
        "not used: --exclude old: no file has such a name (of a folder: '*/old/*')",
    ]


def test_a_tilde_that_no_shell_has_expanded_makes_no_folder(tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("fox")
    with pytest.raises(SystemExit):
        convert(model, "~/out", tmp_path / "a.txt")
    assert not (tmp_path / "~").exists()


def test_a_line_longer_than_a_chunk_and_paragraphs_in_chunks(tmp_path, model, monkeypatch):
    texts = [{"text": "fox " * n} for n in (1, 5000, 2, 3)]
    convert(model, tmp_path / "a", write_jsonl(tmp_path / "a.jsonl", texts))
    (tmp_path / "p.txt").write_text("\n\n".join(f"fox {i}" for i in range(100)))
    convert(model, tmp_path / "p", tmp_path / "p.txt", "--split-blank-lines")
    many_chunks(monkeypatch)
    convert(model, tmp_path / "b", tmp_path / "a.jsonl")
    monkeypatch.setattr(readers, "CHUNK_BYTES", 20)
    convert(model, tmp_path / "q", tmp_path / "p.txt", "--split-blank-lines")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "p") == contents(tmp_path / "q") and len(documents(tmp_path / "q")) == 100


def test_the_number_of_a_line_is_right_in_every_chunk(tmp_path, model, monkeypatch):
    many_chunks(monkeypatch)
    data = lines(records()).splitlines(keepends=True)
    data[250] = b"{\n"
    data[100] = b"\n"
    pairs = {"a.jsonl": b"".join(data), "a.jsonl.gz": gzip.compress(b"".join(data))}
    for name, content in pairs.items():
        (tmp_path / name).write_bytes(content)
        said = convert(model, tmp_path / name.replace(".", "-"), tmp_path / name)
        assert f"{name}:251: not valid JSON" in said
    chats = [{"messages": CHAT}] * 299 + [{"messages": [{"role": "user"}]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(chats), tmp_path / "c.parquet")
    assert "c.parquet: row 300: messages[0] (user)" in convert(model, tmp_path / "c", tmp_path / "c.parquet")
