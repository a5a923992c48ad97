"""Finds the document in a record: its format by its keys (record_formats), its texts or messages, what is learned."""

from dataclasses import dataclass, field

from . import record_formats
from .chat_messages import is_assistant, record_tools
from .chatgpt_export import from_chatgpt
from .errors import BadDocument
from .json_values import check_text, json_name, load_json, short_text
from .learned import LEARNED_KEYS, RECORD_KEYS, WANTED_KEYS, check_no_masks, mark_learned, record_learned
from .ready_ids import ids_document
from .record_formats import SYSTEM, formats
from .shard_file import TEACHER_NAME
from .sharegpt import conversation_messages
from .unused_keys import PLAIN_KEYS, Watched, check_spelling, misspelling

# Keys of messages that change what is rendered or learned, whose misspellings are looked for.
_MESSAGE_KEYS = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content", *LEARNED_KEYS)
_PLANS = 10_000  # that are remembered

TEACHER_KEY = "teacher"  # of a record of any format


def teacher_name(value, where):
    """The name of a teacher; null and "" are none."""
    if value in (None, ""):
        return ""
    if not isinstance(value, str) or not TEACHER_NAME.fullmatch(value):
        raise BadDocument(
            "teacher is not the name of one",
            f"{where}: teacher: expected a name of 1 to 64 letters, digits or _.-, found {short_text(value)} "
            "(if the key means something else: --ignore-key teacher)",
        )
    return value


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
    messages: object  # not checked yet; some have a Learned
    tools: list | None = None
    template_arguments: dict = field(default_factory=dict)
    loss_from: int = 0  # the first message whose turn may have a loss
    teacher_messages: list | None = None  # what the teacher reads in the place of messages[:loss_from]
    place: str = "messages"  # the key of the record that holds them


@dataclass
class Read:
    """What a reader has made of a record."""

    format: str
    document: object  # Text | Pair | Chat | (ids, in_loss)
    wanted: bool  # false: a key of the record says that nothing of it is learned
    unused: set  # paths of the keys that are not null and were not used
    teacher: str = ""  # the name of its teacher; "": it names none


@dataclass(frozen=True)
class _Plan:
    """How records with these keys are read."""

    format: record_formats.Format
    taken: set  # keys to which the format gives a meaning
    has_learned: bool  # another key says something about the loss
    unused: frozenset  # of a text: all other keys

    @property
    def is_text(self):
        return self.format.name == "text" and not self.has_learned


class RecordReader:
    """Finds the document in a record. `wanted`: the name of a format, or auto. `ignored`: keys of records and messages
    that are passed over."""

    def __init__(self, wanted="auto", text_key="text", messages_key="messages", ignored=()):
        self.wanted, self.text_key, self.messages_key = wanted, text_key, messages_key
        self.ignored = frozenset(ignored)
        self.formats = [one for one in formats(text_key, messages_key) if wanted in ("auto", one.name)]
        self._readers = {
            "ids": self._ids,
            "messages": self._messages,
            "sharegpt": self._sharegpt,
            "chatgpt": self._chatgpt,
            "prompt-completion": self._prompt_completion,
            "alpaca": self._alpaca,
            "text": self._text,
        }
        self._plans = {}
        self._unused = set()  # of the record that is being read

    def columns(self, names):
        """The columns of a table that are read: those that a reader looks at, and misspellings of them."""
        known = {key for one in self.formats for key in one.all_keys()} | {*RECORD_KEYS, TEACHER_KEY}
        known = tuple(sorted(known - self.ignored))
        return [name for name in names if name in known or misspelling((name,), known)]

    def format_of(self, keys):
        return next((one for one in self.formats if one.matches(keys)), None)

    def read(self, record, where):
        """Read. BadDocument: the record has no format, or what is in it cannot be used."""
        if not isinstance(record, dict):
            raise BadDocument("the keys of no format", f"{where}: {self.expected(record)}")
        ignored = {key for key in record if key in self.ignored} if self.ignored else set()
        if ignored:
            record = {key: value for key, value in record.items() if key not in ignored}
        teacher = ""
        if TEACHER_KEY in record:
            teacher = teacher_name(record[TEACHER_KEY], where)
            record = {key: value for key, value in record.items() if key != TEACHER_KEY}
        plan = self._plan(record, where)
        if plan.is_text:
            return Read(plan.format.name, Text(record[self.text_key]), True, plan.unused | ignored, teacher)
        self._unused = ignored
        record = Watched(record)
        wanted, masks = record_learned(record, plan.taken, where) if plan.has_learned else (True, [])
        document = self._readers[plan.format.name](record, masks, where)
        self._unused.update(key for key in record.not_read() if dict.get(record, key) is not None)
        return Read(plan.format.name, document, wanted, self._unused, teacher)

    def _plan(self, record, where):
        """What the keys of a record say, and which of them are null: remembered, since many records have the same."""
        shape = tuple(record)
        if None in record.values():
            shape = shape, tuple(value is None for value in record.values())
        if "tokens" in record:
            return self._new_plan(record, where)
        plan = self._plans.get(shape)
        if plan is None:
            plan = self._new_plan(record, where)
            if len(self._plans) < _PLANS:
                self._plans[shape] = plan
        return plan

    def _new_plan(self, record, where):
        found = self._format(record, where)
        first_names = [names.partition("|")[0] for names in (*found.needs, *found.also)]
        learned = [key for key in RECORD_KEYS if key not in WANTED_KEYS]
        check_spelling(record, (*first_names, *learned), where, (*found.all_keys(), *WANTED_KEYS))
        taken = {*found.all_keys(), *(WANTED_KEYS if found.name in ("ids", "text") else ())}
        present = {key for key, value in record.items() if value is not None}
        return _Plan(
            found, taken, bool(present.intersection(RECORD_KEYS) - taken), frozenset(present - {self.text_key})
        )

    def _format(self, record, where):
        # A number is no list of ids, but how many tokens another program has counted.
        present = [key for key, value in record.items() if value is not None and not _is_count(key, value)]
        found = self.format_of(present)
        other = record_formats.other_kind(record, found) if self.wanted == "auto" else None
        if other is not None:
            raise BadDocument(other[0], f"{where}: found {other[0]}: {other[1]}")
        if found is None:  # its reader refuses a key that is null
            found = self.format_of(record)
        if found is not None:
            return found
        raise BadDocument("the keys of no format", f"{where}: {self.expected(record)}")

    def expected(self, record, what="an object with"):
        """`expected WHAT text or messages, found ...`, with what was probably meant."""
        return record_formats.expected(self.formats, self.wanted, record, what)

    def _text(self, record, masks, where):
        check_no_masks(masks, where, "a text")
        return Text(record[self.text_key])

    def _ids(self, record, masks, where):
        check_no_masks(masks, where, "ids (their masks are loss_mask, assistant_masks, completion_mask and labels)")
        return ids_document(record, where)

    def _messages(self, record, masks, where):
        return self._conversation(record, self.messages_key, masks, where)

    def _sharegpt(self, record, masks, where):
        names = [key for key in ("conversations", "conversation") if key in record]
        key = next((key for key in names if dict.get(record, key) is not None), names[0])
        return self._conversation(record, key, masks, where)

    def _conversation(self, record, key, masks, where):
        messages = conversation_messages(record[key], f"{where}: {key}", self.messages_key == key)
        messages = self._marked(messages, masks, key, where)
        return self._chat(record, self._with_system(record, messages, where), where, place=key)

    def _chatgpt(self, record, masks, where):
        messages = from_chatgpt(record["mapping"], record["current_node"], where)
        return self._chat(record, self._marked(messages, masks, "mapping", where), where, place="mapping")

    def _marked(self, messages, masks, key, where):
        """The messages with what is said about their loss, without keys that are to be passed over."""
        if isinstance(messages, list):
            for index, message in enumerate(messages):
                if not isinstance(message, dict) or message.keys() <= PLAIN_KEYS:
                    continue
                if passed := message.keys() & self.ignored:
                    self._unused.update(f"{key}[].{name}" for name in passed)
                    messages[index] = message = {k: v for k, v in message.items() if k not in passed}
                check_spelling(message, _MESSAGE_KEYS, f"{where}: {key}[{index}]")
        return mark_learned(messages, masks, f"{where}: {key}")

    def _alpaca(self, record, masks, where):
        check_no_masks(masks, where, "instruction and output")

        def text(*names, needed=True):
            there = [key for key in names if dict.get(record, key) is not None]
            if not there and not needed:
                return ""
            key = there[0] if there else next(key for key in names if key in record)
            return check_text(record[key], key, where)

        question = [text("instruction", "query"), text("input", "context", needed=False)]
        answer = text("output", "response")
        messages = [
            *self._history(record.get("history"), where),
            {"role": "user", "content": "\n".join(one for one in question if one)},
            {"role": "assistant", "content": answer},
        ]
        return self._chat(record, self._with_system(record, messages, where), where)

    @staticmethod
    def _history(turns, where):
        if isinstance(turns, str) and turns:  # a column of CSV
            turns = load_json(turns, f"{where}: history")
        if turns is None or turns == "":
            return []
        if not isinstance(turns, list):
            raise BadDocument(
                "history is not a list of pairs",
                f"{where}: history: expected a list of pairs of texts, found {short_text(turns)}",
            )
        messages = []
        for index, turn in enumerate(turns):
            if not (isinstance(turn, (list, tuple)) and len(turn) == 2 and all(isinstance(one, str) for one in turn)):
                raise BadDocument(
                    "history is not a list of pairs",
                    f"{where}: history[{index}]: expected a pair of texts, found {short_text(turn)}",
                )
            messages += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
        return messages

    def _prompt_completion(self, record, masks, where):
        prompt, completion = record["prompt"], record["completion"]
        if isinstance(prompt, list) and isinstance(completion, (list, dict)):
            completion = [completion] if isinstance(completion, dict) else completion
            if not completion:
                raise BadDocument("completion is empty", f"{where}: completion: expected messages, found []")
            messages = self._marked(prompt + completion, masks, "prompt + completion", where)
            whole = self._with_system(record, messages, where)
            return self._chat(record, whole, where, len(whole) - len(completion), "prompt + completion")
        if isinstance(prompt, list) or isinstance(completion, (list, dict)):
            raise BadDocument(
                "prompt and completion are not two texts or two lists of messages",
                f"{where}: expected prompt and completion to be two texts or two lists of messages, "
                f"found {json_name(prompt)} and {json_name(completion)}",
            )
        check_no_masks(masks, where, "a prompt and a completion that are texts")
        texts = [check_text(record[key], key, where) for key in ("prompt", "completion")]
        teacher = record.get("teacher_prompt")
        if teacher is not None:
            check_text(teacher, "teacher_prompt", where)
        for key, remedy in (("teacher_messages", "teacher_prompt"), *((key, "it in the prompt") for key in _SYSTEM)):
            if record.get(key) is not None:
                raise BadDocument(
                    f"{key} beside a prompt that is text",
                    f"{where}: {key}: expected {remedy}, since the prompt is text",
                )
        return Pair(*texts, teacher)

    def _with_system(self, record, messages, where):
        """The messages after the record's own system message, if it has one."""
        key = next((key for key in _SYSTEM if dict.get(record, key) is not None), None)
        system = None if key is None else record[key]
        if system in (None, "") or not isinstance(messages, list):
            return messages
        if not isinstance(system, list):  # of content parts
            check_text(system, key, where)
        first = messages[0] if messages and isinstance(messages[0], dict) else {}
        if first.get("role") not in ("system", "developer"):
            return [{"role": "system", "content": system}, *messages]
        if first.get("content") != system:
            raise BadDocument(
                "two system messages",
                f"{where}: {key}: expected one system message, found this key and a first message of the role "
                f"{first['role']} with another text",
            )
        return messages

    def _chat(self, record, messages, where, completion_from=None, place="messages"):
        arguments = record.get("chat_template_kwargs")
        if isinstance(arguments, str) and arguments:
            arguments = load_json(arguments, f"{where}: chat_template_kwargs")
        if arguments is None or arguments == "":
            arguments = {}
        if not isinstance(arguments, dict):
            raise BadDocument(
                "chat_template_kwargs is not an object",
                f"{where}: chat_template_kwargs: expected an object, found {json_name(arguments)}",
            )
        teacher = self._teacher_messages(record, where)
        loss_from = completion_from or 0
        if teacher is not None and completion_from is None:
            loss_from = _completion_begins(messages, where)
        return Chat(messages, record_tools(record, where), dict(arguments), loss_from, teacher, place)

    def _teacher_messages(self, record, where):
        key = "teacher_messages" if record.get("teacher_messages") is not None else "teacher_prompt"
        teacher = record.get(key)
        if isinstance(teacher, str) and key == "teacher_messages":
            teacher = load_json(teacher, f"{where}: teacher_messages")
        if teacher is None:
            return None
        if not isinstance(teacher, list):
            raise BadDocument(
                "teacher_messages is not a list",
                f"{where}: expected teacher_messages, a list of messages, found {short_text(teacher)}",
            )
        return self._marked(list(teacher), [], key, where)


_SYSTEM = SYSTEM.split("|")


def _is_count(key, value):
    return key == "tokens" and isinstance(value, (int, float))


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
