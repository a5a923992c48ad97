"""Documents in JSONL files whose order and excerpts depend on their names alone."""

import hashlib
import json


def hash_fraction(name, salt):
    """A number in [0, 1) that depends only on the name."""
    digest = hashlib.sha256(f"{salt}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def excerpt(name, text, limit):
    """Consecutive whole lines of `text`, at most `limit` characters, from a start that depends only on the name."""
    if len(text) <= limit:
        return text
    start = int(hash_fraction(name, "excerpt") * (len(text) - limit))
    start = text.rfind("\n", 0, start) + 1
    end = text.rfind("\n", start, start + limit) + 1
    return text[start : end or start + limit]


def write_jsonl(path, documents):
    """`documents`: (source, text) pairs; a line for each."""
    with open(path, "w", encoding="utf-8") as file:
        for source, text in documents:
            file.write(json.dumps({"text": text, "source": source}, ensure_ascii=False) + "\n")
