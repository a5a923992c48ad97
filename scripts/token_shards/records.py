"""The formats of a record, a line of JSONL or a row of a table: which one it has, and the document in it."""

import difflib
from dataclasses import dataclass, field

from .chat_messages import is_assistant, record_tools
from .errors import BadDocument
from .json_values import found_text, json_name, keys_text, load_json, short_text
from .ready_ids import ids_document
from .sharegpt import from_sharegpt, is_sharegpt


@dataclass
class Text:
    text: object


@dataclass
class Pair:
    """A completion that follows a prompt; both are texts."""

    prompt: str
    completion: str
    teacher_prompt: str | None = None


@dataclass
class Chat:
    messages: object  # not checked yet
    tools: list | None = None
    template_arguments: dict = field(default_factory=dict)
    loss_from: int = 0  # the first message whose turn may have a loss
    teacher_messages: list | None = None  # what the teacher reads in the place of messages[:loss_from]


@dataclass(frozen=True)
class Format:
    name: str  # of --records
    needs: tuple  # keys; "a|b": one of them
    also: tuple  # keys that may be there
    example: str  # a line of JSONL

    def matches(self, record):
        return all(any(key in record for key in keys.split("|")) for keys in self.needs)

    def needs_text(self):
        return " and ".join(keys.replace("|", " or ") for keys in self.needs)

    def described(self):
        return f"{self.needs_text()} ({self.name})"


CHAT_KEYS = ("tools", "functions", "chat_template_kwargs")
MASK_KEYS = ("loss_mask", "assistant_masks", "completion_mask", "labels", "attention_mask")


def formats(text_key="text", messages_key="messages"):
    """All formats; a record has the first one whose keys it has."""
    return [
        Format(
            "ids",
            ("input_ids|tokens",),
            MASK_KEYS,
            '{"input_ids": [504, 2365, 355, 3411], "labels": [-100, -100, 355, 3411]}',
        ),
        Format(
            "messages",
            (messages_key,),
            (*CHAT_KEYS, "teacher_messages"),
            '{"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}',
        ),
        Format(
            "sharegpt",
            ("conversations|conversation",),
            ("system", *CHAT_KEYS, "teacher_messages"),
            '{"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}',
        ),
        Format(
            "prompt-completion",
            ("prompt", "completion"),
            (*CHAT_KEYS, "teacher_prompt", "teacher_messages"),
            '{"prompt": "2+2=", "completion": "4"}',
        ),
        Format(
            "alpaca",
            ("instruction", "output"),
            ("input", "system", "history", *CHAT_KEYS, "teacher_messages"),
            '{"instruction": "Add.", "input": "2 and 2", "output": "4"}',
        ),
        Format("text", (text_key,), (), '{"text": "2+2 is 4."}'),
    ]


FORMAT_NAMES = [one.name for one in formats()]

# What other data sets call these keys.
_SYNONYMS = {
    "prompt": ("question", "query", "instruction", "problem", "input", "source"),
    "completion": ("response", "answer", "output", "solution", "target"),
    "text": ("content", "body", "document", "article", "passage", "raw_content"),
    "messages": ("dialog", "dialogue", "chat", "turns", "message"),
}


class RecordReader:
    """Finds the document in a record. `wanted`: the name of a format, or auto."""

    def __init__(self, wanted="auto", text_key="text", messages_key="messages"):
        self.wanted, self.text_key, self.messages_key = wanted, text_key, messages_key
        self.formats = [one for one in formats(text_key, messages_key) if wanted in ("auto", one.name)]
        self._readers = {
            "ids": self._ids,
            "messages": self._messages,
            "sharegpt": self._sharegpt,
            "prompt-completion": self._prompt_completion,
            "alpaca": self._alpaca,
            "text": lambda record, where: Text(record[text_key]),
        }

    def keys(self):
        """Every key that a reader looks at."""
        return {key for one in self.formats for keys in (*one.needs, *one.also) for key in keys.split("|")}

    def format_of(self, keys):
        return next((one for one in self.formats if one.matches(keys)), None)

    def read(self, record, where):
        """(name of the format, Text | Pair | Chat | (ids, in_loss)). BadDocument: it has none."""
        found = self.format_of(record) if isinstance(record, dict) else None
        if found is None:
            raise BadDocument("the keys of no format", f"{where}: {self.expected(record)}")
        return found.name, self._readers[found.name](record, where)

    def expected(self, record, what="an object with"):
        """`expected WHAT text or messages, found ...`, with what was probably meant."""
        if self.wanted == "auto":
            plain = f"{self.text_key} or {self.messages_key}"
            others = ", ".join(one.described() for one in self.formats if one.name not in ("text", "messages"))
            known = f" (other formats: {others})"
        else:
            plain, known = self.formats[0].described(), " (--records asks for this format)"
        is_object = isinstance(record, dict)
        found = keys_text(record) if is_object else json_name(record)
        if what == "a column":
            found = ", ".join(record)
        return f"expected {what} {plain}, found {found}{self._hint(list(record)) if is_object else ''}{known}"

    def _hint(self, keys):
        if "chosen" in keys and "rejected" in keys:
            return ". This looks like preference data: name the answer to learn `completion`, beside `prompt`"
        best = (0, "")
        for one in self.formats:
            score, missing = 0, []
            for wanted in one.needs:
                names = wanted.split("|")
                if any(name in keys for name in names):
                    score += 1
                    continue
                close = self._close(names, keys)
                score += 0.6 if close else 0
                missing.append(f"{names[0]} (found {close})" if close else names[0])
            best = max(best, (score / len(one.needs), f". Nearest: {one.name}, without {', '.join(missing)}"))
        return best[1] if best[0] > 0 else ""

    @staticmethod
    def _close(names, keys):
        for name in names:
            if synonym := next((key for key in keys if key.lower() in _SYNONYMS.get(name, ())), None):
                return synonym
            by_lower = {key.lower(): key for key in keys}
            if close := difflib.get_close_matches(name, by_lower, 1, 0.75):
                return by_lower[close[0]]
        return None

    def _ids(self, record, where):
        return ids_document(record, where)

    def _messages(self, record, where):
        messages = record[self.messages_key]
        if isinstance(messages, str):
            messages = load_json(messages, f"{where}: {self.messages_key}")
        if is_sharegpt(messages):
            messages = from_sharegpt(messages, f"{where}: {self.messages_key}")
        return self._chat(record, messages, where)

    def _sharegpt(self, record, where):
        key = "conversations" if "conversations" in record else "conversation"
        messages = record[key]
        if isinstance(messages, str):
            messages = load_json(messages, f"{where}: {key}")
        if not isinstance(messages, list) or not messages:
            raise BadDocument(
                "conversations are not a list", f"{where}: {key}: expected a list, found {short_text(messages)}"
            )
        if not (isinstance(messages[0], dict) and "role" in messages[0]):  # OpenAI's messages have this key, too
            messages = from_sharegpt(messages, f"{where}: {key}")
        return self._chat(record, _with_system(record, messages), where)

    def _alpaca(self, record, where):
        texts = {key: record.get(key) or "" for key in ("instruction", "input", "output")}
        for key, text in texts.items():
            if not isinstance(text, str):
                raise BadDocument(f"{key} is not text", f"{where}: {key}: expected text, found {found_text(text)}")
        messages = []
        for index, turn in enumerate(record.get("history") or []):
            if not (isinstance(turn, (list, tuple)) and len(turn) == 2 and all(isinstance(one, str) for one in turn)):
                raise BadDocument(
                    "history is not a list of pairs",
                    f"{where}: history[{index}]: expected a pair of texts, found {short_text(turn)}",
                )
            messages += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
        question = "\n".join(text for text in (texts["instruction"], texts["input"]) if text)
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": texts["output"]}]
        return self._chat(record, _with_system(record, messages), where)

    def _prompt_completion(self, record, where):
        prompt, completion = record["prompt"], record["completion"]
        if isinstance(prompt, str) and isinstance(completion, str):
            teacher = record.get("teacher_prompt")
            if teacher is not None and not isinstance(teacher, str):
                raise BadDocument(
                    "teacher_prompt is not text", f"{where}: teacher_prompt: expected text, found {found_text(teacher)}"
                )
            if record.get("teacher_messages") is not None:
                raise BadDocument(
                    "teacher_messages beside a prompt that is text",
                    f"{where}: teacher_messages: expected teacher_prompt, since the prompt is text",
                )
            return Pair(prompt, completion, teacher)
        if isinstance(prompt, list) and isinstance(completion, (list, dict)):
            completion = [completion] if isinstance(completion, dict) else completion
            if not completion:
                raise BadDocument("completion is empty", f"{where}: completion: expected messages, found []")
            return self._chat(record, prompt + completion, where, len(prompt))
        raise BadDocument(
            "prompt and completion are not two texts or two lists of messages",
            f"{where}: expected prompt and completion to be two texts or two lists of messages, "
            f"found {json_name(prompt)} and {json_name(completion)}",
        )

    def _chat(self, record, messages, where, completion_from=None):
        arguments = record.get("chat_template_kwargs") or {}
        if isinstance(arguments, str):
            arguments = load_json(arguments, f"{where}: chat_template_kwargs")
        if not isinstance(arguments, dict):
            raise BadDocument(
                "chat_template_kwargs is not an object",
                f"{where}: chat_template_kwargs: expected an object, found {json_name(arguments)}",
            )
        teacher = record.get("teacher_messages")
        if teacher is None and record.get("teacher_prompt") is not None:
            teacher = record["teacher_prompt"]
        if isinstance(teacher, str) and record.get("teacher_messages") is not None:
            teacher = load_json(teacher, f"{where}: teacher_messages")
        if teacher is not None and not isinstance(teacher, list):
            raise BadDocument(
                "teacher_messages is not a list",
                f"{where}: expected teacher_messages, a list of messages, found {short_text(teacher)}",
            )
        loss_from = completion_from or 0
        if teacher is not None and completion_from is None:
            loss_from = _completion_begins(messages, where)
        return Chat(messages, record_tools(record, where), arguments, loss_from, teacher)


def _completion_begins(messages, where):
    """The first of the assistant's messages at the end of the conversation."""
    at = len(messages) if isinstance(messages, list) else 0
    while at > 0 and is_assistant(messages[at - 1]):
        at -= 1
    if not isinstance(messages, list) or at == len(messages):
        raise BadDocument(
            "teacher_messages without a completion",
            f"{where}: teacher_messages: expected a conversation that ends with the assistant, whose last turn "
            "both models complete",
        )
    return at


def _with_system(record, messages):
    system = record.get("system")
    return [{"role": "system", "content": system}, *messages] if system else messages
