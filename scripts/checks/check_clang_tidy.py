#!/usr/bin/env python3
"""Runs clang-tidy, with the checks of .clang-tidy, on the C++ sources that changed since the base commit.

  scripts/checks/check_clang_tidy.py                       at most --max-files changed sources, for about --max-seconds
  scripts/checks/check_clang_tidy.py losses/schedule.cpp   these sources, without a limit

A changed header is checked through the source of the same name. The base commit is --base, $DISTILL_BASE, the merge
base with origin/main or main, or HEAD~1. The output names the changed sources that the limits left out. Without a
clang-tidy of version 16 or newer in .venv/bin or on PATH, the exit code is 77.
"""

import script_path

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from compile_database import CompileDatabase
from repository import ROOT, base_commit, changed_files
from shared.command_line import argument_parser

OLDEST_VERSION = 16
NOT_RUN = 77  # exit code


def find_clang_tidy(root):
    """The first clang-tidy that is new enough, or None."""
    for program in (root / ".venv" / "bin" / "clang-tidy", shutil.which("clang-tidy")):
        if program and Path(program).exists():
            text = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
            version = re.search(r"version (\d+)", text)
            if version and int(version[1]) >= OLDEST_VERSION:
                return str(program)
    return None


def sources_of(changed, sources):
    """The C++ sources among `changed`, then those of its headers."""
    headers = [name for name in changed if name.endswith(".h")]
    wanted = [name for name in changed if name.endswith(".cpp")] + [
        name.removesuffix(".h") + ".cpp" for name in headers
    ]
    return [name for name in dict.fromkeys(wanted) if name in sources]


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="relative to the repository's root")
    parser.add_argument("--base", metavar="COMMIT", help="check the sources that changed since this commit")
    parser.add_argument(
        "--build", type=Path, default=None, help="build folder (default: $DISTILL_BUILD or build/release)"
    )
    parser.add_argument("--max-files", type=int, default=10, help="number of changed sources to check (default 10)")
    parser.add_argument(
        "--max-seconds", type=float, default=180, help="seconds after which no further source is begun (default 180)"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to check (default: this one)")
    args = parser.parse_args()
    root = args.root.resolve()
    build = args.build or Path(os.environ.get("DISTILL_BUILD", root / "build" / "release"))
    program = find_clang_tidy(root)
    if program is None:
        print(f"clang-tidy: not run, there is no clang-tidy of version {OLDEST_VERSION} or newer")
        return NOT_RUN
    changed = args.sources or changed_files(root, base_commit(root, args.base))
    chosen = sources_of(changed, CompileDatabase(build, root).commands)
    began, failed, left_out, checked = time.monotonic(), [], [], 0
    for source in chosen:
        seconds = time.monotonic() - began
        if not args.sources and (checked == args.max_files or seconds > args.max_seconds):
            left_out.append(source)
            continue
        checked += 1
        done = subprocess.run([program, "-p", str(build), "--quiet", source], cwd=root, capture_output=True, text=True)
        if done.returncode != 0:
            failed.append(source)
            print(f"{source}:\n{done.stdout}{done.stderr}", flush=True)
    print(f"clang-tidy: {checked - len(failed)} of {checked} sources are clean ({time.monotonic() - began:.0f} s)")
    if left_out:
        print(f"clang-tidy: {len(left_out)} changed sources were left out: {' '.join(left_out)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
