"""Runs from a cache that has the most probable tokens of a teacher, or draws: their losses, gradients and metrics."""

import re

import numpy as np
import pytest
import torch

import read_cache
import tiny
from cache_kinds import COLUMNS, KINDS
from reference_training import load
from run_results import steps_of, weights_of
from token_shard import read_shard

TEACHER_MEANS = {"soft", "forward_kl", "reverse_kl", "teacher_entropy", "agreement", "teacher_lse", "teacher_ce"}


def reference(config, cache, kind):
    """Loss and gradient norm of the first batch in fp64, from the rows in the files."""
    rows = read_cache.read_rows(cache).stretches
    student = load(config["student"]["path"]).double()
    documents = read_shard(config["data"]["train"][0]["path"])
    temperature, total, count = config["loss"].get("temperature", 1.0), 0.0, 0
    for (_, index, begin, length), own_rows in rows.items():
        if own_rows:
            document = documents[index]
            tokens = torch.from_numpy(document.tokens[begin : begin + length].astype(np.int64))
            marks = np.append(document.in_loss[1:], False)[begin : begin + length]
            logits = student(tokens[None]).logits[0]
            log_q = (logits / temperature).log_softmax(-1)
            places = np.flatnonzero(marks)
            assert len(places) == len(own_rows)
            labels = torch.from_numpy(document.tokens[begin + places + 1].astype(np.int64))
            hard = torch.nn.functional.cross_entropy(logits[places], labels, reduction="sum")
            soft = 0.0
            for place, row in zip(places, own_rows, strict=True):
                ids, values = torch.tensor(row[0]), torch.from_numpy(row[1])
                own = log_q[place][ids]
                if kind in ("sampled", "weighted"):
                    soft = soft - (values * own).sum()
                    continue
                p, tail = values.exp(), max(row[2], 0.0) if len(ids) < COLUMNS else 0.0
                p, tail = p / (p.sum() + tail), tail / (p.sum() + tail)
                soft = soft + (p * (p.log() - own)).sum()
                if tail > 0:
                    outside = torch.ones(COLUMNS, dtype=bool)
                    outside[ids] = False
                    soft = soft + tail * (tail.log() - log_q[place][outside].logsumexp(0))
            total = total + config["loss"]["soft_weight"] * soft + config["loss"]["hard_weight"] * hard
            count += len(places)
    loss = total / count
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in student.parameters()]).norm()
    return loss.item(), norm.item(), count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_loss_and_gradient_are_those_of_the_rows_in_fp64(tmp_path, kind_run, cache_of, kind, temperature):
    cache = cache_of(kind, temperature)
    run = kind_run(
        "run",
        kind,
        cache,
        data={"shuffle": False},
        loss={"temperature": temperature},
        train={"steps": 1, "global_batch_size": 60, "micro_batch_size": 6},
        eval={"every": 0},
        optimizer={"max_grad_norm": 0.0},
    )
    run["scheduler"] = {"type": "constant"}
    step = tiny.read_metrics(tiny.train(tmp_path, run))[0][0]
    loss, norm, count = reference(run, cache, kind)
    assert step["valid_tokens"] == count
    assert step["loss"] == pytest.approx(loss, rel=2e-6)
    assert step["grad_norm"] == pytest.approx(norm, rel=2e-5)


def test_all_tokens_of_the_vocabulary_are_the_online_teacher(tmp_path, kind_run, cache_of):
    for loss in ({}, {"divergence": "jsd", "beta": 0.3}, {"divergence": "reverse_kl"}):
        name = loss.get("divergence", "forward_kl")
        online = tiny.read_metrics(tiny.train(tmp_path, kind_run(f"online-{name}", loss=loss)))[0]
        cached = kind_run(f"cached-{name}", "whole", cache_of("whole"), loss=loss)
        for found, expected in zip(tiny.read_metrics(tiny.train(tmp_path, cached))[0], online, strict=True):
            for key in ("loss", "soft", "forward_kl", "reverse_kl", "teacher_entropy", "agreement", "grad_norm"):
                assert found[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-6), key


def test_metrics_say_what_they_are_and_leave_out_what_is_not_known(tmp_path, kind_run, cache_of):
    online = tiny.read_metrics(tiny.train(tmp_path, kind_run("online")))
    topk = tiny.read_metrics(tiny.train(tmp_path, kind_run("topk", "topk", cache_of("topk"))))
    sampled = tiny.read_metrics(tiny.train(tmp_path, kind_run("sampled", "sampled", cache_of("sampled"))))
    bounds = ["loss", "teacher_ce", "soft", "forward_kl", "reverse_kl", "teacher_entropy"]
    for steps, evaluations in (topk,):
        for record in [*steps, *(line["eval"] for line in evaluations)]:
            assert record["lower_bounds"] == bounds and "estimates" not in record
            assert TEACHER_MEANS - set(record) == {"teacher_lse"}
    for record in [*sampled[0], *(line["eval"] for line in sampled[1])]:
        assert record["estimates"] == ["loss", "soft"] and "lower_bounds" not in record
        assert TEACHER_MEANS & set(record) == {"soft"}
    for record in [*online[0], *(line["eval"] for line in online[1])]:
        assert set(record) >= TEACHER_MEANS and "lower_bounds" not in record
    first, whole = topk[0][0], online[0][0]
    for key in bounds:
        assert first[key] <= whole[key] * (1 + 1e-3), key
    assert 0.2 * whole["forward_kl"] < first["forward_kl"]
    assert first["agreement"] == pytest.approx(whole["agreement"])
    assert sampled[0][0]["hard"] == whole["hard"]
    page = tmp_path / "report.html"
    tiny.distill("report", tmp_path / "topk" / "run", tmp_path / "sampled" / "run", "--output", page)
    text = page.read_text()
    assert '"forward_kl":"lower bound"' in text and '"soft":"estimate"' in text
    log = (tmp_path / "topk" / "run" / "log.txt").read_text()
    assert "kl> " in log and "8 most probable tokens of 211" in log


@pytest.mark.parametrize("kind", ["topk", "sampled"])
def test_the_loss_alone_has_the_metrics_of_all(tmp_path, kind_run, cache_of, kind):
    runs = [
        tiny.train(tmp_path, kind_run(metrics, kind, cache_of(kind), loss={"metrics": metrics}))
        for metrics in ("all", "loss")
    ]
    assert steps_of(runs[0]) == steps_of(runs[1])


def test_evaluation_and_plan_need_no_teacher(tmp_path, kind_run, cache_of):
    online = kind_run("online")
    for kind, quality in (("topk", "(lower bound)"), ("sampled", "(estimate)")):
        run = kind_run(f"run-{kind}", kind, cache_of(kind))
        path = tiny.write_config(tmp_path, run)
        text = tiny.distill("eval", "--config", path).stdout
        assert re.search(rf"soft +[\d.]+  {re.escape(quality)}", text), text
        plan = tiny.plan(tmp_path, run)
        width = 8 * 4 + 4 if kind == "topk" else 12 * 2
        assert plan["cached_bytes_per_token"] == width
        shown = tiny.distill("--config", path, "--dry-run").stdout
        assert f"{width} bytes a token" in shown
        without = online | {"teacher": {}, "loss": {"divergence": "none", "hard_weight": 1}}
        of_student = tiny.plan(tmp_path, without)
        assert plan["bytes"]["static"] == of_student["bytes"]["static"]  # nothing of the teacher is on the device


def test_a_cached_run_resumes_bit_for_bit(tmp_path, kind_run, cache_of):
    def run(name, steps):
        result = kind_run(name, "topk", cache_of("topk"), checkpoint={"every": 4}, train={"steps": steps})
        return result | {"scheduler": {"type": "constant", "warmup_steps": 3}}

    expected = tiny.train(tmp_path, run("whole", 8))
    tiny.train(tmp_path, run("half", 4))
    assert weights_of(tiny.train(tmp_path, run("half", 8), "--resume")) == weights_of(expected)
