"""Conversations through scripts/token_shards/chat.py and through transformers, with one tokenizer."""

import json
import sys
from pathlib import Path

import chat_shapes
import numpy as np
from chat_forms import cleaned
from chat_shapes import OWN, PUBLISHED, STOCK, special_tokens
from transformers import PreTrainedTokenizerFast

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from token_shards import chat_marks
from token_shards.chat import ChatEncoder, ChatOptions
from token_shards.chat_messages import check_messages

KNOWN = [name for name in PUBLISHED if chat_marks.recognise(PUBLISHED[name])]
TOKENIZER = chat_shapes.make_tokenizer()


def reference(name, template=None):
    wrapped = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER, **special_tokens(name))
    wrapped.chat_template = template or STOCK[name]
    return wrapped


def marked_text(name):
    """The template with marks, or None: nobody has marked it."""
    family = chat_marks.recognise(STOCK[name])
    return chat_marks.marked(STOCK[name], family) if family else OWN.get(name)


def encoder(name, template=None, **options):
    return ChatEncoder(template or STOCK[name], special_tokens(name), TOKENIZER, ChatOptions(**options))


def arguments(**values):
    return tuple((name, json.dumps(value)) for name, value in values.items())


def samples(encoder, messages, tools=None, **kwargs):
    messages, tools = check_messages({"messages": messages, "tools": tools}, "x:1")
    return encoder.samples(encoder.fit(messages, tools, "x:1"), tools, "x:1", **kwargs)


def text(ids):
    return TOKENIZER.decode(list(map(int, ids)), skip_special_tokens=False)


def in_loss(sample):
    """The texts of the runs of tokens with loss."""
    ids, mask = sample
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    return [text(ids[begin:end]) for begin, end in zip(edges[::2], edges[1::2])]


def by_transformers(wrapped, messages, tools, form=None, as_text=False, **kwargs):
    """(ids, mask), or the text; None where transformers raises. `form`: the template for which the messages are
    cleaned before; None, too, where it has no place for something in them."""
    try:
        messages = cleaned(form, messages, tools) if form else messages
        out = wrapped.apply_chat_template(messages, tools=tools, tokenize=not as_text, return_dict=True, **kwargs)
    except Exception:
        return None
    return out if as_text else (out["input_ids"], out.get("assistant_masks"))


def unknown(template):
    """The template with a comment, so that it is not recognised."""
    return template + "{#- another one #}"
