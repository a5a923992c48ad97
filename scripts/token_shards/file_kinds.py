"""What kind a file is: by its first bytes, then by its name."""

import json
import os
import re

from .compressed import BOM, Source
from .errors import InputError

STDIN = "-"
STDIN_NAME = "standard input"
# The names of each kind, in any case; every other name is text.
EXTENSIONS = {
    "text": (".txt", ".md"),
    "jsonl": (".jsonl", ".ndjson", ".jsonlines"),
    "json": (".json",),
    "csv": (".csv",),
    "tsv": (".tsv", ".tab"),
    "parquet": (".parquet",),
}
KINDS = ["auto", *EXTENSIONS]
COMPRESSED = ("", ".gz", ".zst")
_PARQUET = b"PAR1"
_TABLE = "save it as CSV in UTF-8, or as parquet"
# (first bytes, what the file is, what to do)
_FOREIGN = (
    (
        b"PK\x03\x04",
        "a zip archive or a file of an office program (.xlsx)",
        f"unpack the archive; of a table, {_TABLE}",
    ),
    (b"\xd0\xcf\x11\xe0", "a file of an older office program (.xls)", _TABLE),
    (b"%PDF", "a PDF", "extract its text"),
    (b"ARROW1", "an Arrow file", "write it as parquet (datasets: load_from_disk(...).to_parquet(...))"),
    (b"\xff\xff\xff\xff", "an Arrow stream", "write it as parquet (datasets: load_from_disk(...).to_parquet(...))"),
    (b"ORC", "an ORC file", "write it as parquet"),
    (b"Obj\x01", "an Avro file", "write it as parquet"),
    (b"SQLite format 3\0", "an SQLite database", "export the table as CSV"),
    (b"\x89HDF", "an HDF5 file", "write the texts as JSONL"),
    (b"\x93NUMPY", "an array of NumPy", "write the texts or ids as JSONL"),
    (b"DISTTOKS", "a token shard", "it is converted already: give its folder to data.train"),
    (b"BZh", "bzip2 data", "unpack it (bunzip2), or compress it with gzip or zstandard"),
    (b"\xfd7zXZ\0", "xz data", "unpack it (unxz), or compress it with gzip or zstandard"),
    (b"\x04\x22\x4d\x18", "lz4 data", "unpack it (unlz4), or compress it with gzip or zstandard"),
    (b"7z\xbc\xaf", "a 7z archive", "unpack it"),
    (b"Rar!", "a RAR archive", "unpack it"),
    (b"\xff\xfe", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"),
)


def extension(path):
    """The file's extension in small letters, without that of its compression."""
    name = os.path.basename(path).lower()
    for packed in (".gzip", ".zstd", *COMPRESSED[1:]):
        name = name.removesuffix(packed)
    return os.path.splitext(name)[1]


def named_kind(path):
    """The kind by the name alone."""
    return next((kind for kind, names in EXTENSIONS.items() if extension(path) in names), "text")


def kind_of(path, wanted):
    """text, jsonl, json (an array), csv, tsv or parquet. `wanted`: auto, or the kind that the file is to be read as.
    InputError: it is none of them, or may be two."""
    if path == STDIN:
        if wanted == "parquet":
            raise InputError(f"{STDIN_NAME}: parquet cannot be read from a pipe: give the file's name")
        return "jsonl" if wanted == "auto" else wanted
    head, packed = first_bytes(path)
    check_bytes(head, path)
    if head.startswith(_PARQUET):
        if packed != "plain":
            raise InputError(f"{path}: holds parquet within {packed} data: unpack it")
        if wanted not in ("auto", "parquet"):
            raise InputError(f"{path}: holds parquet, and --format says {wanted}")
        return "parquet"
    if wanted != "auto":
        return wanted
    kind = named_kind(path)
    text = head.removeprefix(BOM).lstrip()
    if kind in ("json", "jsonl") and text.startswith(b"["):  # which no record does
        return "json"
    if kind == "json":
        raise InputError(
            f"{path}: .json may be one document or one a line: say which with --format text or jsonl "
            "(an array of records, which begins with [, is read as it is)"
        )
    if kind in ("text", "csv", "tsv"):
        if b"\0" in head:
            raise InputError(
                f"{path}: expected text, found bytes that are no text: leave the file out (--exclude), or say "
                "--format text"
            )
        _check_no_records(text, path, kind)
    return kind


def first_bytes(path):
    """(the first bytes of the file's content, how it is compressed)"""
    try:
        source = Source.open(path)
        with source.stream:
            try:
                return next(iter(source), b""), source.kind
            except InputError:  # damaged data, of which the reader says how far they can be read
                return b"", source.kind
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error}") from error


def check_bytes(head, name):
    """InputError: these first bytes are those of a file that cannot be read here."""
    for magic, what, remedy in _FOREIGN:
        if head.startswith(magic):
            raise InputError(f"{name}: expected text, JSON, CSV or parquet, found {what}: {remedy}")
    if head[257:262] == b"ustar":
        raise InputError(f"{name}: expected text, JSON, CSV or parquet, found a tar archive: unpack it")


def holds_array(path):
    return first_bytes(path)[0].removeprefix(BOM).lstrip().startswith(b"[")


def _check_no_records(text, path, named):
    """InputError: the name says that the file is text or a table, and its content begins with a JSON record."""
    found = None
    if re.match(rb'\[\s*\{\s*"', text):
        found = "json", "it holds a JSON array of records"
    elif text.startswith(b"{"):
        lines = [line for line in text.split(b"\n") if line.strip()]
        whole = lines[: None if text.endswith(b"\n") else -1] or lines[:1]
        keys = [_keys(line) for line in whole[:2]]
        if all(keys):
            found = "jsonl", f"its lines are JSON records (the first has the keys {', '.join(keys[0])})"
    if found is not None:
        kind, what = found
        name = extension(path) or "a name without extension"
        raise InputError(
            f"{path}: {name} means {named.upper() if named != 'text' else named}, but {what}. Say which is meant: "
            f"--format {kind} (a document in each record) or --format text (the file is one document, braces and all)"
        )


def _keys(line):
    """The keys of the JSON object that the line is, or begins with."""
    try:
        value = json.loads(line)
        return list(value) if isinstance(value, dict) else []
    except (ValueError, RecursionError):
        return []
