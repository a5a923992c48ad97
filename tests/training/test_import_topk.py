"""scripts/import_teacher.py: top-k log-probabilities in the shape of vLLM's, as a teacher."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
import transformers

import read_cache
import tiny
from test_import_teacher import config_of, import_teacher
from token_shard import read_shard

K = 8


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    documents = tiny.random_documents(5, [5, 61, 17, 128, 2, 33, 90, 47])
    return tiny.make_shard(tmp_path_factory.mktemp("data") / "import.dtok", documents)


@pytest.fixture(scope="module")
def predictions(models, shard):
    """(tokens, log-probabilities [T, V]) of each document."""
    model = transformers.AutoModelForCausalLM.from_pretrained(models["llama"][1], dtype=torch.float32).eval()
    out = []
    with torch.no_grad():
        for document in read_shard(shard):
            tokens = torch.from_numpy(document.tokens.copy()).long()
            out.append((tokens.tolist(), model(tokens[None]).logits[0].double().log_softmax(-1)))
    return out


def vllm_record(tokens, log_p, k=K):
    """prompt_logprobs: the k most probable tokens and the one that came, in a dictionary with texts and ranks."""
    entries = [None]
    for t in range(len(tokens) - 1):
        values, ids = log_p[t].topk(k)
        chosen = [tokens[t + 1], *[i for i in ids.tolist() if i != tokens[t + 1]]]
        entries.append({str(i): {"logprob": log_p[t, i].item(), "rank": 1, "decoded_token": "?"} for i in chosen})
    return {"token_ids": tokens, "prompt_logprobs": entries}


def list_record(tokens, log_p, k=K, tail=True):
    values, ids = log_p.topk(k)
    record = {"token_ids": tokens, "topk_ids": ids.tolist(), "topk_log_probs": values.tolist()}
    return record | ({"tail": (1 - values.exp().sum(-1)).tolist()} if tail else {})


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def edited(predictions, edit):
    records = [list_record(*each) for each in predictions]
    edit(records)
    return records


def rows_of(cache):
    return {place: rows for place, rows in read_cache.read_rows(cache).stretches.items()}


def test_the_shapes_of_a_dump_give_the_same_rows_and_those_of_the_model(tmp_path, models, shard, predictions):
    teacher = models["llama"][1]
    dumps = {
        "vllm": write_jsonl(tmp_path / "vllm.jsonl", [vllm_record(*each) for each in predictions]),
        "lists": write_jsonl(tmp_path / "lists.jsonl", [list_record(*each) for each in predictions]),
        "short": write_jsonl(tmp_path / "short.jsonl", [list_record(*each, k=3) for each in predictions]),
    }
    table = pyarrow.Table.from_pylist([list_record(*each) for each in predictions])
    dumps["parquet"] = tmp_path / "lists.parquet"
    pyarrow.parquet.write_table(table, dumps["parquet"])
    said = {}
    for name, path in dumps.items():
        said[name] = import_teacher(teacher, shard, path, tmp_path / name, "--topk", K, "--dtype", "float32")
        assert "8 of 8 documents" in said[name]
        tiny.distill("verify", tmp_path / name)
    assert "is computed as 1 - sum, at least 1e-06" in said["vllm"]
    assert "is given" in said["lists"]
    assert "rows have fewer than 8 tokens" in said["short"]
    lists, vllm, short = (rows_of(tmp_path / name) for name in ("lists", "vllm", "short"))
    assert rows_of(tmp_path / "parquet").keys() == lists.keys()
    documents = read_shard(shard)
    for (_, index, _, _), rows in lists.items():
        log_p = predictions[index][1]
        marks = np.append(documents[index].in_loss[1:], False)
        for place, (ids, values, tail) in zip(np.flatnonzero(marks), rows, strict=True):
            expected = log_p[place].topk(K)
            assert ids == expected.indices.tolist()
            np.testing.assert_allclose(values, expected.values, rtol=1e-6, atol=1e-6)
            assert tail == pytest.approx(1 - expected.values.exp().sum().item(), abs=1e-6)
    for place, rows in lists.items():
        for row, other, few in zip(rows, vllm[place], short[place], strict=True):
            # The token that came is among vLLM's; beyond the k most probable ones it joins the tail.
            assert row[0] == other[0] and row[2] == pytest.approx(other[2], abs=1e-6)
            np.testing.assert_allclose(row[1], other[1])
            assert few[0] == row[0][:3] + [-1] * 5


@pytest.mark.parametrize("record", [vllm_record, list_record])
def test_a_run_from_imported_tokens_is_the_run_from_captured_ones(tmp_path, models, shard, predictions, record):
    pair = models["llama"]
    dump = write_jsonl(tmp_path / "dump.jsonl", [record(*each) for each in predictions])
    # Imported tokens are those of the teacher's whole vocabulary, and so must the student's be.
    config = config_of(tmp_path / "wide", pair, shard)
    student = tiny.make_model(tmp_path / "student", "llama", seed=1, tied=False, vocab=tiny.TEACHER_VOCAB)
    config |= {"student": {"path": student}, "loss": {"divergence": "jsd", "beta": 0.5}}
    config["cache"] = {"kind": "topk", "topk": K, "dtype": "float32"}
    path = tiny.write_config(tmp_path, config)
    tiny.distill("capture", "--config", path, "--set", f"teacher.cache={tmp_path / 'captured'}")
    import_teacher(pair[1], shard, dump, tmp_path / "imported", "--topk", K, "--dtype", "float32")
    steps = []
    for name in ("captured", "imported"):
        source = {"source": "cache", "cache": str(tmp_path / name), "path": pair[1]}
        run = config | {"teacher": source, "run": config["run"] | {"dir": str(tmp_path / f"run-{name}")}}
        steps.append(tiny.read_metrics(tiny.train(tmp_path, run))[0])
    for found, expected in zip(*steps, strict=True):
        assert found["valid_tokens"] == expected["valid_tokens"]
        for key in ("loss", "forward_kl", "teacher_ce", "grad_norm"):
            assert found[key] == pytest.approx(expected[key], rel=1e-4), key


@pytest.mark.parametrize("longest_first", [False, True])
def test_the_longest_record_of_a_document_counts(tmp_path, models, shard, predictions, longest_first):
    """A document has a record of all tokens and two of the first 20, as programs write that cut texts. vLLM's record
    has no prediction for its last token, so that the one in lists has one row more."""
    tokens, log_p = predictions[1]
    whole = [list_record(*each) for each in predictions]
    cut = [record(tokens[:count], log_p[:count]) for count, record in ((20, list_record), (20, vllm_record))]
    whole.sort(key=lambda record: -len(record["token_ids"]))
    dump = write_jsonl(tmp_path / "dump.jsonl", whole + cut if longest_first else cut + whole)
    said = import_teacher(models["llama"][1], shard, dump, tmp_path / "cache", "--topk", K)
    assert "8 of 8 documents\n" in said
    stretches = [tokens for _, index, _, tokens in rows_of(tmp_path / "cache") if index == 1]
    assert sorted(stretches) == ([61] if longest_first else [20, 61])
    tiny.distill("verify", tmp_path / "cache")


def test_given_tails_are_stored_as_they_are_and_those_of_nothing_are_counted(tmp_path, models, shard, predictions):
    targets = np.flatnonzero(read_shard(shard)[5].in_loss[1:])

    def with_small_tails(records):
        for token, tail in zip(targets.tolist(), (0.0, 1e-9)):
            probabilities = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.01, 0.01], dtype=torch.float64)
            records[5]["topk_log_probs"][token] = probabilities.log().tolist()
            records[5]["tail"][token] = tail

    dump = write_jsonl(tmp_path / "dump.jsonl", edited(predictions, with_small_tails))
    said = import_teacher(models["llama"][1], shard, dump, tmp_path / "cache", "--topk", K)
    assert "\n1 rows have a given tail of 0 or less" in said
    stored = [tail for *_, tail in rows_of(tmp_path / "cache")[0, 5, 0, 33]]
    assert stored[:2] == [0.0, pytest.approx(1e-9)] and min(stored[2:]) > 1e-3


@pytest.mark.parametrize(
    "edit, message",
    [
        (lambda r: r[1]["topk_log_probs"][3].reverse(), "dump.jsonl: line 2: after token 3: expected log-prob"),
        (lambda r: [each.update(token_ids=[7] * len(each["token_ids"])) for each in r], "no dump has the tokens"),
        (lambda r: r.pop(1), "expected a dump for each of 8 documents, found none for 1"),
    ],
)
def test_a_bad_dump_is_refused_and_leaves_nothing(tmp_path, models, shard, predictions, edit, message):
    """tests/scripts/test_import_top_tokens.py has what else a record may not hold."""
    dump = write_jsonl(tmp_path / "dump.jsonl", edited(predictions, edit))
    found = import_teacher(models["llama"][1], shard, dump, tmp_path / "cache", "--topk", K, code=1)
    assert message in found and not (tmp_path / "cache").exists(), found


def test_arguments_of_another_kind_are_refused(tmp_path, models, shard, predictions):
    dump = write_jsonl(tmp_path / "dump.jsonl", [list_record(*each) for each in predictions])
    teacher = models["llama"][1]
    for arguments, message in (
        (("--dtype", "bfloat16"), "expected float16 or float32 for these dumps, found bfloat16"),
        (("--topk", "300"), "--topk: expected 1 to 224, found 300"),
        (("--vocab-size", "300"), "--vocab-size: expected 1 to 224, the teacher's tokens, found 300"),
        (("--vocab-size", "30"), "expected tokens of the vocabulary, 0 to 29"),
        (("--temperature", "0"), "--temperature"),
    ):
        assert message in import_teacher(teacher, shard, dump, tmp_path / "cache", *arguments, code=1)
    strange = tmp_path / "dump.csv"
    strange.write_text("")
    assert "expected safetensors files, or JSONL and parquet" in import_teacher(
        teacher, shard, strange, tmp_path / "cache", code=1
    )
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"token_ids": [1,')
    assert "broken.jsonl: line 1: not JSON" in import_teacher(teacher, shard, broken, tmp_path / "cache", code=1)
    for content in (b'{"token_ids": "\xff"}', b"[" * 100_000):
        broken.write_bytes(b"\n" + content)
        assert "broken.jsonl: line 2: not JSON" in import_teacher(teacher, shard, broken, tmp_path / "cache", code=1)
    cut = tmp_path / "cut.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([list_record(*each) for each in predictions]), cut)
    cut.write_bytes(cut.read_bytes()[:-100])
    said = import_teacher(teacher, shard, cut, tmp_path / "cache", code=1)
    assert f"{cut}: after row 0: expected a whole parquet file, found: " in said
