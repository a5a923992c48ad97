"""What a conversion has read and not used: keys of records, messages and tool calls, columns of tables."""

import functools

from .chat_calls import CALL_KEYS
from .chat_content import PART_KEYS
from .errors import BadDocument

# Keys about a record, which say nothing of its text. They are listed in one line.
_METADATA = """
_id id ids idx index uid uuid hash sha sha256 md5 guid key __index_level_0__ row_id prompt_id conversation_id
conversation_hash message_id tool_call_id session_id custom_id original_id question_id sample_id task_id
source sources data_source dataset dataset_name dataset_id subset split origin url uri link file file_name
filename path repo repository license author date time timestamp created created_at create_time update_time
updated_at year version lang language languages locale country region category categories topic topics tag
tags domain type kind task task_type title model model_name generator meta metadata meta_data info extra stats
length len size n_tokens num_tokens token_count tokens_count char_count num_chars word_count num_turns turns
turn_count score scores rating quality difficulty level rank perplexity ppl avatar avatar_url gender
token_type_ids special_tokens_mask
conversation_template_id conversation_origin default_model_slug is_archived is_starred moderation_results safe_urls
blocked_urls plugin_ids gizmo_id gizmo_type async_status disabled_tool_ids
"""
METADATA = frozenset(_METADATA.split()) | {"column 1", "unnamed: 0"}  # the index that pandas writes to CSV


_PATHS, OTHER_PATHS = 1000, "any of the other keys"
_LINES = 50  # of the list
PLAIN_KEYS = frozenset({"role", "content"})  # of a message


def count_unused(found, paths, where, records=1):
    """`found`: {path of a key: [number of records, where the first is]}"""
    for path in paths:
        if path not in found and len(found) >= _PATHS:  # of records whose keys are names or numbers
            path = OTHER_PATHS
        found.setdefault(path, [0, where])[0] += records


def unused_lines(found):
    """The lines for the end of a conversion's output."""
    loud = {path: one for path, one in found.items() if not is_metadata(path)}
    if loud:
        yield "not used: keys that the format or the chat template does not have; the output is without them"
        for path, (count, where) in sorted(loud.items(), key=lambda one: (-one[1][0], one[0]))[:_LINES]:
            yield f"  {path} in {count:,} record{'s' * (count != 1)}; the first: {where}"
        if len(loud) > _LINES:
            yield f"  and {len(loud) - _LINES:,} keys more, each in fewer records"
    quiet = sorted(set(found) - set(loud))
    if quiet:
        named = ", ".join(f"{path} ({found[path][0]:,})" for path in quiet)
        yield f"not used, about the records: {named}"


def is_metadata(path):
    return path.rpartition(".")[2].lower() in METADATA


class Watched(dict):
    """A message, or a part of one, that notes which of its keys are looked at, by a chat template for instance."""

    def __init__(self, values, wrap=None):
        super().__init__(values if wrap is None else {key: wrap(value) for key, value in values.items()})
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.read.add(key)
        return super().get(key, default)

    def items(self):
        self.read.update(super().keys())
        return super().items()

    def values(self):
        self.read.update(super().keys())
        return super().values()

    def not_read(self):
        return [key for key in self if key not in self.read]


def watched_message(message):
    """The message itself where it has no keys but those that every template writes."""
    return message if message.keys() <= PLAIN_KEYS else Watched(message, _watched_value)


def _watched_value(value):
    """Tool calls are watched, too; their arguments are written as a whole."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        return [Watched(one, _watched_part) for one in value]
    return _watched_part(value)


def _watched_part(value):
    return Watched(value) if isinstance(value, dict) and "name" in value else value


def unread_paths(messages, place):
    """The paths of the keys of watched messages that nothing has looked at: `messages[].name`."""
    paths = set()
    for message in messages:
        if isinstance(message, Watched):
            _collect(message, f"{place}[]", paths)
    return paths


def _collect(part, path, paths):
    for key in part.not_read():
        value = dict.__getitem__(part, key)
        if value is not None and (key, value) not in (("type", "function"), ("content", "")):
            paths.add(f"{path}.{key}")
    for key in part.read & part.keys():
        value = dict.__getitem__(part, key)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Watched):
                _collect(one, f"{path}.{key}[]" if isinstance(value, list) else f"{path}.{key}", paths)


def unread_parts(messages, place):
    """The paths of the keys within content parts and tool calls of a record that no interface has: what comes to a
    template is without them."""
    paths = set()
    for message in messages if isinstance(messages, list) else []:
        if not isinstance(message, dict) or (message.keys() <= PLAIN_KEYS and isinstance(message.get("content"), str)):
            continue
        for member, known in _PARTS:
            parts = message.get(member)
            for part in parts if isinstance(parts, list) else [parts]:
                _add_unknown(part, known, f"{place}[].{member}{'[]' * isinstance(parts, list)}", paths)
    return paths


_PARTS = (("content", PART_KEYS), ("tool_calls", CALL_KEYS), ("function_call", CALL_KEYS))


def _add_unknown(part, known, path, paths):
    if isinstance(part, dict):
        paths.update(f"{path}.{key}" for key, value in part.items() if key not in known and value is not None)
        _add_unknown(part.get("function"), known, f"{path}.function", paths)


def check_spelling(keys, known, place, others=()):
    """BadDocument: one of the keys is neither known nor one of the others, and is one letter or its case away from a
    known one that is not there."""
    if found := misspelling(tuple(keys), tuple(known), tuple(others)):
        key, near = found
        raise BadDocument(
            "a key that is probably misspelt",
            f"{place}: expected the key {near}, or another one, found {key} (if it is meant: --ignore-key {key})",
        )


@functools.lru_cache(1 << 12)
def misspelling(keys, known, others=()):
    """(the first of the keys that is probably a misspelt one, the known key), or None."""
    for key in keys:
        if isinstance(key, str) and key not in known and key not in others:
            near = next((one for one in known if one not in keys and is_misspelt(key, one)), None)
            if near is not None:
                return key, near
    return None


def is_misspelt(key, known):
    """Whether `key` has the letters of `known` in another case, or with one letter other, more, less or swapped."""
    a, b = (one.lower().replace("_", "").replace("-", "").replace(" ", "") for one in (key, known))
    if a == b:
        return True
    if len(known) < 5 or abs(len(a) - len(b)) > 1 or a[:1] != b[:1]:
        return False
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    rests = [(a[at + 1 :], b[at + 1 :]), (a[at + 1 :], b[at:]), (a[at:], b[at + 1 :])]
    swapped = a[at : at + 2] == b[at : at + 2][::-1] and len(a[at : at + 2]) == 2 and a[at + 2 :] == b[at + 2 :]
    return swapped or any(x == y for x, y in rests)
