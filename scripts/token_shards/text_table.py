"""Tables in text files, CSV and TSV: quoted fields, which may hold line ends, and a header."""

import csv
import sys

from .errors import BadDocument, InputError

DELIMITERS = {"csv": ",", "tsv": "\t"}

csv.field_size_limit(sys.maxsize)


class TextTable:
    """Iterates over (line, record) of the rows: a dict with the cells, None for an empty one, which is how CSV writes
    what is missing; a BadDocument where a row has too many cells or too few. InputError: no header, or torn quotes."""

    def __init__(self, source, name, delimiter):
        self.name = name
        self.rows = csv.reader(_lines(source, name), delimiter=delimiter, strict=True)
        self.names = self._header(delimiter)

    def _header(self, delimiter):
        cells = next((cells for _, cells in self._cells()), None)
        if cells is None:
            raise InputError(f"{self.name}: expected a header with the names of the columns, found an empty file")
        names = [cell.strip() or f"column {index}" for index, cell in enumerate(cells, 1)]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InputError(f"{self.name}: expected a header with a name for each column, found {twice[0]} twice")
        return names

    def __iter__(self):
        for line, cells in self._cells():
            if len(cells) == len(self.names):
                yield line, {name: cell or None for name, cell in zip(self.names, cells)}
            else:
                yield (
                    line,
                    BadDocument(
                        "a row with another number of cells",
                        f"{self.name}:{line}: expected {len(self.names)} cells, as in the header, found {len(cells)}",
                    ),
                )

    def _cells(self):
        """(number of its first line, cells) of each row that is not empty."""
        while True:
            line = self.rows.line_num + 1
            try:
                cells = next(self.rows, None)
            except csv.Error as error:
                raise InputError(f"{self.name}:{line}: not a row of CSV: {error}") from error
            if cells is None:
                return
            if cells:
                yield line, cells


def _lines(source, name):
    for number, line in enumerate(source.lines(), 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}:{number}: not UTF-8: byte {error.start} is 0x{line[error.start]:02x} (iconv converts it, from "
                "WINDOWS-1252 perhaps)"
            ) from error
