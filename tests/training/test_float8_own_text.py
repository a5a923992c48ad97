"""A float8 teacher that reads a text of its own: the gate, the run, the limit."""

import json

import numpy as np
import pytest
import torch
import transformers

import reference_training
import teacher_texts
import tiny
from float8_teacher import float8_config, gate_line, reference_teacher


def own_text_error(folder, documents):
    """reference_error where the teacher reads a text of its own: at the tokens from which it predicts a target."""
    exact = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    loss = {"divergence": "forward_kl", "soft_weight": 1.0, "hard_weight": 1.0}
    # Both read the teacher's text; a document without one is its own.
    texts = [own or document for *document, own in documents]
    found = teacher_texts.evaluate(reference_teacher(folder), exact, teacher_texts.same_texts(texts), loss)
    return {
        "mean_kl": found["forward_kl"],
        "agreement": found["agreement"],
        "cross_entropy": found["teacher_ce"],
        "float8_cross_entropy": found["hard"],
        "tokens": found["valid_tokens"],
    }


def own_text_config(folder, pair, shard, **sections):
    data = {"seq_len": 32, "teacher_seq_len": 48, "packing": "pack", "shuffle": False, "eval": [{"path": shard}]}
    float8 = {"gate_tokens": 10**6} | sections.pop("float8", {})
    return float8_config(folder, pair, shard, data=data, float8=float8, **sections)


def test_the_gate_measures_the_text_that_the_teacher_reads(tmp_path, models):
    student, teacher = models["llama"]
    random = np.random.default_rng(2)
    # Prompts of both texts have at least one token, so that every target counts in both.
    documents = [
        teacher_texts.random_document(random, 2, int(random.integers(3, 12)), int(random.integers(4, 30)))
        for _ in range(60)
    ]
    documents[7] = documents[7][:2] + (None,)
    shard = teacher_texts.write_shard(tmp_path / "own.dtok", documents)
    config = own_text_config(tmp_path / "run", (student, teacher), shard, train={"steps": 2})
    path = tiny.write_config(tmp_path / "run", config)
    found = json.loads(tiny.distill("quantize", "--config", path, "--limit", 100, "--json").stdout)["before"]
    expected = own_text_error(teacher, documents)
    assert found["tokens"] == expected["tokens"]
    assert found["mean_kl"] == pytest.approx(expected["mean_kl"], rel=0.02)
    assert found["agreement"] == pytest.approx(expected["agreement"], abs=0.02)
    assert found["cross_entropy"] == pytest.approx(expected["cross_entropy"], rel=1e-4)
    assert found["float8_cross_entropy"] == pytest.approx(expected["float8_cross_entropy"], rel=2e-3)
    # The student's text is another measurement.
    other = own_text_error(teacher, [document[:2] + (None,) for document in documents])
    assert other["cross_entropy"] != pytest.approx(expected["cross_entropy"], rel=1e-3)
    # The gate of a run says the same, on any number of ranks, and the run has this teacher's losses.
    lines = [gate_line(tiny.train(tmp_path / "run", config))]
    assert f"mean KL {found['mean_kl']:.4g} nats" in lines[0] and f"{found['tokens']} tokens" in lines[0]
    for name, parallel in (("ranks", {}), ("whole", {"shard_teacher": False})):
        ranks = own_text_config(
            tmp_path / name, (student, teacher), shard, train={"steps": 2}, parallel={"processes": 2} | parallel
        )
        run = tiny.train(tmp_path / name, ranks)
        lines.append(gate_line(run))
        losses = [tiny.read_metrics(folder)[0][-1]["soft"] for folder in (run, tmp_path / "run" / "run")]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len({line.split("mean KL")[1] for line in lines}) == 1


def test_a_run_whose_float8_teacher_reads_its_own_text_follows_pytorch(tmp_path, models, monkeypatch):
    student, teacher = models["llama"]
    random = np.random.default_rng(3)
    documents = [teacher_texts.random_document(random, 5, 14, int(random.integers(20, 33))) for _ in range(24)]
    shard = teacher_texts.write_shard(tmp_path / "own.dtok", documents)
    train = {"steps": 6, "micro_batch_size": 2, "global_batch_size": 4}
    config = own_text_config(tmp_path, (student, teacher), shard, train=train)
    found, _ = tiny.read_metrics(tiny.train(tmp_path, config))
    batches = [documents[at : at + 4] for at in range(0, 24, 4)]
    exact, _ = teacher_texts.train(config, batches)
    load, rounded_teacher = reference_training.load, reference_teacher(teacher)
    monkeypatch.setattr(
        reference_training, "load", lambda folder: rounded_teacher if str(folder) == teacher else load(folder)
    )
    expected, _ = teacher_texts.train(config, batches)
    assert [step["valid_tokens"] for step in found] == [step["valid_tokens"] for step in expected]
    rounding, elsewhere = (
        sum(abs(step["forward_kl"] - other["forward_kl"]) for step, other in zip(found, reference, strict=True))
        for reference in (expected, exact)
    )
    assert rounding < (0.5 if tiny.DEVICE == "cuda" else 0.2) * elsewhere


def test_a_limit_refuses_a_teacher_for_its_own_text(tmp_path, models):
    random = np.random.default_rng(4)
    documents = [teacher_texts.random_document(random, 2, 8, 20) for _ in range(30)]
    shard = teacher_texts.write_shard(tmp_path / "own.dtok", documents)
    config = own_text_config(tmp_path, models["llama"], shard, float8={"max_mean_kl": 1e-9})
    refused = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.BAD_INPUT)
    assert f"{own_text_error(models['llama'][1], documents)['tokens']} tokens" in refused.stderr
