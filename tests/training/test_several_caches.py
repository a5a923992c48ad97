"""Caches of a few tokens of one teacher, beside another teacher that runs."""

import json
from pathlib import Path

import numpy as np
import pytest

import tiny
from cache_kinds import KINDS

STILL = {"lr": 1e-20, "weight_decay": 0.0}  # steps that change no bit of the student
FORWARD_KL = {"divergence": "forward_kl", "hard_weight": 0.5}
MARKS = {"topk": "lower_bounds", "whole": "lower_bounds", "sampled": "estimates", "weighted": "estimates"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """One for each teacher; every row has tokens with a target."""
    folder = tmp_path_factory.mktemp("of-teachers")
    random = np.random.default_rng(7)
    lengths = [5, 61, 17, 40, 2, 33, 90, 47] * 2
    return {
        name: tiny.make_shard(
            folder / f"{name}.dtok", [(random.integers(0, tiny.VOCAB, n), np.ones(n, bool)) for n in lengths]
        )
        for name in ("math", "code")
    }


@pytest.fixture
def config(tmp_path, models, shards):
    def build(name, own, rows=1, ranks=1, steps=16, still=True):
        """A run with these teachers, of one row for each rank in a step."""
        data = {"train": [{"path": shards[one], "teacher": one} for one in own], "packing": "pack", "shuffle": True}
        data["eval"] = data["train"]
        train = {"steps": steps, "micro_batch_size": 1, "global_batch_size": rows}
        train["deterministic"] = tiny.DEVICE == "cuda"
        optimizer = STILL if still else {}
        out = tiny.base_config(
            tmp_path / name,
            models["llama"][0],
            "",
            "",
            data=data,
            train=train,
            optimizer=optimizer,
            eval={"every": steps},
            parallel={"processes": ranks},
        )
        del out["teacher"]
        out["teachers"] = [{"name": one, **keys} for one, keys in own.items()]
        return out

    return build


def captured(tmp_path, config, models, kind):
    """(the entry of a teacher that is read from its cache, that of the same one online)"""
    online = {"path": models["qwen3"][1], "loss": FORWARD_KL}
    cached = online | {"cache": {"path": str(tmp_path / "cache"), **KINDS[kind], "part_tokens": 200}}
    math = {"path": models["llama"][1]}
    path = tiny.write_config(tmp_path / "capture", config("capture", {"math": math, "code": cached}))
    tiny.distill("capture", "--config", path, "--teacher", "code")
    return cached | {"source": "cache"}, online


@pytest.mark.parametrize("kind", MARKS)
def test_rows_of_a_cache_beside_a_running_teacher_lose_what_they_do_alone(tmp_path, config, models, kind):
    """Bit for bit, and the numbers that are not exact are marked in that teacher's rows alone."""
    cached, online = captured(tmp_path, config, models, kind)
    math = {"path": models["llama"][1]}
    run = tiny.train(tmp_path / "both", config("both", {"math": math, "code": cached}))
    steps, evaluations = tiny.read_metrics(run)
    for name, keys in {"math": math, "code": cached}.items():
        own = [step for step in steps if name in step["teachers"]]
        assert len(own) == 8
        alone, its_evaluations = tiny.read_metrics(
            tiny.train(tmp_path / name, config(f"{name}-alone", {name: keys}, steps=8))
        )
        for found, expected in zip(own, alone, strict=True):
            assert found["teachers"][name] == expected["teachers"][name]
            assert found["grad_norm"] == expected["grad_norm"]
        assert evaluations[0]["eval"]["teachers"][name] == its_evaluations[0]["eval"]["teachers"][name]
    for step in steps:
        ((name, values),) = step["teachers"].items()
        marks = {mark for mark in ("lower_bounds", "estimates") if mark in values}
        assert marks == ({MARKS[kind]} if name == "code" else set()), step
    if kind == "whole":  # all tokens: the online teacher, to rounding
        expected, _ = tiny.read_metrics(
            tiny.train(tmp_path / "online", config("online", {"math": math, "code": online}))
        )
        for found, reference in zip(steps, expected, strict=True):
            for number in ("loss", "forward_kl", "grad_norm"):
                assert found[number] == pytest.approx(reference[number], rel=1e-4)


def test_ranks_read_the_cache_of_one_teacher_as_one_process_does(tmp_path, config, models):
    tiny.need_devices(2)
    cached, _ = captured(tmp_path, config, models, "sampled")
    own = {"math": {"path": models["llama"][1]}, "code": cached}
    runs = []
    for ranks in (1, 2):
        settings = config(f"ranks-{ranks}", own, rows=4, ranks=ranks, steps=5, still=False)
        settings["data"]["teacher_sequences"] = 2
        runs.append(tiny.train(tmp_path / f"ranks-{ranks}", settings))
    for one, two in zip(*(tiny.read_metrics(run)[0] for run in runs), strict=True):
        assert {name: value["valid_tokens"] for name, value in one["teachers"].items()} == {
            name: value["valid_tokens"] for name, value in two["teachers"].items()
        }
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert tiny.relative_difference(*(tiny.load_weights(run / "model") for run in reversed(runs))) < 2e-4


def test_what_a_cache_cannot_give_is_named_with_its_teacher(tmp_path, config, models):
    """A divergence that draws do not give; another temperature; and a cache of another teacher."""
    cached, _ = captured(tmp_path, config, models, "sampled")
    math = {"path": models["llama"][1]}
    cases = {
        "divergence": (cached | {"loss": {"divergence": "jsd", "beta": 0.5}}, "teachers[1] (code) loss.divergence"),
        "temperature": (cached | {"loss": FORWARD_KL | {"temperature": 2.0}}, "teachers: code: "),
        "kind": (cached | {"cache": {"path": str(tmp_path / "cache"), "kind": "topk", "topk": 8}}, "teachers: code: "),
        "teacher": (cached | {"path": models["llama"][1]}, "teachers: code: teacher.cache"),
    }
    for name, (wrong, says) in cases.items():
        tiny.expect_refused(tmp_path / name, config(name, {"math": math, "code": wrong}), [says])
    manifest = json.loads((Path(cached["cache"]["path"]) / "manifest.json").read_text())
    assert manifest["kind"] == "sampled"
