#!/usr/bin/env python3
"""Checks the documents: lines of at most 120 characters, and paths in backticks that exist.

  scripts/checks/check_docs.py               README.md, CONTRIBUTING.md, CHANGELOG.md and docs/*.md
  scripts/checks/check_docs.py docs/data.md  these documents

Tables, code blocks and lines with a link may be longer. A word in backticks counts as a path if it begins with a folder
of this repository (`losses/row_math.h`); `*` and `{h,cpp}` match as in a shell. Words after an option are arguments.
"""

import script_path

import fnmatch
import itertools
import re
import sys
from pathlib import Path

from repository import ROOT, tracked_files
from shared.command_line import argument_parser

MAX_CHARACTERS = 120
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(|https?://|^\[[^\]]+\]: ")
WORD = re.compile(r"[\w.*{},/+-]+")
BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


def prose_lines(text):
    """(number, line) of the lines outside code blocks, counted from 1."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            in_code = not in_code
        elif not in_code:
            yield number, line


def expanded(word):
    """The words that a shell makes of the braces in `word`."""
    parts = BRACES.split(word)  # text and the inside of braces by turns
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def paths_in(line, folders):
    """The paths in the backticks of a line: words that begin with one of `folders`."""
    for span in SPAN.findall(line):
        for word in span.split():
            if word.startswith("-"):
                break
            word = re.sub(r"(:\d+)?[.,:;)]*$", "", word)
            if word.split("/")[0] in folders and "/" in word and WORD.fullmatch(word):
                yield word


def check(document, text, files):
    """The problems of one document, a line of text each; `files` are the repository's."""
    folders = {file.split("/")[0] for file in files if "/" in file}
    existing = {*files, *(str(parent) for file in files for parent in Path(file).parents)}
    problems = []
    for number, line in prose_lines(text):
        if len(line) > MAX_CHARACTERS and not line.lstrip().startswith("|") and not LINK.search(line):
            problems.append(f"{document}:{number}: expected at most {MAX_CHARACTERS} characters, found {len(line)}")
        for path in paths_in(line, folders):
            for name in expanded(path):
                if not fnmatch.filter(existing, name.rstrip("/")):
                    problems.append(f"{document}:{number}: no file or folder {name}")
    return problems


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("documents", nargs="*", metavar="DOCUMENT", help="relative to the repository's root")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to check (default: this one)")
    args = parser.parse_args()
    files = tracked_files(args.root)
    documents = args.documents or [file for file in files if any(fnmatch.fnmatch(file, name) for name in DOCUMENTS)]
    problems = []
    for document in documents:
        problems += check(document, (args.root / document).read_text(), files)
    print("\n".join(problems) if problems else f"documents: {len(documents)} checked")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
