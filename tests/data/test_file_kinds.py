"""Files are what they hold: names in any case, tables in text files, and content that the name does not say."""

import gzip
import io
import json
import zipfile

import pyarrow
import pyarrow.parquet
import pytest
from conversion import convert, documents, masks
from tokenize_runs import CHAT, MARKED, contents, make_tokenizer, write_jsonl

from token_shards import readers
from token_shards.file_kinds import extension, named_kind


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds") / "model"
    make_tokenizer(folder, template=MARKED)
    return folder


RECORDS = [{"text": "The sky is blue"}, {"text": "The sea is green"}]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
TABLE = b"text\nThe sky is blue\nThe sea is green\n"


def parquet():
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), out)
    return out.getvalue()


# Each holds the two records.
FILES = {
    "a.JSONL": LINES,
    "a.Jsonl.GZ": gzip.compress(LINES),
    "a.jsonlines": LINES,
    "a.NDJSON": LINES,
    "a.jsonl.gzip": gzip.compress(LINES),
    "no_gz_in_its_name.jsonl": gzip.compress(LINES),
    "a.Json": json.dumps(RECORDS).encode(),
    "array.jsonl": json.dumps(RECORDS, indent=1).encode(),
    "a.CSV": TABLE,
    "a.csv.gz": gzip.compress(TABLE),
    "a.tsv": TABLE,
    "a.TAB": b"\xef\xbb\xbf" + TABLE.replace(b"\n", b"\r\n"),
    "a.PARQUET": parquet(),
    "parquet_of_another_name.bin": parquet(),
    "parquet_of_another_name.jsonl": parquet(),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_as_what_it_holds(tmp_path, model, name):
    (tmp_path / name).write_bytes(FILES[name])
    said = convert(model, tmp_path / "out", tmp_path / name)
    assert "records: 2 text\n" in said
    convert(model, tmp_path / "plain", write_jsonl(tmp_path / "plain.jsonl", RECORDS))
    assert documents(tmp_path / "out") == documents(tmp_path / "plain")


def test_folders_take_names_in_any_case_and_the_others_are_named(tmp_path, model):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.JSONL", "b.jsonlines", "c.CSV", "d.PARQUET"):
        (folder / name).write_bytes({**FILES, "b.jsonlines": LINES, "c.CSV": TABLE, "d.PARQUET": parquet()}[name])
    for name in ("e.xlsx", "f.json", "g.py"):
        (folder / name).write_text("{}")
    said = convert(model, tmp_path / "out", folder)
    assert "records: 8 text\n" in said
    assert (
        f"not read: 3 files in folders, because of their names: {folder}/e.xlsx, {folder}/f.json, {folder}/g.py" in said
    )
    assert "not read" not in convert(model, tmp_path / "all", folder / "a.JSONL")


def xlsx():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("xl/workbook.xml", "<workbook/>")
    return out.getvalue()


# (name, bytes, a part of the error)
REFUSED = [
    ("a.xlsx", xlsx(), "found a zip archive or a file of an office program (.xlsx): unpack the archive; of a"),
    ("a.csv", xlsx(), "found a zip archive"),
    ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "found a file of an older office program (.xls): save"),
    ("a.arrow", b"ARROW1\0\0" + bytes(600), "found an Arrow file: write it as parquet"),
    ("a.jsonl.bz2", b"BZh91AY&SY" + bytes(600), "found bzip2 data: unpack it"),
    ("a.jsonl.xz", b"\xfd7zXZ\0" + bytes(600), "found xz data"),
    ("a.tar.gz", gzip.compress(bytes(257) + b"ustar\0" + bytes(600)), "found a tar archive: unpack it"),
    ("a.db", b"SQLite format 3\0" + bytes(600), "found an SQLite database: export the table as CSV"),
    ("a.txt", "the fox".encode("utf-16"), "found text in UTF-16: convert it: iconv"),
    ("a.pdf", b"%PDF-1.7\n", "found a PDF: extract its text"),
    ("shard.dtok", b"DISTTOKS" + bytes(600), "found a token shard: it is converted already"),
    ("model.bin", b"\x01\x02\0\0\0" + bytes(600), "expected text, found bytes that are no text: leave the file out"),
    ("a.parquet.gz", gzip.compress(parquet()), "holds parquet within gzip data: unpack it"),
    ("a.txt", LINES, ".txt means text, but its lines are JSON records (the first has the keys text). Say which is "
     "meant: --format jsonl (a document in each record) or --format text (the file is one document, braces and all)"),
    ("a.csv", LINES, ".csv means CSV, but its lines are JSON records"),
    ("a.md", LINES, ".md means text, but its lines are JSON records"),
    ("dump", LINES, "a name without extension means text, but its lines are JSON records"),
    ("one.txt", LINES.splitlines()[0], ".txt means text, but its lines are JSON records"),
    ("dump.txt.gz", gzip.compress(LINES), ".txt means text, but its lines are JSON records"),
    ("a.txt", b"\xef\xbb\xbf" + json.dumps(RECORDS).encode(), "but it holds a JSON array of records. Say which is "
     "meant: --format json"),
    ("lines.json", LINES, ".json may be one document or one a line: say which with --format text or jsonl"),
]  # fmt: skip


@pytest.mark.parametrize("name, data, message", REFUSED, ids=[f"{one[0]}-{i}" for i, one in enumerate(REFUSED)])
def test_what_cannot_be_read_or_may_be_two_things_is_an_error_with_a_remedy(tmp_path, model, name, data, message):
    (tmp_path / name).write_bytes(data)
    error = convert(model, tmp_path / "out", tmp_path / name, code=1)
    assert f"{name}: " in error and message in error, error
    assert not (tmp_path / "out").exists()


def test_the_answer_to_the_question_is_an_option(tmp_path, model):
    (tmp_path / "a.txt").write_bytes(LINES)
    convert(model, tmp_path / "records", tmp_path / "a.txt", "--format", "jsonl")
    convert(model, tmp_path / "text", tmp_path / "a.txt", "--format", "text")
    assert len(documents(tmp_path / "records")) == 2 and len(documents(tmp_path / "text")) == 1


# Texts that look a little like JSON are texts.
@pytest.mark.parametrize(
    "text", ["{\n  fox\n}\n", "{curly} fox\n", "[fox] says\n", "[1, 2]\n", "{}\n{}\n", '{"a": 1}\nfox\n']
)
def test_a_text_with_braces_is_a_text(tmp_path, model, text):
    (tmp_path / "a.txt").write_text(text)
    convert(model, tmp_path / "out", tmp_path / "a.txt")
    assert len(documents(tmp_path / "out")) == 1


def test_standard_input_with_an_array_or_parquet_is_an_error(tmp_path, model, monkeypatch):
    class Input:
        def __init__(self, data):
            self.buffer = io.BufferedReader(io.BytesIO(data))

    for data, message in (
        (b" [" + LINES, "standard input: expected a record on each line, found an array of records (--format json)"),
        (xlsx(), "standard input: expected text, JSON, CSV or parquet, found a zip archive"),
    ):
        assert message in convert(model, tmp_path / "no", "-", stdin=Input(data), monkeypatch=monkeypatch, code=1)
    said = convert(model, tmp_path / "out", "-", "--format", "csv", stdin=Input(TABLE), monkeypatch=monkeypatch)
    assert "records: 2 text" in said


ROWS = [
    {"instruction": 'Say "hi", please', "input": "line one\nline two", "output": "hi, there"},
    {"instruction": "Say\tno", "input": None, "output": ' "no" '},
    {"instruction": "é", "input": "\n", "output": "0"},
]


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quoted_cells_hold_delimiters_quotes_and_line_ends(tmp_path, model, delimiter, end, monkeypatch):
    monkeypatch.setattr(readers, "CHUNK_ITEMS", 1)
    rows = [ROWS[0].keys(), *(row.values() for row in ROWS)]
    cells = [['"' + (cell or "").replace('"', '""') + '"' for cell in row] for row in rows]
    table = "\ufeff" + "".join(delimiter.join(row) + end for row in cells)
    name = "a.tsv" if delimiter == "\t" else "a.csv"
    (tmp_path / name).write_bytes(table.encode())
    convert(model, tmp_path / "out", tmp_path / name, "--delimiter", delimiter)
    convert(model, tmp_path / "plain", write_jsonl(tmp_path / "plain.jsonl", ROWS))
    assert contents(tmp_path / "out") == contents(tmp_path / "plain")


def test_cells_may_hold_the_json_of_lists(tmp_path, model):
    (tmp_path / "a.tsv").write_text(f"messages\tloss_mask\n{json.dumps(CHAT)}\t[0, 0, 0, 1]\n")
    (tmp_path / "b.csv").write_text('input_ids,labels\n"[9, 8, 7]","[-100, 8, 7]"\n')
    convert(model, tmp_path / "out", tmp_path / "a.tsv", tmp_path / "b.csv")
    convert(
        model, tmp_path / "plain", write_jsonl(tmp_path / "p.jsonl", [{"messages": CHAT, "loss_mask": [0, 0, 0, 1]}])
    )
    assert documents(tmp_path / "out") == [*documents(tmp_path / "plain"), [9, 8, 7]]
    assert masks(tmp_path / "out") == [*masks(tmp_path / "plain"), [False, True, True]]


def test_rows_that_do_not_fit_are_bad_documents_and_empty_cells_missing_values(tmp_path, model):
    (tmp_path / "a.csv").write_text('instruction,output\na,b\na\na,b,c\n\n"x\ny",\na,0\n')
    said = convert(model, tmp_path / "out", tmp_path / "a.csv")
    assert "records: 2 alpaca\n" in said and "left out: 3 bad documents" in said
    assert (
        f"2 a row with another number of cells; the first: {tmp_path}/a.csv:3: expected 2 cells, as in the header"
        in said
    )
    assert f"1 output is null; the first: {tmp_path}/a.csv:6: " in said


def test_the_index_that_pandas_writes_is_a_column_without_a_name(tmp_path, model):
    (tmp_path / "a.csv").write_text(",text\n0,the fox\n1,hello\n")
    said = convert(model, tmp_path / "out", tmp_path / "a.csv")
    assert "records: 2 text\n" in said and "not used, about the records: column 1 (2)" in said


TORN = [
    ("a.csv", b'text\n"the fox\nsays', "a.csv:2: not a row of CSV: unexpected end of data"),
    ("a.csv", b'text\nfox\n"the" fox\n', "a.csv:3: not a row of CSV: ',' expected after '\"'"),
    ("a.csv", b"text\nfox \xe9\n", "a.csv:2: not UTF-8: byte 4 is 0xe9 (iconv converts it, from"),
    ("a.csv", b"", "a.csv: expected a header with the names of the columns, found an empty file"),
    ("a.csv", b"text,text\na,b\n", "a.csv: expected a header with a name for each column, found text twice"),
    ("a.csv", b"the fox,says\n", "a.csv: expected a header with the column text or messages, found the fox, says"),
    ("a.csv", b"instruction;output\na;b\n", "Are the columns separated by ';'? (--delimiter)"),
    ("a.tsv", b"instruction,output\na,b\n", "Are the columns separated by ','? (--delimiter)"),
]


@pytest.mark.parametrize("name, data, message", TORN, ids=range(len(TORN)))
def test_a_torn_table_or_one_without_a_header_is_an_error(tmp_path, model, name, data, message):
    (tmp_path / name).write_bytes(data)
    error = convert(model, tmp_path / "out", tmp_path / name, "--max-bad", "100%", code=1)
    assert message in error, error
    assert not (tmp_path / "out").exists()


def test_the_extension_is_that_before_the_compression():
    names = {"a.JSONL.Gz": (".jsonl", "jsonl"), "a.tar.zst": (".tar", "text"), "x/README": ("", "text")}
    assert {name: (extension(name), named_kind(name)) for name in names} == names
