#!/usr/bin/env python3
"""The parts of quality.sh, one command each; `quality.py COMMAND --help` says what it reads and writes.

docs/quality.md has the whole story.
"""

import script_path

import importlib
import sys

from shared.command_line import argument_parser

# command: (module, its function that adds arguments, its function that does the work)
COMMANDS = {
    "text": ("corpus", "add_arguments", "main"),
    "prompts": ("prompts", "add_arguments", "main"),
    "students": ("students", "add_arguments", "main"),
    "run": ("schedule", "add_arguments", "main"),
    "measure": ("calibration", "add_arguments", "main"),
    "merge": ("results", "add_merge_arguments", "merge"),
    "report": ("report", "add_arguments", "main"),
    "check": ("report", "add_check_arguments", "check"),
    "compare": ("again", "add_arguments", "main"),
    "several-data": ("several", "add_data_arguments", "make_data"),
    "several": ("several", "add_arguments", "main"),
    "privileged-data": ("privileged", "add_data_arguments", "make_data"),
    "privileged": ("privileged", "add_arguments", "main"),
    "experts": ("experts", "add_arguments", "main"),
}


def main():
    parser = argument_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in [name for name in sys.argv[1:2] if name in COMMANDS] or COMMANDS:  # imports take time
        module_name, add_arguments, work = COMMANDS[name]
        module = importlib.import_module(f"quality.{module_name}")
        title = module.__doc__.splitlines()[0]
        one = commands.add_parser(name, description=module.__doc__, help=title, formatter_class=parser.formatter_class)
        getattr(module, add_arguments)(one)
        one.set_defaults(run=getattr(module, work))
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
