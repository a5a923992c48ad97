"""Turns items into tokens. Every worker process has an Encoder."""

import signal
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from .chat import ChatTemplate, check_messages
from .inputs import InputError, json_name, load_json


@dataclass(frozen=True)
class EncodeOptions:
    tokenizer_file: str
    bos_ids: tuple  # put before each text document
    eos_ids: tuple  # put after each text document
    special_tokens: dict
    chat_template: str | None
    loss_on: str  # assistant | all
    text_key: str
    messages_key: str
    skip_bad: bool


@dataclass
class Encoded:
    """The documents of a chunk, concatenated."""

    lengths: np.ndarray
    tokens: np.ndarray  # uint32
    in_loss: list  # for each document a bool array, or None: everywhere
    empty: int = 0  # items without a token
    no_assistant: int = 0  # conversations without an assistant's token
    bad: list = None  # messages of the items that were left out


class Encoder:
    def __init__(self, options):
        self.options = options
        self.tokenizer = Tokenizer.from_file(options.tokenizer_file)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.template = None
        if options.chat_template is not None:
            self.template = ChatTemplate(options.chat_template, options.special_tokens)

    def encode(self, items):
        out = Encoded(None, None, [], bad=[])
        documents = []
        for item in items:
            try:
                tokens, in_loss = self._item(item)
            except InputError as error:
                if not self.options.skip_bad:
                    raise
                out.bad.append(str(error))
                continue
            if len(tokens) == 0:
                out.empty += 1
            elif in_loss is not None and not in_loss.any():
                out.no_assistant += 1
            else:
                documents.append(tokens)
                out.in_loss.append(in_loss)
        out.lengths = np.array([len(tokens) for tokens in documents], dtype=np.int64)
        out.tokens = np.concatenate(documents) if documents else np.zeros(0, np.uint32)
        return out

    def _item(self, item):
        if item.kind == "text":
            return self._text(item.value, item.where)
        if item.kind == "messages":
            return self._messages(item.value, item.where)
        record = load_json(item.value, item.where)
        text_key, messages_key = self.options.text_key, self.options.messages_key
        if isinstance(record, dict) and messages_key in record:
            return self._messages({"messages": record[messages_key], "tools": record.get("tools")}, item.where)
        if isinstance(record, dict) and text_key in record:
            return self._text(record[text_key], item.where)
        found = f"the keys {', '.join(record) or '(none)'}" if isinstance(record, dict) else json_name(record)
        raise InputError(f"{item.where}: expected an object with {text_key} or {messages_key}, found {found}")

    def _text(self, text, where):
        if isinstance(text, bytes):
            try:
                text = text.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise InputError(f"{where}: not UTF-8: byte {error.start} is 0x{text[error.start]:02x}") from error
        if not isinstance(text, str):
            raise InputError(f"{where}: {self.options.text_key}: expected text, found {json_name(text)}")
        if not text.strip():
            return np.zeros(0, np.uint32), None
        ids = self.tokenizer.encode_batch_fast([_encodable(text, where)], add_special_tokens=False)[0].ids
        return np.array([*self.options.bos_ids, *ids, *self.options.eos_ids], dtype=np.uint32), None

    def _messages(self, record, where):
        messages, tools = check_messages(record, where)
        if self.template is None:
            raise InputError(
                f"{where}: messages need a chat template and the tokenizer's folder has none (--chat-template FILE)"
            )
        if self.options.loss_on == "all":
            text, _ = self.template.render(messages, tools, where)
            ids = self.tokenizer.encode(_encodable(text, where), add_special_tokens=False).ids
            return np.array(ids, dtype=np.uint32), None
        text, spans = self.template.spans(messages, tools, where)
        encoding = self.tokenizer.encode(_encodable(text, where), add_special_tokens=False)
        # A token belongs to the assistant if it begins in the assistant's text.
        begins = np.array([begin for begin, _ in encoding.offsets], dtype=np.int64)
        in_loss = np.zeros(len(begins), dtype=bool)
        for begin, end in spans:
            in_loss |= (begins >= begin) & (begins < end)
        return np.array(encoding.ids, dtype=np.uint32), in_loss


def _encodable(text, where):
    """Returns `text`, which must not contain half a surrogate pair: JSON can express it, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: not Unicode text: a lone surrogate at character {error.start}") from error
    return text


_encoder = None


def start_worker(options):
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _encoder = Encoder(options)


def encode_chunk(items):
    return _encoder.encode(items)
