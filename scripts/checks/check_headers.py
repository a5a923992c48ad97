#!/usr/bin/env python3
"""Checks that each header compiles alone: without the precompiled header and without what its includers include.

  scripts/checks/check_headers.py                 the headers that changed since the base commit
  scripts/checks/check_headers.py --all           every header
  scripts/checks/check_headers.py data/a.h ...    these headers

Where a changed header has lost an include or a name, all headers that include it are checked, too: one of them may
have needed what is gone, which a header that only gained cannot cause.

The compiler and its flags are those of the nearest source in BUILD/compile_commands.json. A CUDA header (.cuh) is
compiled by nvcc. BUILD/header_checks.json remembers each header that passed, with a hash of all files that it
includes, so that only changed ones are compiled again. The base commit is --base, $DISTILL_BASE, the merge base with
origin/main or main, or HEAD~1.
"""

import script_path

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from compile_database import CUDA_SUFFIXES, CompileDatabase
from repository import ROOT, base_commit, changed_files, git, tracked_files
from shared.command_line import argument_parser

INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
CACHE = "header_checks.json"
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
NAME = re.compile(r"[A-Za-z_]\w*")
STAND_INS = "tests/losses/emulation/overlay/"  # in place of headers of the same names: not to be compiled as themselves


def what_it_gives(text):
    """The includes and the names in a header's code: what a header that includes it may need of it."""
    code = COMMENT.sub("", text)
    return {("include", file) for file in INCLUDE.findall(code)} | {("name", name) for name in NAME.findall(code)}


def has_lost(header, base, root):
    """Whether the header gave something at commit `base` that it does not give now."""
    before = git(root, "show", f"{base}:{header}")
    return before is not None and not what_it_gives(before) <= what_it_gives((root / header).read_text())


def affected_headers(changed, base, headers, root):
    """The headers that are in `changed`, and those that include one that has lost something, directly or not."""
    includes = {header: set(INCLUDE.findall((root / header).read_text())) for header in headers}
    own = set(changed) & set(headers)
    affected, grown = set(), {header for header in own if has_lost(header, base, root)}
    while grown:
        affected |= grown
        grown = {header for header in headers if header not in affected and includes[header] & affected}
    return sorted(own | affected)


@cache
def fingerprint(path, root):
    """The content of a file of the repository, as a hash; of another file, the size and the time of its change."""
    path = Path(path)
    try:
        if path.is_relative_to(root) and not path.is_relative_to(root / ".venv"):
            return hashlib.sha256(path.read_bytes()).hexdigest()
        status = path.stat()
        return f"{status.st_size} {status.st_mtime_ns}"
    except OSError:
        return "missing"


def key_of(command, files, root):
    """A hash of everything that decides whether the header compiles."""
    parts = [*command, *(f"{file} {fingerprint(file, root)}" for file in files)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def dependencies(makefile, folder):
    """The files of the rule that the compiler writes with -MD, as absolute paths."""
    text = makefile.read_text().replace("\\\n", " ")
    return sorted({os.path.join(folder, name) for name in text.split(":", 1)[1].split()})


class Checker:
    """Compiles headers one at a time; `passed` holds the key and the included files of each that passed."""

    def __init__(self, build, root):
        self.root = root
        self.database = CompileDatabase(build, root)
        self.file = Path(build) / CACHE
        self.passed = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.compiled = 0
        self.not_compiled = []  # no source in the same language was configured

    def check(self, header):
        """The compiler's errors; an empty text if the header compiles alone."""
        found = self.database.flags_for(header)
        if found is None:
            self.not_compiled.append(header)
            return ""
        flags, folder = found
        cuda = Path(header).suffix in CUDA_SUFFIXES
        command = [*flags, "-c", "-o", "/dev/null"] if cuda else [*flags, "-fsyntax-only", "-fmax-errors=5"]
        known = self.passed.get(header)
        if known and known["key"] == key_of(command, known["files"], self.root):
            return ""
        with tempfile.TemporaryDirectory() as scratch:
            source = Path(scratch, "alone.cu" if cuda else "alone.cpp")
            source.write_text(f'#include "{header}"\n')
            rule = Path(scratch, "rule.d")
            done = subprocess.run(
                [*command, "-MD", "-MF", str(rule), str(source)], cwd=folder, capture_output=True, text=True
            )
            self.compiled += 1
            if done.returncode != 0:
                self.passed.pop(header, None)
                return f"{header} does not compile alone:\n{done.stdout}{done.stderr}"
            files = [name for name in dependencies(rule, folder) if not name.startswith(scratch)]
        self.passed[header] = {"key": key_of(command, files, self.root), "files": files}
        return ""

    def save(self):
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(self.passed))
        partial.replace(self.file)


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("headers", nargs="*", metavar="HEADER", help="relative to the repository's root")
    parser.add_argument("--all", action="store_true", help="check every header")
    parser.add_argument("--base", metavar="COMMIT", help="check the headers that changed since this commit")
    parser.add_argument(
        "--build", type=Path, default=None, help="build folder (default: $DISTILL_BUILD or build/release)"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to check (default: this one)")
    parser.add_argument(
        "--jobs", type=int, default=0, help="compilations at the same time (default: one per processor)"
    )
    args = parser.parse_args()
    root = args.root.resolve()
    build = args.build or Path(os.environ.get("DISTILL_BUILD", root / "build" / "release"))
    began = time.monotonic()
    every = [path for path in tracked_files(root, "*.h", "*.cuh") if not path.startswith(STAND_INS)]
    if args.headers:
        chosen = [header for header in args.headers if header in every]
    else:
        base = None if args.all else base_commit(root, args.base)
        chosen = affected_headers(changed_files(root, base), base, every, root) if base else every
    checker = Checker(build, root)
    with ThreadPoolExecutor(args.jobs or int(os.environ.get("DISTILL_BUILD_JOBS", os.cpu_count() or 1))) as pool:
        errors = [error for error in pool.map(checker.check, chosen) if error]
    checker.save()
    print("\n".join(errors), end="\n" if errors else "")
    if checker.not_compiled:
        print(f"headers: not checked, for want of a configured source: {', '.join(sorted(checker.not_compiled))}")
    print(
        f"headers: {len(chosen) - len(errors) - len(checker.not_compiled)} of {len(chosen)} compile alone "
        f"({checker.compiled} compiled, the others are unchanged; {time.monotonic() - began:.0f} s)"
    )
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
