"""What the command lines of the scripts have in common."""

import argparse
import sys
from pathlib import Path


def argument_parser(description, **settings):
    """A parser whose --help shows `description`, the script's docstring, line by line as it stands in the file."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, **settings
    )


def at_least(least):
    """The `type` of an option that counts something."""

    def count(text):
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < least:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, found {text!r}")
        return value

    return count


def fail(message):
    """Ends the script with exit code 1 and `message`, after the script's name, on standard error."""
    sys.exit(f"{Path(sys.argv[0]).stem}: {message}")


def name_and_path(argument, what):
    """The two parts of an argument NAME=PATH; `what` is the word for PATH in the error message."""
    name, separator, path = argument.partition("=")
    if not separator or not name or not path:
        fail(f"expected NAME={what}, found {argument!r}")
    return name, path
