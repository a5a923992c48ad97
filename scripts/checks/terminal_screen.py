#!/usr/bin/env python3
"""Runs a command in a pseudo-terminal and prints its screen as text, for the documents.

scripts/checks/terminal_screen.py --columns 40 build/release/apps/distill/distill --config configs/quickstart.yaml
scripts/checks/terminal_screen.py --columns 40 --at 'step 30' ...    # the screen when this has been written
"""

import script_path  # noqa: F401

import argparse
import contextlib
import sys

from shared.command_line import argument_parser
from shared.terminal import run_in_terminal, screen_of


class Shown(Exception):
    pass


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--columns", type=int, default=80, help="width of the terminal")
    parser.add_argument("--seconds", type=float, default=600, help="end the command after so long")
    parser.add_argument("--at", help="print the screen when this text has been written, and end the command")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    args = parser.parse_args()
    if not args.command:
        parser.error("expected a command")
    output = ""

    def seen(so_far, _):
        nonlocal output
        output = so_far.decode(errors="replace")
        if args.at and args.at in output:
            raise Shown

    code = 0
    with contextlib.suppress(Shown):
        code, output = run_in_terminal(args.command, args.columns, seconds=args.seconds, on_output=seen)
    print(screen_of(output, args.columns).text(), end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
