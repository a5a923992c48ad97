"""scripts/teacher_cache/top_tokens.py: what a record of top-k log-probabilities may hold."""

import gzip
import json
import math
from pathlib import Path

import pytest

from teacher_cache.top_tokens import is_vllm, read_predictions, read_records

COLUMNS, FLOOR = 50, 1e-6


def in_lists():
    """Of a teacher whose four tokens have nearly all of the probability, but for the last prediction."""
    probabilities = [[0.6, 0.3, 0.08, 0.01], [0.97, 0.02, 0.0099999, 1e-8], [0.4, 0.3, 0.2, 0.05]]
    return {
        "token_ids": [3, 4, 5],
        "topk_ids": [[4, 1, 2, 3], [5, 1, 2, 3], [9, 8, 7, 6]],
        "topk_log_probs": [[math.log(p) for p in row] for row in probabilities],
        "tail": [1 - sum(row) for row in probabilities],
    }


def of_vllm():
    return {"token_ids": [3, 4], "prompt_logprobs": [None, {"4": {"logprob": -0.5}, "1": {"logprob": -1.5}}]}


def put(*place):
    """An edit: record[place[0]][place[1]]... = the last one."""

    def edit(record):
        *keys, last, value = place
        for key in keys:
            record = record[key]
        record[last] = value

    return edit


def read(record, topk=4):
    return read_predictions("dump.jsonl: line 7", record, COLUMNS, topk, FLOOR)


def remove(*place):
    """An edit: record[place[0]][place[1]]... is taken out."""

    def edit(record):
        *keys, last = place
        for key in keys:
            record = record[key]
        del record[last]

    return edit


@pytest.mark.parametrize(
    "record, edit, message",
    [
        (in_lists, put("token_ids", "a text"), "token_ids: expected a list of integers, found a text"),
        (in_lists, put("topk_ids", 1, 2, 1), "after token 1: expected every token once, found 1 twice"),
        (in_lists, put("topk_log_probs", 1, 3, -0.1), "after token 1: expected log-probabilities in descending order"),
        (in_lists, put("topk_log_probs", 1, [-0.1] * 4), "after token 1: expected probabilities whose sum is at most"),
        (in_lists, put("topk_log_probs", 1, 0, 3.0), "expected log-probabilities (at most 0), found 3.0 of token 5"),
        (in_lists, put("topk_log_probs", 1, [-1.0]), "token 1: expected as many ids as log-probabilities, found 4 and"),
        (in_lists, put("tail", 1, 0.999), "after token 1: tail: expected 1 minus the sum of the others"),
        (in_lists, remove("topk_ids", 2), "topk_ids: expected one entry for each of 3 tokens, found 2"),
        (in_lists, remove("topk_ids"), "expected prompt_logprobs, or topk_ids with topk_log_probs"),
        (of_vllm, remove("prompt_logprobs", 0), "expected a list of 2 entries, one for each token, the first of which"),
        (of_vllm, put("prompt_logprobs", 1, None), "token 1: expected log-probabilities, found null"),
        (of_vllm, put("prompt_logprobs", 1, {"3": "Logprob(-1.5)"}), "write the dictionaries of prompt_logprobs with"),
        (in_lists, put("token_ids", 2, 1.7), "token_ids: token 2: expected an integer of 0 or more, found 1.7"),
        (in_lists, put("token_ids", 2, None), "token_ids: token 2: expected an integer of 0 or more, found None"),
        (in_lists, put("token_ids", 2, 1 << 70), "token_ids: token 2: expected an integer of 0 or more, found 118059"),
        (in_lists, put("topk_ids", 1, None), "topk_ids: token 1: expected a list, found None"),
        (in_lists, put("topk_log_probs", 1, 0.5), "topk_log_probs: token 1: expected a list, found 0.5"),
        (in_lists, put("topk_ids", 1, 2, 1.7), "after token 1: expected tokens of the vocabulary, 0 to 49, found 1.7"),
        (in_lists, put("topk_ids", 1, 2, "7"), "after token 1: expected tokens of the vocabulary, 0 to 49, found '7'"),
        (in_lists, put("topk_ids", 1, 2, True), "expected tokens of the vocabulary, 0 to 49, found True"),
        (in_lists, put("topk_ids", 1, 2, None), "expected tokens of the vocabulary, 0 to 49, found None"),
        (in_lists, put("topk_log_probs", 1, 3, None), "expected log-probabilities (at most 0), found None of token 3"),
        (in_lists, put("topk_log_probs", 1, 3, "-9"), "expected log-probabilities (at most 0), found '-9' of token 3"),
        (in_lists, put("topk_log_probs", 1, 3, -(10**400)), "expected log-probabilities (at most 0), found -1000"),
        (in_lists, put("tail", 1, "0.5"), "tail: token 1: expected a number, found '0.5'"),
        (in_lists, put("tail", 1, None), "tail: token 1: expected a number, found None"),
        (of_vllm, put("prompt_logprobs", 1, {"1.7": {"logprob": -1.5}}), "found {'1.7': {'logprob': -1.5}}; write"),
        (of_vllm, put("prompt_logprobs", 1, {1.7: -1.5}), "found {1.7: -1.5}; write"),
        (of_vllm, put("prompt_logprobs", 1, {"3": {"logprob": True}}), "found {'3': {'logprob': True}}; write"),
        (of_vllm, put("prompt_logprobs", 1, 7), "token 1: expected token ids with their logprob, found 7; write"),
        (of_vllm, put("prompt_logprobs", 1, [3]), "token 1: expected token ids with their logprob, found [3]; write"),
        (of_vllm, put("prompt_logprobs", 1, ""), "token 1: expected token ids with their logprob, found ; write"),
    ],
)
def test_what_is_no_number_is_refused_by_its_place(record, edit, message):
    read(record())
    changed = record()
    edit(changed)
    with pytest.raises(ValueError) as error:
        read(changed)
    assert str(error.value).startswith("dump.jsonl: line 7: ") and message in str(error.value)


def test_maps_of_parquet_and_bare_numbers_are_read():
    record = of_vllm() | {"prompt_logprobs": [None, [(4, {"logprob": -0.5}), ("1", -1.5)]]}
    found, expected = read(record), read(of_vllm())
    assert found.ids.tolist() == expected.ids.tolist() == [[4, 1, -1, -1]]
    assert found.log_probs.tolist() == expected.log_probs.tolist()


@pytest.mark.parametrize("given", [1e-9, 0.0, -1e-9])
def test_a_given_tail_is_kept(given):
    record = in_lists()
    record["tail"][1] = given
    found = read(record)
    assert found.tail.tolist() == record["tail"] and not found.computed_tail
    beyond = math.exp(record["topk_log_probs"][1][3])  # the least probable of the four joins the tail
    assert read(record, topk=3).tail[1] == pytest.approx(given + beyond, rel=1e-6, abs=1e-15)


def test_a_computed_tail_is_at_least_the_floor():
    record = in_lists()
    del record["tail"]
    found = read(record)
    assert found.computed_tail and found.tail[1] == FLOOR
    assert found.tail[0] == pytest.approx(0.01) and found.tail[2] == pytest.approx(0.05)


def test_columns_that_are_null_are_not_there():
    both = {"topk_ids": None, "topk_log_probs": None, "tail": None, "prompt_logprobs": None, "token_ids": None}
    record = {**both, **of_vllm(), "token_ids": None, "prompt_token_ids": of_vllm()["token_ids"]}
    assert is_vllm(record) and read(record).ids.tolist() == read(of_vllm()).ids.tolist()
    record = {**both, **in_lists()}
    assert not is_vllm(record) and read(record).ids.tolist() == read(in_lists()).ids.tolist()


@pytest.mark.parametrize("record", [{**in_lists(), **of_vllm()}, {"token_ids": [3, 4], "topk_ids": [[1], [2]]}])
def test_predictions_in_both_shapes_or_in_half_of_one_are_refused(record):
    with pytest.raises(ValueError) as error:
        read(record)
    assert "expected prompt_logprobs, or topk_ids with topk_log_probs, found " in str(error.value)


@pytest.mark.parametrize("name", ["a.JSONL", "a.ndjson", "a.jsonl.gz", "a.jsonlines"])
def test_names_in_any_case_compression_and_a_byte_order_mark(tmp_path, name):
    data = b"\xef\xbb\xbf" + b"".join(json.dumps(one).encode() + b"\n" for one in (in_lists(), of_vllm()))
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = list(read_records(Path(tmp_path / name)))
    assert [record for _, record in found] == [in_lists(), of_vllm()]
    assert [where for where, _ in found] == [f"{tmp_path / name}: line 1", f"{tmp_path / name}: line 2"]
