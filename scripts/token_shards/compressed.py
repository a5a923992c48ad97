"""Files as they are, gzip and zstandard, recognised by their first bytes; a torn one is an error."""

import zlib

from .errors import InputError

BLOCK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"  # byte order mark
PACKED_BYTES = 1 << 16  # of compressed data at a time
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Source:
    """The uncompressed bytes of a file or of standard input, block by block.

    `read_bytes` is how far it has read in the file itself, `out_bytes` how much it has returned.
    """

    def __init__(self, stream, name, kind=None):
        self.stream, self.name = stream, name
        self.read_bytes = self.out_bytes = 0
        self.first = self._raw(PACKED_BYTES)
        magic = {_GZIP: "gzip", _ZSTD: "zstd"}
        self.kind = kind or next((kind for mark, kind in magic.items() if self.first.startswith(mark)), "plain")

    @classmethod
    def open(cls, path):
        return cls(open(path, "rb", buffering=0), path)

    def close(self):
        self.stream.close()

    def _raw(self, size):
        data = self.stream.read(size)
        self.read_bytes += len(data)
        return data

    def _raw_blocks(self):
        data = self.first
        while data:
            yield data
            data = self._raw(BLOCK_BYTES if self.kind == "plain" else PACKED_BYTES)

    def __iter__(self):
        blocks = self._raw_blocks() if self.kind == "plain" else self._decompressed()
        for block in blocks:
            self.out_bytes += len(block)
            if block:
                yield block

    def lines(self):
        """The content line by line, with their ends; without a byte order mark."""
        parts, first = [], True
        for block in self:
            *lines, rest = block.split(b"\n")
            for line in lines:
                line = b"".join([*parts, line, b"\n"])
                parts.clear()
                yield line.removeprefix(BOM) if first else line
                first = False
            parts.append(rest)
        if last := b"".join(parts):
            yield last.removeprefix(BOM) if first else last

    def _decompressed(self):
        make, errors = _gzip() if self.kind == "gzip" else _zstd()
        member = None
        for block in self._raw_blocks():
            while block:
                if member is None:
                    if self.kind == "gzip" and not block.strip(b"\0"):  # padding of tapes
                        break
                    member = make()
                try:
                    out = member.decompress(block)
                except errors as error:
                    raise self._damaged(f"is damaged: {error}") from error
                block = b""
                if member.eof:
                    block, member = member.unused_data, None
                yield out
        if member is not None:
            raise self._damaged(f"ends in the middle, after {self.read_bytes:,} bytes")

    def _damaged(self, what):
        return InputError(
            f"{self.name}: the {self.kind} data {what}; it could be read up to byte {self.out_bytes:,} of its content"
        )


def _gzip():
    return (lambda: zlib.decompressobj(wbits=31)), zlib.error


def _zstd():
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    return decompressor.decompressobj, zstandard.ZstdError


def read_all(path):
    source = Source.open(path)
    try:
        return b"".join(source)
    finally:
        source.close()


def is_plain(path):
    """Whether the file is not compressed, so that a part of it can be read without what is before."""
    with open(path, "rb") as file:
        return not file.read(4).startswith((_GZIP, _ZSTD))
