"""Finds the input files and what kind each one is."""

import fnmatch
import glob
import os
import time

from .compressed import Source
from .errors import InputError

STDIN = "-"
STDIN_NAME = "standard input"
KINDS = ["auto", "text", "jsonl", "json", "parquet"]
_COMPRESSED = ("", ".gz", ".zst")
PATTERNS = [
    # Of .json, those that hold an array.
    *(f"*{kind}{packed}" for kind in (".txt", ".md", ".jsonl", ".ndjson", ".json") for packed in _COMPRESSED),
    "*.parquet",
]


def find_files(paths, include, exclude):
    """Files, folders (recursively, the names that match `include`) and glob patterns, in a fixed order, each once."""
    if STDIN in paths:
        if len(paths) > 1:
            raise InputError(f"expected either {STDIN} (standard input) or files, found {', '.join(paths)}")
        return [STDIN]
    files = {}
    for path in paths:
        if os.path.isdir(path):
            found = _walk(path, include)
            if not found:
                patterns = ", ".join(include or PATTERNS)
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
        for name in sorted(names):
            path = os.path.join(root, name)
            if name.startswith(".") or not any(fnmatch.fnmatch(name, pattern) for pattern in include or PATTERNS):
                continue
            if include or not _bare_name(name).endswith(".json") or holds_array(path):
                found.append(path)
    return found


def _bare_name(path):
    return path.removesuffix(".gz").removesuffix(".zst")


def kind_of(path, kind):
    """text, jsonl, json (an array) or parquet, by the name of the file unless `kind` says it."""
    if path == STDIN:
        if kind == "parquet":
            raise InputError(f"{STDIN_NAME}: parquet cannot be read from a pipe: give the file's name")
        return "jsonl" if kind == "auto" else kind
    if kind != "auto":
        return kind
    name = _bare_name(path)
    if name.endswith(".json"):
        if holds_array(path):
            return "json"
        raise InputError(
            f"{path}: .json may be one document or one a line: say which with --format text or jsonl "
            "(an array of records, which begins with [, is read as it is)"
        )
    return "jsonl" if name.endswith((".jsonl", ".ndjson")) else "parquet" if name.endswith(".parquet") else "text"


def holds_array(path):
    try:
        source = Source.open(path)
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error}") from error
    with source.stream:
        return next(iter(source), b"").removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def describe_files(files):
    """{name: size and time of the last change}: when a file differs from what an earlier run has read."""
    out = {}
    for path in files:
        if path != STDIN:
            status = os.stat(path)
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(status.st_mtime))
            out[path] = f"{status.st_size:,} bytes, changed {when}.{status.st_mtime_ns % 10**9:09d} UTC"
    return out
