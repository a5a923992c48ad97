"""Reads documents from text, JSONL and parquet files as items, which the workers turn into tokens."""

import fnmatch
import glob
import gzip
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

TEXT_PATTERNS = ["*.txt", "*.md", "*.jsonl", "*.jsonl.gz", "*.parquet"]


class InputError(Exception):
    """A mistake in the input or in the arguments. The message says the file, the line and the mistake."""


def json_name(value):
    """What JSON calls a value, for errors."""
    if value is None:
        return "null"
    names = ((bool, "true or false"), (str, "text"), ((int, float), "a number"), (list, "a list"), (dict, "an object"))
    return next((name for kind, name in names if isinstance(value, kind)), f"a {type(value).__name__}")


def load_json(text, where):
    """The value. InputError: the text is not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InputError(f"{where}: JSON that is nested too deeply to be a document") from error
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON: {error}") from error


@dataclass
class Item:
    where: str  # file, or file:line
    kind: str  # text | json (one line of JSONL) | messages
    value: object  # str or bytes | bytes | {"messages": [...], "tools": [...]}


def find_files(paths, include, exclude):
    """Files, folders (recursively, the names that match `include`) and glob patterns, in a fixed order, each once."""
    files = {}
    for path in paths:
        if os.path.isdir(path):
            found = _walk(path, include or TEXT_PATTERNS)
            if not found:
                patterns = ", ".join(include or TEXT_PATTERNS)
                raise InputError(f"{path}: expected files named {patterns} in this folder, found none (see --include)")
        elif os.path.isfile(path):
            found = [path]
        else:
            found = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
            if not found:
                raise InputError(f"{path}: no such file or folder, and no file matches it as a pattern")
        for name in found:
            if not any(fnmatch.fnmatch(name, e) or fnmatch.fnmatch(os.path.basename(name), e) for e in exclude):
                files.setdefault(os.path.realpath(name), name)
    if not files:
        raise InputError("--exclude leaves no input file")
    return list(files.values())


def _walk(folder, include):
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        found += [
            os.path.join(root, name)
            for name in sorted(names)
            if not name.startswith(".") and any(fnmatch.fnmatch(name, pattern) for pattern in include)
        ]
    return found


def kind_of(path, kind):
    if kind != "auto":
        return kind
    name = path.removesuffix(".gz")
    if name.endswith(".json"):
        raise InputError(f"{path}: .json may be one document or one a line: say which with --format text or jsonl")
    return "jsonl" if name.endswith((".jsonl", ".ndjson")) else "parquet" if name.endswith(".parquet") else "text"


class Reader:
    """Iterates over the items of all files; `bytes_read` out of `bytes_total` is its progress."""

    def __init__(self, files, options):
        self.files = files
        self.options = options
        self.bytes_total = sum(os.path.getsize(file) for file in files)
        self.bytes_read = 0

    def __iter__(self):
        readers = {"text": self._text, "jsonl": self._jsonl, "parquet": self._parquet}
        done = 0
        for file in self.files:
            try:
                yield from readers[kind_of(file, self.options.format)](file, done)
            except (OSError, EOFError) as error:
                raise InputError(f"{file}: cannot read: {error}") from error
            done += os.path.getsize(file)
            self.bytes_read = done

    def _text(self, file, done):
        with _open(file) as stream:
            data = stream.read()
        if not self.options.split_blank_lines:
            yield Item(file, "text", data)
            return
        line = 1
        for part in re.split(rb"((?:\r?\n[ \t]*){2,})", data):
            if part.strip():
                yield Item(f"{file}:{line}", "text", part.strip(b"\r\n"))
            line += part.count(b"\n")

    def _jsonl(self, file, done):
        with _open(file) as stream:
            for number, line in enumerate(stream, 1):
                if not file.endswith(".gz"):
                    self.bytes_read += len(line)
                if line.strip():
                    yield Item(f"{file}:{number}", "json", line)

    def _parquet(self, file, done):
        import pyarrow
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.ParquetFile(file)
            names = table.schema_arrow.names
            messages = self.options.messages_key in names
            column = self.options.messages_key if messages else self.options.text_key
            if column not in names:
                raise InputError(
                    f"{file}: expected a column {self.options.text_key} or {self.options.messages_key}, "
                    f"found {', '.join(names)}"
                )
            columns = [column] + (["tools"] if messages and "tools" in names else [])
            per_row = os.path.getsize(file) / max(table.metadata.num_rows, 1)
            row = 0
            for batch in table.iter_batches(batch_size=256, columns=columns):
                for record in batch.to_pylist():
                    row += 1
                    value = record[column]
                    if messages:
                        value = {"messages": value, "tools": record.get("tools")}
                    yield Item(f"{file}: row {row}", "messages" if messages else "text", value)
                self.bytes_read = done + int(row * per_row)
        except pyarrow.ArrowException as error:
            raise InputError(f"{file}: not a readable parquet file: {error}") from error


def _open(file):
    return gzip.open(file, "rb") if file.endswith(".gz") else Path(file).open("rb")
