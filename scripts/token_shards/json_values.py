"""JSON of the input: parsing with errors that name the place, and the words for values in errors."""

import json

from .errors import BadDocument


def json_name(value):
    """What JSON calls a value, for errors."""
    if value is None:
        return "null"
    names = ((bool, "true or false"), (str, "text"), ((int, float), "a number"), (list, "a list"), (dict, "an object"))
    return next((name for kind, name in names if isinstance(value, kind)), f"a {type(value).__name__}")


def once(pairs):
    """The object of these keys and values, for json.loads. ValueError: a key stands there twice, of which Python would
    drop one value."""
    out = dict(pairs)
    if len(out) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)} stands there twice")
    return out


def load_json(text, where):
    """The value. BadDocument: the text is not JSON, nested too deeply, or has a key twice."""
    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError as error:
        raise BadDocument(
            "JSON is nested too deeply", f"{where}: JSON that is nested too deeply to be a document"
        ) from error
    except ValueError as error:
        raise BadDocument("not valid JSON", f"{where}: not valid JSON: {error}") from error


def keys_text(value):
    return f"the keys {', '.join(map(str, value)) or '(none)'}"


def found_text(value):
    """What was found in the place of a text: `an object with the keys a, b`, `a list`, `a number (0); ...`."""
    if isinstance(value, (bool, int, float)):
        text = json.dumps(value)
        return f'{json_name(value)} ({text}), which is not converted: write "{text}" if that is the text'
    return f"an object with {keys_text(value)}" if isinstance(value, dict) else json_name(value)


def check_text(value, key, where):
    """The value. BadDocument: it is no text, which is the same in every format: null, 0 and false are not converted."""
    if isinstance(value, str):
        return value
    reason = f"{key} is null" if value is None else f"{key} is not text"
    raise BadDocument(reason, f"{where}: {key}: expected text, found {found_text(value)}")


def short_text(value, limit=80):
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return json_name(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
