"""The error of a float8 teacher against the same without float8, and the exceptions that bring it down."""

import json
import re

import numpy as np
import pytest
import torch
import transformers

import reference_training
import tiny
from float8_teacher import float8_config, reference_teacher


@torch.no_grad()
def reference_error(folder, float8, shard, seq_len=32, softcap=None):
    """(mean KL, 99th percentile, agreement, cross-entropy, the same in float8) over all tokens with a target."""
    tokens, targets = reference_training.concat_rows(shard, seq_len)
    valid = targets != reference_training.IGNORE
    exact = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    p, q = (model(tokens).logits[valid][:, : tiny.VOCAB + 1000].double() for model in (exact, float8))
    if softcap is not None:
        p, q = (softcap * torch.tanh(logits / softcap) for logits in (p, q))
    kl = reference_training.kl(p.log_softmax(-1), q.log_softmax(-1)).sort().values
    labels = targets[valid]
    return {
        "mean_kl": kl.mean().item(),
        "p99_kl": kl[int(0.99 * (len(kl) - 1))].item(),
        "agreement": (p.argmax(-1) == q.argmax(-1)).double().mean().item(),
        "cross_entropy": torch.nn.functional.cross_entropy(p, labels).item(),
        "float8_cross_entropy": torch.nn.functional.cross_entropy(q, labels).item(),
        "tokens": len(kl),
    }


def quantize(folder, pair, shard, *arguments, **sections):
    sections["data"] = {"eval": [{"path": shard}]} | sections.get("data", {})
    config = float8_config(folder, pair, shard, **sections)
    found = tiny.distill(
        "quantize", "--config", tiny.write_config(folder, config), "--json", "--tokens", 10**6, *arguments
    )
    return json.loads(found.stdout)


@pytest.mark.parametrize("family", ["llama", "qwen3", "exaone4"])
def test_the_error_is_that_of_the_formula_in_pytorch(tmp_path, models, ragged_shard, family):
    teacher = models[family][1]
    found = quantize(tmp_path, models[family], ragged_shard, "--limit", 100)["before"]
    expected = reference_error(teacher, reference_teacher(teacher), ragged_shard)
    assert found["tokens"] == expected["tokens"]
    # A value on the edge between two e4m3 numbers may fall either way.
    assert found["mean_kl"] == pytest.approx(expected["mean_kl"], rel=0.02)
    assert found["p99_kl"] == pytest.approx(expected["p99_kl"], rel=0.1)
    assert found["agreement"] == pytest.approx(expected["agreement"], abs=0.02)
    assert found["cross_entropy"] == pytest.approx(expected["cross_entropy"], rel=1e-4)
    assert found["float8_cross_entropy"] == pytest.approx(expected["float8_cross_entropy"], rel=2e-3)


def test_a_teacher_whose_logits_are_capped_is_measured_with_the_cap(tmp_path, models, ragged_shard):
    teacher, cap = models["llama"][1], 0.05
    expected = reference_error(teacher, reference_teacher(teacher), ragged_shard, softcap=cap)
    uncapped = reference_error(teacher, reference_teacher(teacher), ragged_shard)
    assert expected["mean_kl"] < 0.8 * uncapped["mean_kl"]  # the cap matters
    sections = {"loss": {"teacher_softcap": cap}}
    found = quantize(tmp_path, models["llama"], ragged_shard, "--limit", 100, **sections)["before"]
    assert found["mean_kl"] == pytest.approx(expected["mean_kl"], rel=0.02)
    assert found["cross_entropy"] == pytest.approx(expected["cross_entropy"], rel=1e-5)


def test_the_effect_of_each_product_is_its_own(tmp_path, models, ragged_shard):
    student, teacher = models["llama"]
    limit = quantize(tmp_path, (student, teacher), ragged_shard, "--limit", 100)["before"]["mean_kl"] * 0.9999
    # One batch holds all the data, so that single products are measured on the same tokens.
    rows = len(reference_training.concat_rows(ragged_shard, 32)[0])
    sections = {"train": {"steps": 4, "micro_batch_size": rows, "global_batch_size": rows}}
    report = quantize(tmp_path, (student, teacher), ragged_shard, "--limit", limit, **sections)
    assert len(report["products"]) == 3 * 4
    assert sum(product["operations"] for product in report["products"]) == pytest.approx(1)
    for entry in report["products"]:
        block, name = entry["product"].split(".")
        expected = reference_error(teacher, reference_teacher(teacher, (name,), (int(block),)), ragged_shard)
        assert entry["mean_kl"] == pytest.approx(expected["mean_kl"], rel=0.05), entry["product"]


def test_exceptions_bring_the_error_under_the_limit_and_the_gate_then_opens(tmp_path, models, ragged_shard):
    pair = models["llama"]
    all_products = quantize(tmp_path, pair, ragged_shard, "--limit", 100)
    assert all_products["found"] and all_products["float8_exceptions"] == []
    limit = all_products["before"]["mean_kl"] / 3
    report = quantize(tmp_path, pair, ragged_shard, "--limit", limit)
    assert report["found"] and report["after"]["mean_kl"] <= limit < report["before"]["mean_kl"]
    given_back = [product for product in report["products"] if not product["float8"]]
    assert 1 <= len(given_back) < 12
    # The most KL for their operations are given back.
    value = [product["mean_kl"] / product["operations"] for product in report["products"]]
    assert value == sorted(value, reverse=True)
    assert all(not product["float8"] for product in report["products"][: len(given_back)])

    def run(name, exceptions):
        config = float8_config(
            tmp_path / name,
            pair,
            ragged_shard,
            teacher={"float8_exceptions": exceptions},
            float8={"max_mean_kl": limit, "gate_tokens": 10**6},
            data={"eval": [{"path": ragged_shard}]},
        )
        return tiny.write_config(tmp_path / name, config), tmp_path / name / "run"

    config, folder = run("refused", [])
    refused = tiny.distill("--config", config, code=tiny.BAD_INPUT)
    for text in ("float8.max_mean_kl", f"mean KL {report['before']['mean_kl']:.4g}", "distill quantize"):
        assert text in refused.stderr
    assert not (folder / "metrics.jsonl").exists()

    config, folder = run("open", report["float8_exceptions"])
    tiny.distill("--config", config)
    log = (folder / "log.txt").read_text()
    assert f"mean KL {report['after']['mean_kl']:.4g}" in log
    assert f"{12 - len(given_back)} of its 12 block products in float8" in log


def test_a_limit_below_rounding_gives_every_product_back(tmp_path, models, ragged_shard):
    config = float8_config(tmp_path, models["llama"], ragged_shard, data={"eval": [{"path": ragged_shard}]})
    path = tiny.write_config(tmp_path, config)
    done = tiny.distill("quantize", "--config", path, "--limit", 1e-12, "--json")
    report = json.loads(done.stdout)
    assert report["found"] and report["after"]["mean_kl"] <= 1e-12
    assert all(not product["float8"] for product in report["products"])
    assert report["float8_exceptions"] == ["0-2"]


def test_text_to_train_on_is_measured_where_none_is_held_out_as_before_a_run(tmp_path, models, ragged_shard):
    pair = models["llama"]
    config = float8_config(tmp_path, pair, ragged_shard, float8={"max_mean_kl": 1e-6, "gate_tokens": 10**6})
    assert "eval" not in config["data"]
    path = tiny.write_config(tmp_path, config)
    refused = tiny.distill("--config", path, code=tiny.BAD_INPUT).stderr
    assert "`distill quantize` with this configuration" in refused
    report = json.loads(tiny.distill("quantize", "--config", path, "--limit", 100, "--json").stdout)
    before = report["before"]
    assert f"mean KL {before['mean_kl']:.4g} nats" in refused and f"{before['tokens']} tokens" in refused
    # Without any text both keys are named.
    del config["data"]["train"]
    done = tiny.distill("quantize", "--config", tiny.write_config(tmp_path, config), code=tiny.BAD_INPUT)
    assert "data.eval" in done.stderr and "data.train" in done.stderr


def test_the_limit_of_the_percentile_is_named_where_it_decides(tmp_path, models, ragged_shard):
    pair = models["llama"]
    before = quantize(tmp_path, pair, ragged_shard, "--limit", 100)["before"]
    float8 = {"max_p99_kl": before["p99_kl"] / 2}
    report = quantize(tmp_path, pair, ragged_shard, "--limit", 100, float8=float8)
    assert report["max_p99_kl"] == pytest.approx(before["p99_kl"] / 2)
    assert report["found"] and report["float8_exceptions"] and report["after"]["p99_kl"] <= report["max_p99_kl"]
    path = tmp_path / "config.yaml"
    text = tiny.distill("quantize", "--config", path, "--tokens", 10**6, "--limit", 100).stdout
    assert f"a 99th percentile of at most {before['p99_kl'] / 2:g} (float8.max_p99_kl)" in text
    assert "a mean KL of at most 100 nats (float8.max_mean_kl)" in text


def test_single_products_are_measured_on_tokens_with_a_target(tmp_path, models):
    random = np.random.default_rng(1)
    documents = [(random.integers(0, tiny.VOCAB, 32), np.full(32, index >= 4)) for index in range(8)]
    shard = tiny.make_shard(tmp_path / "late.dtok", documents)
    data = {"packing": "pack"}
    limit = quantize(tmp_path, models["llama"], shard, "--limit", 100, data=data)["before"]["mean_kl"] / 2
    report = quantize(tmp_path, models["llama"], shard, "--limit", limit, data=data)
    assert report["found"] and report["after"]["mean_kl"] <= limit
    assert all(product["mean_kl"] > 0 for product in report["products"])


def test_more_tokens_than_fit_in_memory_are_refused_with_their_number(tmp_path, models, ragged_shard):
    config = float8_config(tmp_path, models["llama"], ragged_shard, data={"eval": [{"path": ragged_shard}]})
    config["memory"] = {"limit_gib": 2**-12}  # 256 KiB
    path = tiny.write_config(tmp_path, config)
    done = tiny.distill("quantize", "--config", path, "--tokens", 10**6, "--limit", 100, code=tiny.BAD_INPUT)
    found = re.search(r"float8.gate_tokens: expected at most (\d+) tokens", done.stderr)
    assert found, done.stderr
    fits = int(found.group(1))
    assert 0 < fits < 2**18 // (2 * 64 * 4)
    tiny.distill("quantize", "--config", path, "--tokens", fits, "--limit", 100)
