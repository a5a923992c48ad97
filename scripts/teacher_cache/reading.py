"""Files that others have written: what cannot be read is a ValueError that names the file."""

import contextlib
import json

from safetensors import SafetensorError, safe_open


@contextlib.contextmanager
def open_tensors(path):
    """The open safetensors file."""
    try:
        with safe_open(path, "pt") as file:
            yield file
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a whole safetensors file, found: {error}") from None


def read_object(path):
    """The object of a JSON file, as a dictionary."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, found: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected an object, found {type(value).__name__}")
    return value


def is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def is_number(value):
    """Also of NaN and of the infinities, which are floats."""
    return isinstance(value, float) or is_integer(value)
