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


def find_files(paths, include, exclude):
    """(files, lines for the end of the output): of files, folders (recursively, the names that match `include`) and
    glob patterns, in a fixed order, each once. The lines say which files in folders and which patterns were of no
    use."""
    if STDIN in paths:
        if len(paths) > 1:
            raise InputError(f"expected either {STDIN} (standard input) or files, found {', '.join(paths)}")
        return [STDIN], []
    search, files = _Search(include, exclude), {}
    for path in paths:
        for name in search.files(path):
            real = os.path.realpath(name)
            if real in files:
                search.again.append(name)
            else:
                files[real] = name
    if not files:
        raise InputError("--exclude leaves no input file")
    return list(files.values()), list(search.lines())


class _Search:
    def __init__(self, include, exclude):
        self.include, self.exclude = include, exclude
        self.passed = []  # files in folders
        self.again = []  # files that were found before, under this or another name
        self.unused = dict.fromkeys([("--include", one) for one in include] + [("--exclude", one) for one in exclude])

    def files(self, path):
        if os.path.isdir(path):
            found = self._folder(path)
        elif os.path.isfile(path):
            found = [path]
        else:
            found = []
            for name in sorted(glob.glob(path, recursive=True)):
                if os.path.isfile(name):
                    found.append(name)
                elif os.path.isdir(name) and "**" not in path:  # which has the files within as well
                    found += self._folder(name)
            if not found:
                raise InputError(f"{path}: no such file or folder, and no file matches it as a pattern")
        return [one for one in found if not self._matches("--exclude", self.exclude, one, os.path.basename(one))]

    def _folder(self, folder):
        found, seen = [], set()
        for root, folders, names in os.walk(folder, onerror=_cannot_read, followlinks=True):
            real = os.path.realpath(root)
            if real in seen:  # a link leads back
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
            for name in sorted(names):
                path = os.path.join(root, name)
                if not name.startswith("."):
                    (found if self._is_included(path, name) else self.passed).append(path)
        if not found:
            patterns = ", ".join(self.include or PATTERNS)
            raise InputError(f"{folder}: expected files named {patterns} in this folder, found none (see --include)")
        return found

    def _is_included(self, path, name):
        if self.include:
            return self._matches("--include", self.include, name)
        if not any(fnmatch.fnmatch(name.lower(), pattern) for pattern in PATTERNS):
            return False
        return named_kind(path) != "json" or holds_array(path)

    def _matches(self, option, patterns, *names):
        matching = [one for one in patterns if any(fnmatch.fnmatch(name, one) for name in names)]
        for one in matching:
            self.unused.pop((option, one), None)
        return bool(matching)

    def lines(self):
        if self.passed:
            yield f"not read: {len(self.passed):,} files in folders, because of their names: {_named(self.passed)}"
        if self.again:
            yield f"read once: {len(self.again):,} files that were found more than once: {_named(self.again)}"
        for option, pattern in self.unused:
            where = "no file in a folder has" if option == "--include" else "no file has"
            folder = f" (of a folder: '*/{pattern}/*')" if option == "--exclude" and "/" not in pattern else ""
            yield f"not used: {option} {pattern}: {where} such a name{folder}"


def _named(names):
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def _cannot_read(error):
    raise InputError(f"{error.filename}: cannot read the folder: {error.strerror}") from error


def describe_files(files):
    """{name: size and time of the last change}: when a file differs from what an earlier run has read."""
    out = {}
    for path in files:
        if path != STDIN:
            status = os.stat(path)
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(status.st_mtime))
            out[path] = f"{status.st_size:,} bytes, changed {when}.{status.st_mtime_ns % 10**9:09d} UTC"
    return out
