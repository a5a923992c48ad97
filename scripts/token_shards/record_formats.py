"""The formats of a record, a line of JSONL or a row of a table: the keys of each, and what a record without one may
have meant."""

import difflib
from dataclasses import dataclass

from .json_values import json_name, keys_text


@dataclass(frozen=True)
class Format:
    name: str  # of --records
    needs: tuple  # keys; "a|b": one of them
    also: tuple  # keys that may be there; "a|b": other names of one key
    example: str  # a line of JSONL

    def matches(self, keys):
        return all(any(key in keys for key in names.split("|")) for names in self.needs)

    def needs_text(self):
        if len(self.needs) == 1:
            return self.needs[0].replace("|", " or ")
        return " and ".join(names.replace("|", " (or ") + ")" * ("|" in names) for names in self.needs)

    def described(self):
        return f"{self.needs_text()} ({self.name})"

    def all_keys(self):
        """Every key that its reader looks at."""
        return [key for names in (*self.needs, *self.also) for key in names.split("|")]


CHAT_KEYS = ("tools", "functions", "chat_template_kwargs", "teacher_messages")
SYSTEM = "system|system_prompt|system_message"
ID_MASKS = ("loss_mask", "assistant_masks", "completion_mask")


def formats(text_key="text", messages_key="messages"):
    """All formats; a record has the first one whose keys it has."""
    return [
        Format(
            "ids",
            ("input_ids|tokens",),
            (*ID_MASKS, "labels", "attention_mask"),
            '{"input_ids": [504, 2365, 355, 3411], "labels": [-100, -100, 355, 3411]}',
        ),
        Format(
            "messages",
            (messages_key,),
            (SYSTEM, *CHAT_KEYS),
            '{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}',
        ),
        Format(
            "sharegpt",
            ("conversations|conversation",),
            (SYSTEM, *CHAT_KEYS),
            '{"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}',
        ),
        Format(
            "chatgpt",
            ("mapping", "current_node"),
            (),
            '{"current_node": "b", "mapping": {"a": {"parent": null, "message": {"author": {"role": "user"}, '
            '"content": {"content_type": "text", "parts": ["2+2?"]}}}, "b": {"parent": "a", "message": {"author": '
            '{"role": "assistant"}, "content": {"content_type": "text", "parts": ["4"]}}}}}',
        ),
        Format(
            "prompt-completion",
            ("prompt", "completion"),
            ("teacher_prompt", *CHAT_KEYS),
            '{"prompt": "2+2=", "completion": "4"}',
        ),
        Format(
            "alpaca",
            ("instruction|query", "output|response"),
            ("input|context", "history", SYSTEM, *CHAT_KEYS),
            '{"instruction": "Add.", "input": "2 and 2", "output": "4"}',
        ),
        Format("text", (text_key,), (), '{"text": "2+2 is 4."}'),
    ]


FORMAT_NAMES = [one.name for one in formats()]

# What other data sets call these keys.
_SYNONYMS = {
    "prompt": ("question", "query", "instruction", "problem", "input", "source", "human", "user"),
    "completion": ("response", "answer", "output", "solution", "target", "assistant", "bot", "gpt"),
    "text": ("content", "body", "document", "article", "passage", "raw_content"),
    "messages": ("dialog", "dialogue", "dialogs", "chat", "turns", "message", "contents", "chat_history"),
}
# Records that look like one of the formats and are something else: their keys, and what they are.
_OTHERS = (
    (("message_tree_id", "prompt"), "a tree of messages (Open Assistant)", "write each conversation, from the root "
     "to a last answer, as a record with `messages`"),
    (("parent_id", "role"), "a single message of a tree (Open Assistant)", "write each conversation, from the root "
     "to a last answer, as a record with `messages`"),
    (("mapping",), "a conversation of a ChatGPT export without `current_node`", "export it again, or write the "
     "messages as a record with `messages`"),
)  # fmt: skip


def other_kind(record, found):
    """(what the record is, what to do), where it is known not to be of the format `found` although it has the keys."""
    if found is not None and found.name not in ("text", "prompt-completion"):
        return None
    return next(((what, remedy) for keys, what, remedy in _OTHERS if all(key in record for key in keys)), None)


def expected(all_formats, wanted, record, what="an object with"):
    """`expected WHAT text or messages, found ...`, with what was probably meant."""
    if wanted == "auto":
        by_name = {one.name: one for one in all_formats}
        plain = f"{by_name['text'].needs_text()} or {by_name['messages'].needs_text()}"
        others = ", ".join(one.described() for one in all_formats if one.name not in ("text", "messages"))
        known = f" (other formats: {others})"
    else:
        plain, known = all_formats[0].described(), " (--records asks for this format)"
    is_object = isinstance(record, dict)
    found = keys_text(record) if is_object else json_name(record)
    if what != "an object with":
        found = ", ".join(record)
    return f"expected {what} {plain}, found {found}{_hint(all_formats, record) if is_object else ''}{known}"


def _hint(all_formats, record):
    keys = list(record)
    if other := other_kind(record, None):
        return f". This is {other[0]}: {other[1]}"
    if "chosen" in keys:
        is_list = isinstance(record["chosen"], list)
        name = "the messages to learn `messages`" if is_list else "the answer to learn `completion`, beside `prompt`"
        return f". This looks like preference data: name {name}"
    body = record.get("body")
    if isinstance(body, dict) and "messages" in body:
        return ". This is a request of a batch: write what is in its `body` as the record"
    best = (0, "")
    for one in all_formats:
        score, missing = 0, []
        for wanted in one.needs:
            names = wanted.split("|")
            if any(name in keys for name in names):
                score += 1
                continue
            close = _close(names, keys)
            score += 0.6 if close else 0
            missing.append(f"{names[0]} (found {close})" if close else names[0])
            if close and one.name in ("text", "messages"):
                missing[-1] += f": --{one.name}-key {close}"
        remedy = ": rename the keys" if "(found" in missing[-1] and "--" not in missing[-1] else ""
        best = max(best, (score / len(one.needs), f". Nearest: {one.name}, without {', '.join(missing)}{remedy}"))
    return best[1] if best[0] > 0 else ""


def _close(names, keys):
    for name in names:
        if synonym := next((key for key in keys if key.lower() in _SYNONYMS.get(name, ())), None):
            return synonym
        by_lower = {key.lower(): key for key in keys}
        if close := difflib.get_close_matches(name, by_lower, 1, 0.75):
            return by_lower[close[0]]
    return None
