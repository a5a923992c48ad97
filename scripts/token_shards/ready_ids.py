"""Records that hold ids already: checked against the vocabulary and against their own mask."""

import numpy as np

from .errors import BadDocument
from .json_values import json_name, load_json

IGNORED = -100  # the label of a token without loss, as in PyTorch


def ids_document(record, where):
    """(ids as int64, in_loss as bool array or None) without padding; check_vocabulary() is the caller's."""
    key = "input_ids" if "input_ids" in record else "tokens"
    ids = _numbers(record[key], f"{where}: {key}")
    masks = [name for name in ("loss_mask", "assistant_masks", "completion_mask") if record.get(name) is not None]
    labels = record.get("labels")
    if len(masks) + (labels is not None) > 1:
        names = [*masks, *(["labels"] if labels is not None else [])]
        raise BadDocument("several masks", f"{where}: expected one mask of {key}, found {', '.join(names)}")
    in_loss = None
    if masks:
        in_loss = _flags(record[masks[0]], ids, f"{where}: {masks[0]}", key)
    elif labels is not None:
        labels = _numbers(labels, f"{where}: labels")
        _same_length(labels, ids, f"{where}: labels", key)
        in_loss = labels != IGNORED
        different = np.flatnonzero(in_loss & (labels != ids))
        if len(different):
            at = int(different[0])
            raise BadDocument(
                "labels that are not the ids",
                f"{where}: labels[{at}]: expected {IGNORED} or the id at the same place, {ids[at]}, found {labels[at]}",
            )
    if record.get("attention_mask") is not None:
        kept = _flags(record["attention_mask"], ids, f"{where}: attention_mask", key)
        ids, in_loss = ids[kept], None if in_loss is None else in_loss[kept]
    return ids, in_loss


def check_vocabulary(ids, vocab_size, where):
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(outside):
        at = int(outside[0])
        raise BadDocument(
            "an id outside the vocabulary",
            f"{where}: token {at}: expected an id from 0 to {vocab_size - 1}, found {ids[at]}",
        )


def _numbers(values, place):
    array = None
    if isinstance(values, str) and values.lstrip().startswith("["):  # a column of CSV
        values = load_json(values, place)
    if isinstance(values, list):
        try:
            array = np.array(values if values else [], dtype=None if values else np.int64)
        except (ValueError, OverflowError):
            array = None
    if array is None or array.ndim != 1 or array.dtype.kind not in "iu":
        at = (
            next((i for i, one in enumerate(values) if type(one) is not int), None)
            if isinstance(values, list)
            else None
        )
        found = json_name(values) if at is None else f"{json_name(values[at])} at position {at}: {values[at]!r}"[:120]
        raise BadDocument("ids are not whole numbers", f"{place}: expected a list of whole numbers, found {found}")
    return array.astype(np.int64)


def _flags(values, ids, place, key):
    if isinstance(values, str) and values.lstrip().startswith("["):
        values = load_json(values, place)
    if isinstance(values, list) and all(type(one) is bool for one in values):
        values = [int(one) for one in values]
    flags = _numbers(values, place)
    _same_length(flags, ids, place, key)
    wrong = np.flatnonzero((flags != 0) & (flags != 1))
    if len(wrong):
        raise BadDocument(
            "a mask that is not 0 and 1", f"{place}[{wrong[0]}]: expected 0 or 1, found {flags[wrong[0]]}"
        )
    return flags.astype(bool)


def _same_length(values, ids, place, key):
    if len(values) != len(ids):
        raise BadDocument(
            "a mask of another length",
            f"{place}: expected {len(ids)} values, as many as {key}, found {len(values)}",
        )
