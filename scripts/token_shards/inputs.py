"""Finds the input files."""

import fnmatch
import glob
import os
import time

from .errors import InputError
from .file_kinds import COMPRESSED, EXTENSIONS, STDIN, holds_array, named_kind

PATTERNS = [
    # Of .json, those that hold an array.
    f"*{name}{packed}"
    for kind, names in EXTENSIONS.items()
    for name in names
    for packed in (COMPRESSED if kind != "parquet" else ("",))
]


def find_files(paths, include, exclude, passed=None):
    """Files, folders (recursively, the names that match `include`) and glob patterns, in a fixed order, each once.
    `passed`: a list for the files in folders that are not read because of their names."""
    if STDIN in paths:
        if len(paths) > 1:
            raise InputError(f"expected either {STDIN} (standard input) or files, found {', '.join(paths)}")
        return [STDIN]
    files = {}
    for path in paths:
        if os.path.isdir(path):
            found = _walk(path, include, passed)
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


def _walk(folder, include, passed):
    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(root, name)
            if name.startswith("."):
                continue
            if _is_included(path, name, include):
                found.append(path)
            elif passed is not None:
                passed.append(path)
    return found


def _is_included(path, name, include):
    if include:
        return any(fnmatch.fnmatch(name, pattern) for pattern in include)
    if not any(fnmatch.fnmatch(name.lower(), pattern) for pattern in PATTERNS):
        return False
    return named_kind(path) != "json" or holds_array(path)


def passed_lines(passed):
    """The line for the files that were passed over."""
    if passed:
        more = f" and {len(passed) - 3:,} more" if len(passed) > 3 else ""
        yield f"not read: {len(passed):,} files in folders, because of their names: {', '.join(passed[:3])}{more}"


def describe_files(files):
    """{name: size and time of the last change}: when a file differs from what an earlier run has read."""
    out = {}
    for path in files:
        if path != STDIN:
            status = os.stat(path)
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(status.st_mtime))
            out[path] = f"{status.st_size:,} bytes, changed {when}.{status.st_mtime_ns % 10**9:09d} UTC"
    return out
