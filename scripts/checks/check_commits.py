#!/usr/bin/env python3
"""Checks the subjects of commits: at most 72 characters, beginning with the area of the change, as in "losses: ...".

  scripts/checks/check_commits.py                       the commits of HEAD since START, merges left out
  scripts/checks/check_commits.py --message-file FILE   the message in FILE, as git's commit-msg hook passes it

The commits up to START are older than this rule.
"""

import script_path

import re
import sys
from pathlib import Path

from repository import ROOT, git
from shared.command_line import argument_parser

START = "944a83151b25302876429b2181de62993afdc515"
MAX_CHARACTERS = 72
# An area of one or two words, or several areas with commas between them.
SUBJECT = re.compile(r"[a-z][a-z0-9_./-]*(,? [a-z][a-z0-9_./-]*)?(, [a-z][a-z0-9_./-]*)*: \S")


def problems_of(subject):
    """What is wrong with a commit's subject; an empty list if nothing is."""
    found = []
    if len(subject) > MAX_CHARACTERS:
        found.append(f"expected at most {MAX_CHARACTERS} characters, found {len(subject)}")
    if not SUBJECT.match(subject):
        found.append('expected a beginning such as "losses: ", with the area of the change in lower case')
    return found


def subjects_since(root, start):
    """[(short hash, subject)] of the commits after `start`, oldest first; None if `start` is no ancestor of HEAD."""
    if git(root, "merge-base", "--is-ancestor", start, "HEAD") is None:
        return None
    log = git(root, "log", "--no-merges", "--reverse", "--format=%h %s", f"{start}..HEAD")
    return [line.split(" ", 1) for line in log.splitlines()]


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--message-file", type=Path, metavar="FILE", help="check the message in FILE")
    parser.add_argument("--start", default=START, metavar="COMMIT", help="check the commits after this one")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to check (default: this one)")
    args = parser.parse_args()
    if args.message_file:
        lines = [line for line in args.message_file.read_text().splitlines() if not line.startswith("#")]
        commits = [("message", next((line for line in lines if line.strip()), ""))]
    else:
        commits = subjects_since(args.root, args.start)
        if commits is None:
            print(f"commit subjects: not checked, the history of HEAD here does not contain {args.start[:7]}")
            return 0
    problems = [f"{commit}: {problem}: {subject}" for commit, subject in commits for problem in problems_of(subject)]
    print("\n".join(problems) if problems else f"commit subjects: {len(commits)} checked")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
