"""Turns conversations into tokens with a chat template, and says which tokens the assistant wrote."""

import argparse
import json
from dataclasses import dataclass
from functools import partial

import numpy as np

from . import chat_locate, chat_marks
from .chat_content import THINK_TAGS
from .chat_render import Template, names_variable
from .errors import BadDocument, InputError, check_unicode
from .learned import wanted_turns
from .template_form import THINKING, TemplateForm

TURNS = {
    "all": "the conversation, with loss on every assistant's turn",
    "last": "the conversation, with loss on the last one only",
    "each": "a sample for each assistant's turn: the prompt that the model gets at inference, and the turn",
}
RESERVED_ARGUMENTS = (
    "add_generation_prompt",
    "as_generated",
    "chat_template",
    "continue_final_message",
    "conversations",
    "mask_generation_prompt",
    "messages",
    "return_assistant_tokens_mask",
    "tools",
)


@dataclass(frozen=True)
class ChatOptions:
    turns: str = "all"  # all | last | each
    loss_on: str = "assistant"  # assistant | all
    template_args: tuple = ()  # (name, value as JSON)
    mask_generation_prompt: bool = True
    thinking: str = "template"  # a key of THINKING

    @classmethod
    def from_arguments(cls, args):
        named = tuple(sorted(dict(args.template_arg).items()))
        return cls(args.turns, args.loss_on, named, args.mask_generation_prompt, args.thinking)

    @property
    def variables(self):
        return {name: json.loads(value) for name, value in self.template_args}


def add_chat_arguments(parser):
    add = parser.add_argument
    add(
        "--chat-template",
        metavar="FILE|NAME",
        help="Jinja template, or the name of one of the tokenizer's (default: the tokenizer's; of several, tool_use "
        "for a record with tools, else default)",
    )
    add("--loss-on", choices=["assistant", "all"], default="assistant", help="conversations: tokens with loss")
    add(
        "--turns",
        choices=list(TURNS),
        default="all",
        help="conversations: " + "; ".join(f"{name}: {text}" for name, text in TURNS.items()) + " (default: all)",
    )
    add(
        "--template-arg",
        action="append",
        type=_template_argument,
        default=[],
        metavar="NAME=VALUE",
        help="variable of the chat template, JSON or else text, such as enable_thinking=false; repeatable",
    )
    add(
        "--thinking",
        choices=list(THINKING),
        default="template",
        help="the thinking of messages (reasoning_content, reasoning, thinking, or parts of the content): "
        + "; ".join(f"{name}: {text}" for name, text in THINKING.items())
        + " (default: template; where that has no place for it, the document is bad)",
    )
    add(
        "--mask-generation-prompt",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="no loss on the beginning of a turn that a generation prompt may have written, such as an empty think "
        "block (default); --no-...: loss on it, unless the template's arguments say that the prompt writes it",
    )


_PYTHONS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false", "None": "null"}


def _template_argument(text):
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {text}")
    if name in RESERVED_ARGUMENTS:
        raise argparse.ArgumentTypeError(f"{name} is not for --template-arg: it is set for each conversation")
    if value in _PYTHONS:  # as a text, which is true for a template
        raise argparse.ArgumentTypeError(
            f"{name}: expected {_PYTHONS[value]} as JSON writes it, or '\"{value}\"' for the text, found {value}"
        )
    try:
        return name, json.dumps(json.loads(value))
    except ValueError:
        return name, json.dumps(value)


def check_template_arguments(options, templates):
    """InputError: a --template-arg is for none of the templates, which are texts."""
    for name in options.variables if templates else ():
        if not any(names_variable(text, name) for text in templates):
            has = "templates have" if len(templates) > 1 else "template has"
            raise InputError(f"--template-arg {name}: the chat {has} no variable of this name")


class ChatEncoder:
    """Conversations as samples. `template` is the text of a chat template, or None; `name`: its name, if it is one of
    several."""

    def __init__(self, template, special_tokens, tokenizer, options, name=None):
        self.options, self.tokenizer = options, tokenizer
        self.template = None
        self.description = None
        self.left_out = set()  # of the last conversation, in words
        if template is None:
            if options.template_args:
                raise InputError("--template-arg: the tokenizer's folder has no chat template (--chat-template FILE)")
            return
        variables = special_tokens | options.variables
        self.family = chat_marks.recognise(template)
        if self.family is None:
            self.template = Template(template, variables, f"chat template {name}" if name else "chat template")
        else:
            variables |= {"mask_generation_prompt": options.mask_generation_prompt}
            self.template = Template(chat_marks.marked(template, self.family), variables)
        check_template_arguments(options, [template])
        self.turn_ends = []
        if self.family is None:
            self.turn_ends = chat_locate.find_turn_ends(lambda probe: self.template.render(probe, None, "a probe"))
        date = "; it writes the date of today" if self._writes_date() else ""
        self.description = f"chat template{f' {name}' if name else ''}: {self._describe()}{date}"
        as_generated = {"as_generated": True} if self.family and options.turns == "each" else {}
        self.form = TemplateForm(partial(self.template.render, **as_generated), template, options.thinking)

    def _describe(self):
        if self.options.loss_on == "all":
            return (f"recognised as {self.family.name}" if self.family else "not a known one") + ", loss on everything"
        if self.family:
            each = f"; each turn as generated: {self.family.each}" if self.options.turns == "each" else ""
            return f"recognised as {self.family.name}, masks by our marked template" + (
                each if self.family.each else ""
            )
        if self.template.has_marks:
            return "not a known one, masks by its own {% generation %} marks"
        ends = "" if self.turn_ends else "; it writes no end of a turn after the last one, so that none has a loss"
        return "not a known one, masks by finding the assistant's texts in the rendering" + ends

    def _writes_date(self):
        date, question = "qzdate", {"role": "user", "content": "question"}
        try:
            text = self.template.render([question], None, "a probe", strftime_now=lambda _: date)
        except BadDocument:
            return False
        return date in text

    def fit(self, messages, tools, where):
        """Messages that `check_messages` returned as the template takes them."""
        if self.template is None:
            raise InputError(
                f"{where}: conversations need a chat template, and the tokenizer's folder has none: expected "
                "chat_template.jinja or a chat_template in tokenizer_config.json. Give one with --chat-template FILE "
                "(that of the model's instruction-tuned version), or convert the conversations to plain text"
            )
        return self.form.fit(messages, tools, where)

    def samples(self, messages, tools, where, loss_from=0, learned=None):
        """[(ids as uint32, bool array of the tokens with loss, or None: all)] of messages that `fit` returned. The
        assistant's turns before the message `loss_from` have no loss, nor have those that the Learned or None of each
        message in `learned` excludes."""
        learned = learned or [None] * len(messages)
        self.left_out = set()
        turns = wanted_turns(messages, learned, loss_from, self.options.loss_on, where)
        if self.options.turns == "each" and turns:
            return [self._turn(messages[: index + 1], tools, where) for index in turns]
        if self.options.loss_on == "all":
            text = self.template.render(messages, tools, where)
            return [(np.array(self._encode(text, where).ids, dtype=np.uint32), None)]
        text, spans = self._spans(messages, tools, where)
        assistants = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if self.options.turns == "last":
            turns = turns[-1:] if turns[-1:] == assistants[-1:] else []
        if turns != assistants:
            spans = self._spans_of(turns, spans, messages, tools, where)
        encoding = self._encode(text, where)
        return [(np.array(encoding.ids, dtype=np.uint32), _in_spans(encoding, spans))]

    def prompt_ids(self, messages, tools, where):
        """The ids of messages that `fit` returned and of the generation prompt after them, as at inference."""
        text = self.template.render(messages, tools, where, generation_prompt=True)
        return np.array(self._encode(text, where).ids, dtype=np.uint32)

    def turn_end_ids(self):
        """The ids of the tokens with which the assistant's turns end, a first one and the last one. Empty where the
        template does not render the probe, or writes no end."""
        if self.template is None:
            return []
        probe = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}] * 2
        try:
            text, spans = self._spans(probe, None, "a probe")
        except BadDocument:
            return []
        turns = [text[begin:end].rstrip() for begin, end in spans]
        ends = [self._encode(turn, "a probe").ids[-1] for turn in turns if not turn.endswith("answer")]
        return list(dict.fromkeys(ends))

    def _turn(self, messages, tools, where):
        """The sample of the last message: the prompt as inference has it, then what the model is to write."""
        text, spans = self._spans(messages, tools, where, as_generated=True)
        spans = self._spans_of([len(messages) - 1], spans, messages, tools, where)
        if not spans:
            raise BadDocument(
                "an assistant's turn is not in the rendering",
                f"{where}: messages[{len(messages) - 1}]: the chat template leaves this assistant's turn out",
            )
        begin, end = spans[0][0], spans[-1][1]
        prompt = text[:begin]
        try:
            inference = self.template.render(messages[:-1], tools, where, generation_prompt=True)
        except BadDocument:
            inference = None  # the template cannot render a conversation without this turn
        if inference is not None and not text.startswith(inference):
            # The template writes earlier turns or the prompt in another way before a new turn.
            prompt = inference
            _check_thinking(prompt, text[begin:end], where)
        completion = text[begin:end]
        spans = [(len(prompt) + b - begin, len(prompt) + e - begin) for b, e in spans]
        encoding, prompt_ids = self._encode(prompt + completion, where), self._encode(prompt, where).ids
        ids, in_loss = encoding.ids, _in_spans(encoding, spans)
        if ids[: len(prompt_ids)] != prompt_ids:
            # A token reaches over the end of the prompt, which at inference is a prompt of its own.
            encoding = self._encode(completion, where)
            ids = prompt_ids + encoding.ids
            rest = _in_spans(encoding, [(b - len(prompt), e - len(prompt)) for b, e in spans])
            in_loss = np.concatenate([np.zeros(len(prompt_ids), dtype=bool), rest])
        return np.array(ids, dtype=np.uint32), None if self.options.loss_on == "all" else in_loss

    def _spans(self, messages, tools, where, **more):
        """(text, the assistant's parts [begin, end) in characters)"""
        if self.family is not None:
            return self.template.render_marked(messages, tools, where, **more)
        prompts = self._prompts(messages, tools, where)
        if self.template.has_marks:
            text, spans = self.template.render_marked(messages, tools, where)
            if self.options.mask_generation_prompt:
                spans = [(begin, chat_locate.without_space(text, begin, end, self.turn_ends)) for begin, end in spans]
        else:

            def render(messages, **more):
                return self.template.render(messages, tools, where, **more)

            text, spans, left_out = chat_locate.locate(render, messages, prompts[0], self.turn_ends, where)
            self.left_out |= {f"content of the role {role}" for role in left_out}
        if self.options.mask_generation_prompt:
            spans = [(_after_prompt(text, begin, end, prompts), end) for begin, end in spans]
        return text, [(begin, end) for begin, end in spans if end > begin]

    def _prompts(self, messages, tools, where):
        """The generation prompts that the turns may have followed; first, that of the template's arguments."""
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        prefix = messages[: users[-1] + 1] if users else [{"role": "user", "content": "question"}]
        arguments = [{}]
        if names_variable(self.template.source, "enable_thinking"):
            given = "enable_thinking" in self.options.variables
            arguments += [{"enable_thinking": value} for value in ((True,) if given else (True, False))]
        prompts, rendered = [], []
        for more in arguments:
            try:
                plain = self.template.render(prefix, tools, where, **more)
                prompted = self.template.render(prefix, tools, where, generation_prompt=True, **more)
            except BadDocument:
                plain, prompted = "", ""
            rendered.append(plain)
            # An argument that changes the text before the prompt is not the one that this conversation had.
            prompts.append(prompted[len(plain) :] if prompted.startswith(plain) and plain == rendered[0] else "")
        return prompts

    def _spans_of(self, wanted, spans, messages, tools, where):
        """The spans of these of the assistant's turns, given by the numbers of their messages."""
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if len(spans) == len(turns):
            return [span for turn, span in zip(turns, spans) if turn in wanted]
        # The template leaves turns out, or marks several parts of one.
        out = []
        for turn in wanted:
            first = self._spans_before(turn, turns, messages, tools, where)
            later = turns[turns.index(turn) + 1 :]
            end = self._spans_before(later[0], turns, messages, tools, where) if later else len(spans)
            out += spans[first:end]
        return out

    def _spans_before(self, turn, turns, messages, tools, where):
        """How many spans the messages before a turn have."""
        return len(self._spans(messages[:turn], tools, where)[1]) if turns[0] < turn else 0

    def _encode(self, text, where):
        check_unicode(text, where)
        return self.tokenizer.encode(text, add_special_tokens=False)


def _check_thinking(prompt, completion, where):
    """A template that rewrites its last turn must not make a sample with a think block that no inference has."""
    for begin, end in THINK_TAGS:
        opened = begin in prompt and end not in prompt.rpartition(begin)[2]
        closed = prompt.rstrip().endswith(end)
        if (opened and end not in completion) or (closed and end in completion):
            raise BadDocument(
                "the rendering does not continue the generation prompt",
                f"{where}: the generation prompt ends with {prompt[-20:]!r}, the chat template renders the turn as "
                f"{completion[:40]!r}: the think block {'is never closed' if opened else 'is closed already'}",
            )


def _in_spans(encoding, spans):
    """The tokens that have a character in one of the spans, as in transformers."""
    in_loss = np.zeros(len(encoding.ids), dtype=bool)
    for begin, end in spans:
        first, last = encoding.char_to_token(begin), encoding.char_to_token(end - 1)
        if first is None or last is None:  # a character that the tokenizer leaves out
            begins, ends = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
            in_loss |= (begins < end) & (ends > begin)
            continue
        while last + 1 < len(in_loss) and _holds(encoding.token_to_chars(last + 1), end - 1):
            last += 1  # a character may have several tokens
        in_loss[first : last + 1] = True
    return in_loss


def _holds(chars, at):
    return chars is not None and chars[0] <= at < chars[1]


def _after_prompt(text, begin, end, prompts):
    """Where the turn begins that is marked at `begin`, after as much of a generation prompt as stands around it."""
    for prompt in sorted(prompts, key=len, reverse=True):
        for cut in range(len(prompt), -1, -1):
            after = begin + len(prompt) - cut
            if after <= end and text.endswith(prompt[:cut], 0, begin) and text.startswith(prompt[cut:], begin):
                return after
    return begin
