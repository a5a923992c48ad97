"""The documents of a package: its files as plain text, without those that are not worth training on."""

import io
import subprocess
import tarfile
import zipfile

MIN_CHARS = 600
MAX_CHARS = 300_000  # larger files are mostly tables
MAX_LINE = {"code": 400}  # of the other kinds, whose paragraphs are lines, any length
MIN_LETTERS = 0.45  # share of letters; tables and generated data have fewer
VERSION = 1  # of what this file does with a document; raise it when that changes


def documents(source, archive):
    """Yields (path in the package, text or None, reason why it is left out or None), in the order of the paths."""
    files = _wheel_files if source.is_wheel else _deb_files
    for path, data in sorted(files(source, archive.file)):
        text = _html_text(data) if path.endswith((".html", ".htm")) else _plain_text(data)
        reason = "not UTF-8" if text is None else why_skipped(text, source.kind)
        yield path, None if reason else text, reason


def _deb_files(source, file):
    command = ["dpkg-deb", "--fsys-tarfile", str(file)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive,
    ):
        for member in archive:
            path = member.name.removeprefix("./")
            if member.isfile() and source.takes(path):
                yield path, archive.extractfile(member).read()
    if unpacking.returncode != 0:
        raise ValueError(f"{file}: dpkg-deb could not unpack it (exit code {unpacking.returncode})")


def _wheel_files(source, file):
    with zipfile.ZipFile(file) as archive:
        for path in archive.namelist():
            if source.takes(path):
                yield path, archive.read(path)


def _html_text(data):
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    html = bytes_to_str(data, detect_encoding(data))
    return _cleaned(extract_plain_text(html, main_content=True, preserve_formatting=True, links=False, alt_texts=False))


def _plain_text(data):
    try:
        return _cleaned(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig").read())
    except UnicodeDecodeError:
        return None


def _cleaned(text):
    """Without blanks at the ends of lines, and with at most two empty lines in a row."""
    lines, empty = [], 0
    for line in text.replace("\r\n", "\n").split("\n"):
        line = line.rstrip()
        empty = 0 if line else empty + 1
        if empty <= 2:
            lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"


def why_skipped(text, kind):
    """None for text worth training on, otherwise the reason to leave it out."""
    if len(text) < MIN_CHARS:
        return "short"
    if len(text) > MAX_CHARS:
        return "long"
    if kind in MAX_LINE and max(map(len, text.splitlines())) > MAX_LINE[kind]:
        return "very long lines"
    if sum(map(str.isalpha, text)) < MIN_LETTERS * len(text):
        return "tables"
    if "\x00" in text or "\ufffd" in text:
        return "damaged characters"
    return None
