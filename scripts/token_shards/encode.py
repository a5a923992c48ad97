"""Turns chunks of the input into tokens. Every worker process has an Encoder."""

import ctypes
import dataclasses
import gc
import json
import os
import re
import signal
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from .chat import ChatEncoder, ChatOptions
from .chat_messages import read_messages
from .chat_render import names_variable
from .encoded import Encoded
from .errors import BadDocument, InputError, check_unicode
from .json_values import check_text, load_json
from .learned import take_learned, wanted_turns
from .piece_cache import PieceCache
from .ready_ids import check_vocabulary
from .records import Chat, Pair, RecordReader, Text
from .shard_file import check_alignment
from .shard_folder import close_inherited_locks
from .template_files import ChatTemplates
from .two_tokenizers import TwoTokenizers
from .unused_keys import count_unused, unread_parts, unread_paths, watched_message

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # of a conversion
PR_SET_PDEATHSIG = 1  # of linux/prctl.h: the signal that a process gets when the one that made it dies


@dataclass(frozen=True)
class EncodeOptions:
    tokenizer: Tokenizer  # which reaches the workers by fork(); it would not come out of its own JSON with equal ids
    vocab_size: int
    bos_ids: tuple  # put before each text
    eos_ids: tuple  # put after each text
    special_tokens: dict
    chat_templates: ChatTemplates
    chat: ChatOptions
    records: str  # auto, or the name of a format
    text_key: str
    messages_key: str
    ignored_keys: tuple = ()
    prompts: bool = False  # documents are prompts, without any token in the loss
    teacher: object = None  # EncodeOptions of a teacher with a tokenizer of its own, and then:
    two_tokenizers: TwoTokenizers | None = None


class Encoder:
    def __init__(self, options):
        self.options = options
        self.tokenizer = options.tokenizer
        self.texts = PieceCache.of(self.tokenizer)
        self.reader = RecordReader(options.records, options.text_key, options.messages_key, options.ignored_keys)
        self.bos, self.eos = np.array(options.bos_ids, np.uint32), np.array(options.eos_ids, np.uint32)
        self.chats = {}
        self.special = _special_tokens(self.tokenizer)
        self.teacher = None if options.teacher is None else Encoder(options.teacher)

    def chat(self, template, chat_options):
        """The encoder of conversations with the template of this name and these options, made when the first one
        comes: it imports a lot."""
        key = template, chat_options
        if key not in self.chats:
            if len(self.chats) > 64:
                self.chats.clear()
            self.chats[key] = chat_encoder(self.options, template, self.tokenizer, chat_options)
        return self.chats[key]

    def encode(self, chunk):
        """Encoded. BadDocuments are counted in it, every other mistake is raised."""
        out = Encoded()
        pending, its_pending = _Texts(), _Texts()
        made = []  # (a list of samples, or a function that makes it once all texts have ids; the teacher's name)
        for where, value in chunk.items():
            out.records += 1
            try:
                made.append(self._document(chunk.kind, where, value, (pending, its_pending), out))
            except BadDocument as error:
                out.bad.append((error.reason, str(error)))
            if chunk.not_read:
                count_unused(out.unused, chunk.not_read, where)
        ids = self.texts.encode(pending.texts)
        if self.teacher is not None:
            ids = ids, self.teacher.texts.encode(its_pending.texts)
        for samples, name in made:
            if samples is None:
                out.not_wanted += 1
                continue
            try:
                samples = samples(ids) if callable(samples) else samples
            except BadDocument as error:
                out.bad.append((error.reason, str(error)))
                continue
            if not samples:
                out.no_assistant += 1
            for tokens, in_loss, teacher in samples:
                if len(tokens) == 0:
                    out.empty += 1
                elif in_loss is not None and not in_loss.any() and not self.options.prompts:
                    out.no_assistant += 1
                else:
                    out.documents.append((tokens, in_loss, teacher, name))
        return out

    def _document(self, kind, where, value, pending, out):
        """(what `made` holds of a record, or None where nothing of it is learned; the name of its teacher)"""
        if isinstance(value, BadDocument):  # of a table: a row with too few cells
            raise value
        wanted, unused, teacher = True, set(), ""
        if kind in ("files", "text"):
            name, document = "text", Text(value)
        else:
            read = self.reader.read(value if isinstance(value, dict) else load_json(value, where), where)
            name, document, wanted, unused = read.format, read.document, read.wanted, read.unused
            teacher = read.teacher
        if self.teacher is None:
            made = self._made(document, where, unused, pending[0], out)
        else:
            made = self._made_twice(document, where, unused, pending, out)
        if self.special is not None:
            count_unused(
                out.special, {one for text in _own_texts(document) for one in self.special.findall(text)}, where
            )
        out.formats[name] = out.formats.get(name, 0) + 1
        count_unused(out.unused, unused, where)
        return made if wanted else None, teacher

    def _made(self, document, where, unused, pending, out):
        """The samples of a document, or a function of the texts' ids that makes them."""
        if isinstance(document, Text):
            return self._text(document, where, pending)
        if isinstance(document, Pair):
            return self._pair(document, where, pending)
        if isinstance(document, Chat):
            template = self.options.chat_templates.name_for(document.tools, where)
            made = self._chat(document, template, where, unused)
            out.templates[template] = out.templates.get(template, 0) + 1
            return made
        return self._ids(*document, where)

    def _made_twice(self, document, where, unused, pending, out):
        """The same for a teacher with a tokenizer of its own, which reads the document in its tokens."""
        if not isinstance(document, (Text, Pair, Chat)):
            raise BadDocument("ready ids", f"{where}: ready ids have no text that another tokenizer could split")
        if not isinstance(document, Text) and self.options.chat.loss_on == "all":
            raise InputError(f"{where}: a teacher's own tokenizer needs --loss-on assistant, found --loss-on all")
        own, its = document, document
        if isinstance(document, Pair) and document.teacher_prompt is not None:
            own = Pair(document.prompt, document.completion)
            its = Pair(document.teacher_prompt, document.completion)
        elif isinstance(document, Chat) and document.teacher_messages is not None:
            own = dataclasses.replace(document, teacher_messages=None)
            messages = [*document.teacher_messages, *document.messages[document.loss_from :]]
            loss_from = len(document.teacher_messages)
            its = dataclasses.replace(own, messages=messages, loss_from=loss_from)
        made = self._made(own, where, unused, pending[0], out)
        its_made = self.teacher._made(its, where, set(), pending[1], Encoded())
        if made is None or its_made is None:
            return None

        def samples(ids):
            each = [one(part) if callable(one) else one for one, part in zip((made, its_made), ids)]
            return self._samples_of_both(*each, isinstance(document, Text), where)

        return samples

    def _samples_of_both(self, own, its, is_text, where):
        """The student's samples, each with the teacher's of the same text."""
        if len(own) != len(its):
            raise BadDocument(
                "the teacher's completion differs from the student's",
                f"{where}: expected {len(own)} turns with the teacher's template, too, found {len(its)}",
            )
        both = self.options.two_tokenizers
        out = []
        for (tokens, in_loss, _), (its_tokens, its_in_loss, _) in zip(own, its):
            if self.options.prompts or not len(tokens) or not len(its_tokens):
                out.append((tokens, in_loss, (its_tokens, its_in_loss) if len(its_tokens) else None))
                continue
            if not is_text:
                both.check_same_text(tokens, in_loss, its_tokens, its_in_loss, where)
                out.append((tokens, in_loss, (its_tokens, its_in_loss)))
                continue
            bos = [
                len(one.bos) if _starts_with(ids, one.bos) else 0
                for one, ids in ((self, tokens), (self.teacher, its_tokens))
            ]
            whole = [np.arange(len(ids)) >= before for ids, before in zip((tokens, its_tokens), bos)]
            both.check_same_text(tokens, whole[0], its_tokens, whole[1], where)
            for own_part, its_part in both.divide(tokens[bos[0] :], its_tokens[bos[1] :], *bos):
                out.append((*_after(tokens[: bos[0]], own_part), _after(its_tokens[: bos[1]], its_part)))
        return out

    def _text(self, document, where, pending):
        text = document.text
        if isinstance(text, bytes):
            try:
                text = text.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                raise BadDocument(
                    "not UTF-8", f"{where}: not UTF-8: byte {error.start} is 0x{text[error.start]:02x}"
                ) from error
        if not check_text(text, self.options.text_key, where).strip():
            return [(np.zeros(0, np.uint32), None, None)]
        number = pending.add(text, where)
        if self.options.prompts:
            return lambda ids: [(*self._prompt(ids[number]), None)]
        return lambda ids: [(np.concatenate(self._framed(ids[number])), None, None)]

    def _prompt(self, ids):
        tokens = np.concatenate(self._framed(ids)[:2])
        return tokens, np.zeros(len(tokens), bool)

    def _pair(self, pair, where, pending):
        """Prompt and completion as transformers tokenises them, in one text. Where a token would reach over the end
        of the prompt, the two are tokenised one by one: at inference, the prompt ends there."""
        prompt = pending.add(pair.prompt, f"{where}: prompt")
        whole = pending.add(pair.prompt + pair.completion, where)
        alone = pending.add(pair.completion, f"{where}: completion")
        teacher_prompt = None
        if pair.teacher_prompt is not None:
            teacher_prompt = pending.add(pair.teacher_prompt, f"{where}: teacher_prompt")

        def made_prompt(ids):
            return [(*self._prompt(ids[prompt]), None if teacher_prompt is None else self._prompt(ids[teacher_prompt]))]

        def made(ids):
            given = ids[prompt]
            together = np.array_equal(ids[whole][: len(given)], given)
            completion = self._framed(ids[whole][len(given) :] if together else ids[alone])[1:]
            tokens, in_loss = self._masked(given, completion)
            if self.options.chat.loss_on == "all":
                in_loss = None
            teacher = None if teacher_prompt is None else self._masked(ids[teacher_prompt], completion)
            return [(tokens, in_loss, teacher)]

        self._check_loss_on(pair.teacher_prompt, where)
        return made_prompt if self.options.prompts else made

    def _framed(self, ids):
        """[bos, ids, eos]; the first is empty where `ids` begin with the begin token already, and the last where they
        end with the end token."""
        bos = self.bos[: 0 if _starts_with(ids, self.bos[:1]) else None]
        return [bos, ids, self.eos[: 0 if _starts_with(ids[::-1], self.eos[-1:]) else None]]

    def _masked(self, prompt, completion):
        parts = [*self._framed(prompt)[:2], *completion]
        tokens = np.concatenate(parts)
        in_loss = np.zeros(len(tokens), bool)
        in_loss[sum(map(len, parts[:2])) :] = True
        return tokens, in_loss

    def _check_loss_on(self, teacher, where):
        if teacher is not None and self.options.chat.loss_on == "all":
            raise InputError(f"{where}: a teacher's own prompt needs --loss-on assistant, found --loss-on all")

    def _chat(self, chat, template, where, unused):
        """The samples, or None where the messages say that none of the assistant's turns is learned. The paths of the
        keys that are not used are added to `unused`."""
        try:
            encoder = self.chat(template, self._chat_options(chat.template_arguments, template, where))
            messages, learned, loss_from = self._messages(chat, chat.messages, chat.loss_from, encoder, where)
            if self.options.prompts:
                unused |= self._not_rendered(chat, encoder, messages)
                return self._chat_prompt(chat, encoder, messages, loss_from, where)
            turns = wanted_turns(messages, learned, loss_from, self.options.chat.loss_on, where)
            if not turns and any(one["role"] == "assistant" for one in messages[loss_from:]):
                return None
            samples = encoder.samples(messages, chat.tools, where, loss_from, learned)
            unused |= self._not_rendered(chat, encoder, messages)
            self._check_loss_on(chat.teacher_messages, where)
            if chat.teacher_messages is None:
                return [(ids, in_loss, None) for ids, in_loss in samples]
            return self._with_teacher(chat, encoder, samples, messages[loss_from:], learned[loss_from:], where)
        except BadDocument as error:
            raise BadDocument(error.reason, f"{error}{_roles(chat.messages)}") from error

    def _chat_prompt(self, chat, encoder, messages, loss_from, where):
        """What the model gets before it answers: all but the assistant's last messages, and the generation prompt."""
        end = len(messages)
        while end > 0 and messages[end - 1]["role"] == "assistant":
            end -= 1
        if end == 0:
            raise BadDocument("no prompt", f"{where}: expected a message before the assistant's, found none")
        ids = encoder.prompt_ids(messages[:end], chat.tools, where)
        teacher = None
        if chat.teacher_messages is not None:
            before, _, _ = self._messages(chat, chat.teacher_messages, 0, encoder, f"{where}: teacher_messages")
            theirs = encoder.prompt_ids([*before, *messages[loss_from:end]], chat.tools, where)
            teacher = theirs, np.zeros(len(theirs), bool)
        return [(ids, np.zeros(len(ids), bool), teacher)]

    @staticmethod
    def _messages(chat, messages, loss_from, encoder, where):
        """(the messages of a record as the template takes them, which note what it reads of them; the Learned of each,
        or None; the number of the first whose turn may have a loss)"""
        pieces = read_messages(messages, where)
        first = sum(map(len, pieces[:loss_from]))
        fitted = encoder.fit([one for several in pieces for one in several], chat.tools, where)
        learned = take_learned(fitted)
        return [watched_message(one) for one in fitted], learned, first

    @staticmethod
    def _not_rendered(chat, encoder, messages):
        """The paths of what the template does not look at, and what else it leaves out."""
        paths = unread_paths(messages, chat.place) | unread_parts(chat.messages, chat.place)
        left_out = set(encoder.form.left_out(messages, chat.tools)) | encoder.left_out
        if "thinking" in left_out:
            paths.discard(f"{chat.place}[].reasoning_content")
        if "content beside tool_calls" in left_out:
            paths.discard(f"{chat.place}[].content")
        names = [name for name in chat.template_arguments if not names_variable(encoder.template.source, name)]
        return paths | left_out | {f"chat_template_kwargs.{name}" for name in names}

    def _chat_options(self, arguments, template, where):
        options = self.options.chat
        source = self.options.chat_templates.texts.get(template, "")
        more = {name: json.dumps(value) for name, value in arguments.items() if names_variable(source, name)}
        if reserved := sorted(set(more) & {"messages", "tools", "add_generation_prompt"}):
            raise BadDocument(
                "chat_template_kwargs sets what each conversation sets",
                f"{where}: chat_template_kwargs: expected variables of the template, found {', '.join(reserved)}",
            )
        return dataclasses.replace(options, template_args=tuple(sorted((dict(options.template_args) | more).items())))

    def _with_teacher(self, chat, encoder, samples, completion, learned, where):
        """The samples, each with what the teacher reads: other messages before the same completion. `learned`: of the
        messages of the completion."""
        before, its_learned, _ = self._messages(chat, chat.teacher_messages, 0, encoder, f"{where}: teacher_messages")
        theirs = encoder.samples([*before, *completion], chat.tools, where, len(before), [*its_learned, *learned])
        if len(theirs) != len(samples):
            raise BadDocument(
                "the teacher's completion differs from the student's",
                f"{where}: expected {len(samples)} turns with teacher_messages, too, found {len(theirs)}",
            )
        out = []
        for (tokens, in_loss), teacher in zip(samples, theirs):
            try:
                check_alignment(tokens, in_loss, *teacher)
            except BadDocument as error:
                raise BadDocument(error.reason, f"{where}: {error}") from error
            out.append((tokens, in_loss, teacher))
        return out

    def _ids(self, ids, in_loss, where):
        check_vocabulary(ids, self.options.vocab_size, where)
        if self.options.prompts:  # what comes before the first token in the loss
            end = int(np.argmax(in_loss)) if in_loss is not None and np.any(in_loss) else len(ids)
            return [(ids[:end].astype(np.uint32), np.zeros(end, bool), None)]
        return [(ids.astype(np.uint32), in_loss, None)]


def _special_tokens(tokenizer):
    """A pattern of the special tokens that a text can hold, or None: the tokenizer takes them apart."""
    names = [one.content for one in tokenizer.get_added_tokens_decoder().values() if one.special]
    if tokenizer.encode_special_tokens or not names:
        return None
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))


def _own_texts(document):
    """The texts of a document as the record has them, without those of its template."""
    if isinstance(document, Text):
        yield document.text if isinstance(document.text, str) else document.text.decode()
    elif isinstance(document, Pair):
        yield from (document.prompt, document.completion)
    elif isinstance(document, Chat):
        for message in document.messages:
            content = message.get("content")
            for part in content if isinstance(content, list) else [content]:
                text = part.get("text") if isinstance(part, dict) else part
                if isinstance(text, str):
                    yield text


class _Texts:
    """The texts of a chunk that need ids."""

    def __init__(self):
        self.texts = []

    def add(self, text, where):
        """The text's number. BadDocument: it has half a surrogate pair, which JSON can express and UTF-8 cannot."""
        check_unicode(text, where)
        self.texts.append(text)
        return len(self.texts) - 1


def _after(before, ids):
    """Tokens with others before them, and which of them are in the loss."""
    return np.concatenate([before, ids]), np.arange(len(before) + len(ids)) >= len(before)


def _starts_with(ids, first):
    return len(first) > 0 and np.array_equal(ids[: len(first)], first)


def _roles(messages):
    if not isinstance(messages, list):
        return ""
    roles = [str(one.get("role")) for one in messages if isinstance(one, dict) and "role" in one]
    return f" (the roles {', '.join(dict.fromkeys(roles))})" if roles else ""


def chat_encoder(options, template, tokenizer=None, chat_options=None):
    """The ChatEncoder of the template of this name, or of none. Of several templates, each gets the arguments of
    --template-arg that it has."""
    texts = options.chat_templates.texts
    chat_options = chat_options or options.chat
    source = texts.get(template)
    if len(texts) > 1:
        named = tuple(one for one in chat_options.template_args if names_variable(source, one[0]))
        chat_options = dataclasses.replace(chat_options, template_args=named)
    label = template if len(texts) > 1 else None
    return ChatEncoder(source, options.special_tokens, tokenizer, chat_options, label)


_encoder = None


def start_worker(options, parent):
    """`parent`: the id of the process that makes the workers, with which they end."""
    global _encoder
    close_inherited_locks()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread in each worker
    gc.disable()  # the tokens of a chunk make no cycles
    _encoder = Encoder(options)


def encode_chunk(chunk):
    return _encoder.encode(chunk)
