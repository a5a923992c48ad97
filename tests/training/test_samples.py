"""eval.samples: greedy continuations of held-out prompts, the ones that transformers' generate() makes."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import tiny
from token_shard import write_shard

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from token_shards.tokenizer_files import canonical_hash

SEQ_LEN, NEW = 32, 8
TOKENIZER = {
    "added_tokens": [{"id": tiny.VOCAB - 1, "content": "<end>", "special": True}],
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
    "model": {"type": "BPE", "vocab": {f"▁w{i}": i for i in range(tiny.VOCAB - 1)}, "merges": []},
}


def words(ids):
    return "".join(f" w{i}" if i < tiny.VOCAB - 1 else "<end>" for i in ids)


def documents():
    """(tokens, in_loss): texts, conversations, and documents that have no prompt that fits."""
    random = np.random.default_rng(11)
    shapes = [  # length, in the loss from, in the loss to
        (20, 0, 20),  # a text
        (30, 9, 14),  # a conversation; its first answer has 5 tokens
        (40, 30, 40),  # a prompt that leaves no room
        (12, 12, 12),  # nothing in the loss
        (90, 0, 90),  # a text whose half leaves no room: as much of it as does
        (28, 24, 28),  # exactly the room
        (1, 0, 1),
        (5, 3, 5),
        (60, 7, 60),  # an answer longer than a continuation
    ]
    result = []
    for length, begin, end in shapes:
        in_loss = np.zeros(length, dtype=bool)
        in_loss[begin:end] = True
        result.append((random.integers(0, tiny.VOCAB, length), in_loss))
    return result


EXPECTED = [
    (0, 10, 18),
    (1, 9, 14),
    (4, 24, 32),
    (5, 24, 28),
    (7, 3, 5),
    (8, 7, 15),
]  # document, prompt's end, target's


@pytest.fixture
def place(tmp_path, models):
    """Copies of the models, the student's with a tokenizer, and held-out documents."""

    def build(family, name="run", samples=9, eos=None, **sections):
        for role, source in zip(("student", "teacher"), models[family]):
            shutil.copytree(source, tmp_path / name / role)
            generation = {} if eos is None else {"eos_token_id": eos}
            (tmp_path / name / role / "generation_config.json").write_text(json.dumps(generation))
        folder = tmp_path / name
        (folder / "student" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        digest, _ = canonical_hash(TOKENIZER)
        write_shard(folder / "eval.dtok", documents(), tiny.VOCAB, digest)
        lengths = [31, 40, 22, 64, 90, 17] * 6
        write_shard(folder / "train.dtok", tiny.random_documents(3, lengths), tiny.VOCAB, digest)
        sections.setdefault("train", {"steps": 4})
        sections["train"]["deterministic"] = tiny.DEVICE == "cuda"
        evaluation = {"every": 2, "batches": 2, "at_start": True, "samples": samples}
        evaluation |= {"sample_tokens": NEW} if samples else {}
        return tiny.base_config(
            folder,
            str(folder / "student"),
            str(folder / "teacher"),
            str(folder / "train.dtok"),
            data={"eval": [{"path": str(folder / "eval.dtok")}]},
            eval=evaluation,
            **sections,
        )

    return build


def train(config, *flags):
    folder = Path(config["run"]["dir"]).parent
    return tiny.train(folder, config, *flags)


def samples_of(run):
    return [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]


def generated(folder, prompt, eos=None):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, eos_token_id=eos, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    "family, parallel",
    [
        ("llama", {"processes": 1}),
        ("qwen3", {"processes": 1}),
        ("exaone4", {"processes": 1}),
        ("llama", {"processes": 2}),
        ("qwen3", {"processes": 4, "shard": 2, "replicate": 2}),
        ("llama", {"processes": 2, "shard_teacher": False}),
    ],
)
def test_continuations_are_those_of_generate(place, family, parallel):
    tiny.need_devices(parallel["processes"])
    config = place(family, parallel=parallel)
    config["train"]["micro_batch_size"] = 1
    run, folder = train(config), Path(config["run"]["dir"]).parent
    samples = samples_of(run)
    assert [(s["step"], s["index"], s["document"]) for s in samples] == [
        (step, index, document) for step in (0, 2, 4) for index, (document, _, _) in enumerate(EXPECTED)
    ]
    held_out = documents()
    for sample in samples:
        document, prompt, end = EXPECTED[sample["index"]]
        tokens = held_out[document][0].tolist()
        assert (sample["prompt_ids"], sample["target_ids"]) == (tokens[:prompt], tokens[prompt:end])
        assert sample["prompt"] == words(tokens[:prompt]).removeprefix(" ")
        assert sample["target"] == words(tokens[prompt:end])
        assert sample["teacher_ids"] == generated(folder / "teacher", tokens[:prompt])
        if sample["step"] != 2:
            student = {0: folder / "student", 4: run / "model"}[sample["step"]]
            assert sample["student_ids"] == generated(student, tokens[:prompt])
        if max(sample["student_ids"]) < tiny.VOCAB:
            assert sample["student"] == words(sample["student_ids"])
    assert {tuple(s["student_ids"]) for s in samples if s["step"] == 0} != {
        tuple(s["student_ids"]) for s in samples if s["step"] == 4
    }
    log = (run / "log.txt").read_text()
    assert log.count("sample 0 after step") == 3 and "6 samples after step 4 took" in log
    assert "eval.samples: 9, but only 6 documents" in log


def test_a_continuation_ends_with_the_text(place):
    folder = lambda config: Path(config["run"]["dir"]).parent  # noqa: E731
    config = place("llama", "first")
    first = [s for s in samples_of(train(config)) if s["step"] == 0]
    eos = first[0]["student_ids"][2]
    config = place("llama", "second", eos=[eos, tiny.VOCAB - 1])
    found = [s for s in samples_of(train(config)) if s["step"] == 0]
    for sample in found:
        for role in ("student", "teacher"):
            expected = generated(folder(config) / role, sample["prompt_ids"], eos=[eos, tiny.VOCAB - 1])
            assert sample[f"{role}_ids"] == expected
    assert found[0]["student_ids"][-1] == eos and len(found[0]["student_ids"]) <= 3


def test_samples_change_nothing_else(place):
    def metrics(config):
        steps, evaluations = tiny.read_metrics(train(config))
        return [record["loss"] for record in steps], [record["eval"] for record in evaluations]

    assert metrics(place("qwen3", "with")) == metrics(place("qwen3", "without", samples=0))


def test_without_a_teacher_there_is_none(place):
    config = place("llama", samples=2)
    del config["teacher"]
    config["loss"] = {"divergence": "none", "hard_weight": 1.0}
    samples = samples_of(train(config))
    assert len(samples) == 6 and all(s["teacher"] is None and s["teacher_ids"] is None for s in samples)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_resumed_run_has_each_sample_once(place, processes):
    tiny.need_devices(processes)
    sections = {"checkpoint": {"every": 3}, "parallel": {"processes": processes}}
    run = train(place("llama", "whole", train={"steps": 6}, **sections))
    whole = (run / "samples.jsonl").read_bytes()
    assert [s["step"] for s in samples_of(run)] == [0] * 6 + [2] * 6 + [4] * 6 + [6] * 6

    config = place("llama", "half", train={"steps": 6}, **sections)
    run = train(config)
    shutil.rmtree(run / "checkpoints" / "step-6")  # as if it had been killed after step 4, in the middle of a line
    shutil.rmtree(run / "model")
    lines = (run / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (run / "samples.jsonl").write_bytes(b"".join(lines[:16]) + lines[16][:20])
    train(config, "--resume")
    assert (run / "samples.jsonl").read_bytes() == whole


def test_a_resumed_run_without_samples_keeps_the_old_ones(place):
    config = place("llama", train={"steps": 4}, checkpoint={"every": 2})
    run = train(config)
    shutil.rmtree(run / "checkpoints" / "step-4")
    shutil.rmtree(run / "model")
    config["eval"]["samples"] = 0
    del config["eval"]["sample_tokens"]
    train(config, "--resume")
    assert {s["step"] for s in samples_of(run)} == {0, 2}


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda c, f: (f / "student/tokenizer.json").unlink(), ["eval.samples", "student.tokenizer", "no such file"]),
        (lambda c, f: c["eval"].update(every=0, at_start=False), ["eval.samples: expected evaluations"]),
        (lambda c, f: c["eval"].update(sample_tokens=32), ["eval.sample_tokens: expected fewer than data.seq_len, 32"]),
        (
            lambda c, f: write_shard(f / "eval.dtok", documents()[2:4], tiny.VOCAB, canonical_hash(TOKENIZER)[0]),
            ["eval.samples: expected documents of data.eval", "at most 24 tokens", "found none"],
        ),
        (
            lambda c, f: (f / "student/generation_config.json").write_text('{"eos_token_id": "</s>"}'),
            ["generation_config.json: `eos_token_id`: expected an id", "</s>"],
        ),
    ],
)
def test_bad_input_is_refused(place, change, says):
    config = place("llama")
    folder = Path(config["run"]["dir"]).parent
    change(config, folder)
    done = tiny.distill("--config", tiny.write_config(folder, config), code=tiny.BAD_INPUT)
    for text in says:
        assert text in done.stderr
    assert not (folder / "run").exists()
