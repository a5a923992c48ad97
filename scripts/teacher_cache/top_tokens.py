"""Top-k log-probabilities that another program has written: JSONL and parquet, one document in each record.

A record has `token_ids` [T] and one of
- `prompt_logprobs`, as vLLM returns it: for each token, from the second on, a dictionary of token id ->
  {"logprob": ...} (or the number alone), the teacher's prediction of that token from those before it; the first one
  is null;
- `topk_ids` [T][K] and `topk_log_probs` [T][K], and perhaps `tail` [T]: the prediction after each token.
"""

import json
import math
from dataclasses import dataclass

import numpy as np

from teacher_cache.reading import is_integer, is_number
from token_shards.compressed import Source
from token_shards.file_kinds import named_kind

TOO_MUCH = 1e-2  # by which a sum of rounded probabilities may exceed 1
DISAGREE = 1e-2  # between a given tail and 1 - sum


KEYS = ("token_ids", "prompt_token_ids", "prompt_logprobs", "topk_ids", "topk_log_probs", "tail")  # that are read


@dataclass
class Predictions:
    """After each of the first N tokens: ids int32 [N, K], -1: none; log-probabilities [N, K]; tail [N]."""

    ids: np.ndarray
    log_probs: np.ndarray
    tail: np.ndarray
    computed_tail: bool  # 1 - sum, at least the floor


def read_records(path):
    """(where, record) of every document of a file."""
    if named_kind(path) == "parquet":
        yield from _read_parquet(path)
        return
    source = Source.open(path)
    with source.stream:
        for number, line in enumerate(source.lines(), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}: line {number}: not JSON: {error}") from None
            if not isinstance(record, dict):
                raise ValueError(f"{path}: line {number}: expected an object, found {type(record).__name__}")
            yield f"{path}: line {number}", record


def _read_parquet(path):
    import pyarrow.parquet

    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=16):
            for record in batch.to_pylist():
                number += 1
                yield f"{path}: row {number}", record
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path}: after row {number}: expected a whole parquet file, found: {error}") from None


def token_ids(where, record):
    ids = record.get("token_ids")
    ids = record.get("prompt_token_ids") if ids is None else ids
    if not isinstance(ids, list) or not ids:
        raise ValueError(f"{where}: token_ids: expected a list of integers, found {str(ids)[:60]}")
    for token, found in enumerate(ids):
        if not is_integer(found) or found < 0:
            raise ValueError(
                f"{where}: token_ids: token {token}: expected an integer of 0 or more, found {found!r:.60}"
            )
    return np.asarray(ids, np.int64)


def is_vllm(record):
    """Whether the record has the predictions in vLLM's shape."""
    return record.get("prompt_logprobs") is not None


def _token(key):
    """JSON has texts alone as keys."""
    return int(key) if isinstance(key, str) and len(key) < 20 and key.isascii() and key.isdigit() else key


def _log_prob(entry):
    return entry.get("logprob") if isinstance(entry, dict) else entry


def _pairs(where, entry):
    """(ids, log-probabilities) of one of vLLM's dictionaries; a parquet map is a list of pairs."""
    items = list(entry.items()) if isinstance(entry, dict) else entry
    pairs = None
    if isinstance(items, list) and all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in items):
        pairs = [(_token(token), _log_prob(value)) for token, value in items if value is not None]
    if pairs is None or not all(is_integer(token) and is_number(value) for token, value in pairs):
        raise ValueError(
            f"{where}: expected token ids with their logprob, found {str(entry)[:80]}; write the dictionaries of "
            "prompt_logprobs with their numbers"
        )
    return [token for token, _ in pairs], [value for _, value in pairs]


def _rows_of_vllm(where, record, count):
    """The prediction after token t is entry t + 1."""
    entries = record["prompt_logprobs"]
    if not isinstance(entries, list) or len(entries) != count or entries[0] is not None:
        raise ValueError(
            f"{where}: prompt_logprobs: expected a list of {count} entries, one for each token, the first of which is "
            f"null, found {len(entries) if isinstance(entries, list) else type(entries).__name__}"
        )
    for token, entry in enumerate(entries[1:], 1):
        if entry is None:
            raise ValueError(f"{where}: prompt_logprobs: token {token}: expected log-probabilities, found null")
        yield (*_pairs(f"{where}: prompt_logprobs: token {token}", entry), None)


def _rows_of_lists(where, record, count):
    ids, values, tails = record.get("topk_ids"), record.get("topk_log_probs"), record.get("tail")
    for name, column in {"topk_ids": ids, "topk_log_probs": values, "tail": tails}.items():
        if (column is not None or name != "tail") and (not isinstance(column, list) or len(column) != count):
            found = len(column) if isinstance(column, list) else type(column).__name__
            raise ValueError(f"{where}: {name}: expected one entry for each of {count} tokens, found {found}")
    for token in range(count):
        for name, column in (("topk_ids", ids), ("topk_log_probs", values)):
            if not isinstance(column[token], list):
                raise ValueError(f"{where}: {name}: token {token}: expected a list, found {column[token]!r:.60}")
        if tails is not None and not is_number(tails[token]):
            raise ValueError(f"{where}: tail: token {token}: expected a number, found {tails[token]!r:.60}")
        if len(ids[token]) != len(values[token]):
            raise ValueError(
                f"{where}: token {token}: expected as many ids as log-probabilities, found {len(ids[token])} and "
                f"{len(values[token])}"
            )
        yield ids[token], values[token], None if tails is None else tails[token]


def _check_row(where, ids, values, tail, columns, may_be_unsorted):
    for token, value in zip(ids, values, strict=True):
        if not is_integer(token) or not 0 <= token < columns:
            raise ValueError(f"{where}: expected tokens of the vocabulary, 0 to {columns - 1}, found {token!r:.60}")
        if not is_number(value) or not value <= TOO_MUCH:
            raise ValueError(f"{where}: expected log-probabilities (at most 0), found {value!r:.60} of token {token}")
    if len(set(ids)) != len(ids):
        repeated = next(token for token in ids if ids.count(token) > 1)
        raise ValueError(f"{where}: expected every token once, found {repeated} twice")
    if not may_be_unsorted and any(a < b for a, b in zip(values, values[1:], strict=False)):
        raise ValueError(f"{where}: expected log-probabilities in descending order, found {values[:8]}")
    total = sum(map(math.exp, values))
    if total > 1 + TOO_MUCH:
        raise ValueError(
            f"{where}: expected probabilities whose sum is at most 1, found {total:.4f}; are they normalised, and of "
            "the natural logarithm?"
        )
    if tail is not None and not abs(total + tail - 1) <= DISAGREE:
        raise ValueError(f"{where}: tail: expected 1 minus the sum of the others, {1 - total:.4f}, found {tail}")


def read_predictions(where, record, columns, topk, floor):
    """The record's predictions, the `topk` most probable tokens of each; ValueError names what is wrong."""
    count = len(token_ids(where, record))
    of_vllm = is_vllm(record)
    given = [key for key in sorted(record) if record[key] is not None]
    if of_vllm == ({"topk_ids", "topk_log_probs"} <= set(given)):
        raise ValueError(
            f"{where}: expected prompt_logprobs, or topk_ids with topk_log_probs, found {', '.join(given)}"
        )
    # The prediction after the last token of a prompt is in no entry; it has no target either.
    size = count - 1 if of_vllm else count
    out = Predictions(np.full((size, topk), -1, np.int32), np.zeros((size, topk)), np.zeros(size), False)
    rows = _rows_of_vllm(where, record, count) if of_vllm else _rows_of_lists(where, record, count)
    for token, (ids, values, tail) in enumerate(rows):
        # vLLM adds the token that really came next, wherever it stands.
        _check_row(f"{where}: after token {token}", ids, values, tail, columns, may_be_unsorted=of_vllm)
        order = sorted(range(len(ids)), key=lambda i: (-values[i], ids[i]))[:topk]
        kept = np.asarray([values[i] for i in order])
        out.ids[token, : len(order)] = [ids[i] for i in order]
        out.log_probs[token, : len(order)] = kept
        dropped = sum(math.exp(values[i]) for i in range(len(ids))) - np.exp(kept).sum()
        # The floor is for what is left of a difference of rounded numbers; a given tail stays what it is.
        out.computed_tail = tail is None
        tail = max(floor, 1 - np.exp(kept).sum()) if tail is None else tail + dropped
        out.tail[token] = 0.0 if len(order) == columns else tail
    return out
