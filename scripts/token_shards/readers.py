"""Cuts the input into chunks, which worker processes turn into tokens.

Chunks are small: a plain JSONL file is passed as ranges of bytes, which the workers read themselves. After every chunk
stands the position where reading can begin again.
"""

import contextlib
import os
import re
import sys
from dataclasses import dataclass, field

from .compressed import Source, is_plain, read_all
from .errors import InputError
from .file_kinds import STDIN, STDIN_NAME, check_bytes, kind_of
from .json_array import array_items
from .text_table import DELIMITERS, TextTable

CHUNK_BYTES = 1 << 19
CHUNK_ITEMS = 512
ROWS = 256  # of parquet, in a chunk at most


@dataclass(frozen=True)
class Position:
    """Where the next document is: `file` of the list; `number` of its line, row or paragraph, from 1; `offset`: the
    bytes of its uncompressed content before it."""

    file: int = 0
    number: int = 1
    offset: int = 0


@dataclass
class Chunk:
    """Documents: a range of a file (`data` is None), bytes of lines, a list of (where, value), or a table's rows."""

    kind: str  # files | text | lines | items | rows
    file: str
    number: int  # of the first line or row
    data: object = None
    not_read: tuple = ()  # columns of a table
    begin: int = 0
    length: int = 0
    after: Position = field(default_factory=Position)
    bytes_done: int = 0  # of all files, this chunk included; where the size of the input is known

    def lines(self):
        if self.data is not None:
            return self.data
        with open(self.file, "rb") as file:
            data = os.pread(file.fileno(), self.length, self.begin)
        if len(data) != self.length:
            raise InputError(f"{self.file}: has been cut short while it was read")
        return data

    def items(self):
        """(where, value): bytes of a text, bytes of JSON, or a dict."""
        if self.kind == "files":
            for path in self.data:
                yield path, _read_text(path)
        elif self.kind == "lines":
            for number, line in enumerate(self.lines().split(b"\n"), self.number):
                if line.strip():
                    yield f"{self.file}:{number}", line
        elif self.kind == "rows":
            for row, record in enumerate(self.data.to_pylist(), self.number):
                yield f"{self.file}: row {row}", {key: _without_nulls(value) for key, value in record.items()}
        else:
            yield from self.data


class Reader:
    """Iterates over the chunks of all files, from `start`. `bytes_total`: None for standard input."""

    def __init__(self, files, options, records):
        self.files, self.options, self.records = files, options, records
        self.sizes = [0 if file == STDIN else os.path.getsize(file) for file in files]
        self.bytes_total = None if STDIN in files else sum(self.sizes)
        self.start = Position()
        self.kinds = [kind_of(file, options.format) for file in files]
        self._readers = {
            "text": self._text,
            "jsonl": self._jsonl,
            "json": self._json,
            "csv": lambda file, start: self._text_table(file, start, self._delimiter("csv")),
            "tsv": lambda file, start: self._text_table(file, start, self._delimiter("tsv")),
            "parquet": self._parquet,
        }

    def _delimiter(self, kind):
        return self.options.delimiter or DELIMITERS[kind]

    def check_tables(self):
        """InputError: tables without the columns of a format, all of them, before anything is read."""
        problems = []
        for file, kind in zip(self.files, self.kinds):
            try:
                if kind == "parquet":
                    self._open_parquet(file)
                elif kind in DELIMITERS and file != STDIN:
                    source = Source.open(file)
                    with source.stream:
                        self._check_header(TextTable(source, file, self._delimiter(kind)))
            except InputError as error:
                problems.append(str(error))
        if problems:
            raise InputError("\n".join(problems))

    def __iter__(self):
        index = self.start.file
        before = sum(self.sizes[:index])
        while index < len(self.files):
            file, kind = self.files[index], self.kinds[index]
            start = self.start if index == self.start.file else Position(index)
            whole = kind == "text" and not self.options.split_blank_lines and file != STDIN
            try:
                if whole:
                    chunks, last = self._files(index)
                else:
                    last = index
                    chunks = self._readers[kind](STDIN_NAME if file == STDIN else file, start)
                for chunk in chunks:
                    chunk.bytes_done += before
                    yield chunk
            except (OSError, EOFError) as error:
                raise InputError(f"{file}: cannot read: {error}") from error
            before += sum(self.sizes[index : last + 1])
            index = last + 1

    def _files(self, first):
        """A chunk of whole text files, as many as are small together; the index of its last file."""
        last, size = first, self.sizes[first]
        while (
            last + 1 < len(self.files)
            and self.kinds[last + 1] == "text"
            and size + self.sizes[last + 1] <= CHUNK_BYTES
            and last + 1 - first < CHUNK_ITEMS
        ):
            last += 1
            size += self.sizes[last]
        files = self.files[first : last + 1]
        return [Chunk("files", files[0], 1, files, after=Position(last + 1), bytes_done=size)], last

    def _open(self, file, start):
        if file != STDIN_NAME:
            return Source.open(file)
        if start.offset:
            raise InputError(f"{STDIN_NAME} cannot be read again")
        source = Source(sys.stdin.buffer.raw, STDIN_NAME)
        if source.kind == "plain":
            check_bytes(source.first, STDIN_NAME)
        return source

    def _text(self, file, start):
        source = self._open(file, start)
        with source.stream:
            data = b"".join(source)
        after = Position(start.file + 1)
        if not self.options.split_blank_lines:
            yield Chunk("text", file, 1, [(file, data)], after=after, bytes_done=source.read_bytes)
            return
        parts, line = [], 1
        for part in re.split(rb"((?:\r?\n[ \t]*){2,})", data):
            if part.strip():
                parts.append((f"{file}:{line}", part.strip(b"\r\n")))
            line += part.count(b"\n")
        begin, size = start.number - 1, 0
        for index, (_, part) in enumerate(parts[begin:], begin + 1):
            size += len(part)
            if size >= CHUNK_BYTES or index - begin >= CHUNK_ITEMS or index == len(parts):
                done = int(source.read_bytes * index / len(parts))
                yield Chunk("text", file, 1, parts[begin:index], after=Position(start.file, index + 1), bytes_done=done)
                begin, size = index, 0

    def _jsonl(self, file, start):
        if file != STDIN_NAME and is_plain(file):
            yield from self._plain_lines(file, start)
            return
        source = self._open(file, start)
        if self.options.format == "auto" and source.kind == "plain" and source.first.lstrip().startswith(b"["):
            raise InputError(f"{file}: expected a record on each line, found an array of records (--format json)")
        parts, size, number, offset, skipped = [], 0, start.number, start.offset, 0
        with source.stream:
            try:
                for block in source:
                    if skipped < start.offset:
                        cut = min(start.offset - skipped, len(block))
                        skipped, block = skipped + cut, block[cut:]
                    parts.append(block)
                    size += len(block)
                    if size < CHUNK_BYTES or b"\n" not in block:
                        continue
                    end = block.rfind(b"\n") + 1
                    data = b"".join([*parts[:-1], block[:end]])
                    parts, size = [block[end:]], len(block) - end
                    first, number, offset = number, number + data.count(b"\n"), offset + len(data)
                    after = Position(start.file, number, offset)
                    yield Chunk("lines", file, first, data, after=after, bytes_done=source.read_bytes)
            except InputError as error:
                lines = number - 1 + b"".join(parts).count(b"\n")
                raise InputError(f"{error}, which is {lines:,} whole lines") from error
            if size:
                data = b"".join(parts)
                after = Position(start.file, number + data.count(b"\n") + 1, offset + size)
                yield Chunk("lines", file, number, data, after=after, bytes_done=source.read_bytes)

    def _plain_lines(self, file, start):
        """Ranges of whole lines; only their number is counted here."""
        number, begin = start.number, start.offset
        with open(file, "rb", buffering=0) as stream:
            while True:
                length = CHUNK_BYTES
                data = os.pread(stream.fileno(), length, begin)
                if not data:
                    return
                while len(data) == length and b"\n" not in data:  # a long line
                    length *= 2
                    data = os.pread(stream.fileno(), length, begin)
                if len(data) == length:
                    data = data[: data.rfind(b"\n") + 1]
                after = Position(start.file, number + data.count(b"\n"), begin + len(data))
                yield Chunk("lines", file, number, begin=begin, length=len(data), after=after, bytes_done=after.offset)
                number, begin = after.number, after.offset

    def _json(self, file, start):
        source = self._open(file, start)
        with source.stream:
            items = ((f"{file}:{line}", value, len(value)) for line, value in array_items(source, file))
            yield from self._items(file, start, source, items)

    def _text_table(self, file, start, delimiter):
        source = self._open(file, start)
        with source.stream:
            table = TextTable(source, file, delimiter)
            self._check_header(table)
            items = ((f"{file}:{line}", row, _row_size(row)) for line, row in table)
            yield from self._items(file, start, source, items)

    def _check_header(self, table):
        if self.records.format_of(table.names) is None:
            other = next((one for one in ",;\t|" if len(table.names) == 1 and one in table.names[0]), None)
            hint = f". Are the columns separated by {other!r}? (--delimiter)" if other else ""
            names = dict.fromkeys(table.names)
            raise InputError(f"{table.name}: {self.records.expected(names, 'a header with the column')}{hint}")

    def _items(self, file, start, source, values):
        """Chunks of (where, value, size in characters), which are counted from 1."""
        items, size = [], 0
        for count, (where, value, length) in enumerate(values, 1):
            if count < start.number:
                continue
            items.append((where, value))
            size += length
            if size >= CHUNK_BYTES or len(items) >= CHUNK_ITEMS:
                after = Position(start.file, count + 1)
                yield Chunk("items", file, 1, items, after=after, bytes_done=source.read_bytes)
                items, size = [], 0
        if items:
            yield Chunk("items", file, 1, items, after=Position(start.file + 1), bytes_done=source.read_bytes)

    def _parquet(self, file, start):
        table = self._open_parquet(file)
        names = table.schema_arrow.names
        columns = self.records.columns(names)
        others = tuple(name for name in names if name not in columns)
        rows = table.metadata.num_rows
        groups, row = _groups_from(table.metadata, start.number)
        with _parquet_errors(file):
            for batch in table.iter_batches(batch_size=ROWS, columns=columns, row_groups=groups):
                if row + batch.num_rows <= start.number:
                    row += batch.num_rows
                    continue
                first = max(start.number, row)
                batch = batch.slice(first - row)
                row = first + batch.num_rows
                done = int(os.path.getsize(file) * (row - 1) / max(rows, 1))
                after = Position(start.file, row)
                yield Chunk("rows", file, first, batch, others, after=after, bytes_done=done)

    def _open_parquet(self, file):
        import pyarrow.parquet

        with _parquet_errors(file):
            table = pyarrow.parquet.ParquetFile(file)
            names = table.schema_arrow.names
        if self.records.format_of(names) is None:
            raise InputError(f"{file}: {self.records.expected(dict.fromkeys(names), 'a column')}")
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(f"{file}: expected a name for each column, found {twice[0]} twice")
        return table


@contextlib.contextmanager
def _parquet_errors(file):
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last two for torn pages
        raise InputError(f"{file}: not a readable parquet file: {error}") from error


def _row_size(row):
    return sum(len(cell or "") for cell in row.values()) if isinstance(row, dict) else 0


def _groups_from(metadata, number):
    """The row groups from the one with row `number`, and the number of its first row."""
    row = 1
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if row + rows > number:
            return list(range(group, metadata.num_row_groups)), row
        row += rows
    return [], row


def _read_text(path):
    try:
        return read_all(path)
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error}") from error


def _without_nulls(value):
    """Without the members that are null: a table has every key in every row."""
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    return value
