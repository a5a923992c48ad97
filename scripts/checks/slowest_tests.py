#!/usr/bin/env python3
"""Prints the slowest tests of the JUnit files that pytest and ctest wrote, with the seconds of each.

scripts/checks/slowest_tests.py FOLDER [--count 20]
"""

import script_path

import sys
import xml.etree.ElementTree as xml
from pathlib import Path

from shared.command_line import argument_parser


def read_times(folder):
    """(seconds, name) of each test case in the JUnit files of a folder. ParseError: a file is not XML."""
    times = []
    for path in sorted(folder.glob("*.xml")):
        for case in xml.parse(path).getroot().iter("testcase"):
            module = case.get("classname", "")
            name = case.get("name")
            # pytest writes tests.data.test_tokenize for tests/data/test_tokenize.py; ctest repeats the program's name.
            text = name if module in ("", name) else f"{module.replace('.', '/')}.py::{name}"
            times.append((float(case.get("time") or 0), text))
    return sorted(times, reverse=True)


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=20)
    args = parser.parse_args()
    times = read_times(args.folder)
    if not times:
        sys.exit(f"slowest_tests.py: {args.folder}: no test case in a JUnit file (*.xml)")
    total = sum(seconds for seconds, _ in times)
    shown = times[: args.count]
    print(f"the {len(shown)} slowest of {len(times)} tests, which took {total:.0f} s one after the other:")
    for seconds, name in shown:
        print(f"{seconds:8.1f} s  {name}")


if __name__ == "__main__":
    main()
