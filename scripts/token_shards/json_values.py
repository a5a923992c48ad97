"""JSON of the input: parsing with errors that name the place, and the words for values in errors."""

import json

from .errors import BadDocument


def json_name(value):
    """What JSON calls a value, for errors."""
    if value is None:
        return "null"
    names = ((bool, "true or false"), (str, "text"), ((int, float), "a number"), (list, "a list"), (dict, "an object"))
    return next((name for kind, name in names if isinstance(value, kind)), f"a {type(value).__name__}")


def load_json(text, where):
    """The value. BadDocument: the text is not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise BadDocument(
            "JSON is nested too deeply", f"{where}: JSON that is nested too deeply to be a document"
        ) from error
    except ValueError as error:
        raise BadDocument("not valid JSON", f"{where}: not valid JSON: {error}") from error


def keys_text(value):
    return f"the keys {', '.join(map(str, value)) or '(none)'}"


def found_text(value):
    """What was found in the place of something else: `an object with the keys a, b`, `a list`."""
    return f"an object with {keys_text(value)}" if isinstance(value, dict) else json_name(value)


def short_text(value, limit=80):
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return json_name(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
