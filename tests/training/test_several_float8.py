"""The float8 error of each of several teachers, and the commands that measure one of them."""

import json
import re

import numpy as np
import pytest

import tiny
from run_results import weights_of
from test_several_teachers import named_shard

FLOAT8 = {"dtype": "float8"}
NAMES = ["math", "code", "math", "math", "code"]


def documents_of(seed, count=20):
    random = np.random.default_rng(seed)
    return [(random.integers(0, tiny.VOCAB, n), np.ones(n, bool)) for n in random.integers(8, 60, count)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Documents that name both teachers, and documents of math alone."""
    folder = tmp_path_factory.mktemp("named")
    return {
        "both": named_shard(folder / "both.dtok", documents_of(1), NAMES * 4),
        "math": named_shard(folder / "math.dtok", documents_of(2), ["math"] * 20),
    }


@pytest.fixture
def config(tmp_path, models, shards):
    def build(name, own, **sections):
        data = {"packing": "pack", "train": [{"path": shards["both"]}]} | sections.pop("data", {})
        train = {"steps": 4, "global_batch_size": 4, "deterministic": tiny.DEVICE == "cuda"}
        sections["scheduler"] = {"warmup_steps": 1}
        out = tiny.base_config(tmp_path / name, models["llama"][0], "", "", data=data, train=train, **sections)
        del out["teacher"]
        out["teachers"] = [{"name": name, **keys} for name, keys in own.items()]
        return out

    return build


def mean_kls(log):
    """{teacher: mean KL} of the float8 teachers in a log."""
    return {
        name: float(kl) for name, kl in re.findall(r"float8 teacher (\w+) against .*? mean KL ([\d.e-]+) nats", log)
    }


def test_each_float8_teacher_has_its_own_gate(tmp_path, config, models, shards):
    """Its rows, its limits; all that fail are named, with the command that helps, before the first step."""
    held_out = {"eval": [{"path": shards["both"]}]}
    teachers = {"math": models["llama"][1], "code": models["qwen3"][1]}

    def own(**limits):
        return {
            name: {"path": path, **FLOAT8, "float8": {"max_mean_kl": limits.get(name, 100.0), "gate_tokens": 10**6}}
            for name, path in teachers.items()
        }

    run = tiny.train(tmp_path / "open", config("open", own(), data=held_out))
    found = mean_kls((run / "log.txt").read_text())
    assert set(found) == {"math", "code"}
    for name in found:
        path = tiny.write_config(tmp_path / name, config(name, own(), data=held_out))
        report = json.loads(tiny.distill("quantize", "--config", path, "--teacher", name, "--json").stdout)
        assert report["before"]["mean_kl"] == pytest.approx(found[name], rel=2e-3)
        assert report["max_mean_kl"] == 100.0
    limits = {name: kl / 2 for name, kl in found.items()}
    for failing in (["math"], ["code"], ["math", "code"]):
        wrong = config("-".join(failing), own(**{name: limits[name] for name in failing}), data=held_out)
        path = tiny.write_config(tmp_path / "-".join(failing), wrong)
        said = tiny.distill("--config", path, code=tiny.BAD_INPUT).stderr
        for name in ("math", "code"):
            named = f"teachers: {name}: teacher.dtype: float8: expected a mean KL of at most {limits[name]:g}"
            assert (named in said) == (name in failing), said
            assert (f"`distill quantize --teacher {name}` with this configuration" in said) == (name in failing)
        assert not (tmp_path / "-".join(failing) / "run" / "metrics.jsonl").exists()


def test_quantize_names_the_teachers_and_finds_exceptions_for_one(tmp_path, config, models, shards):
    teachers = {"math": {"path": models["llama"][1], "dtype": "auto"}, "code": {"path": models["qwen3"][1], **FLOAT8}}
    wanted = config("run", teachers, data={"eval": [{"path": shards["both"]}]}, float8={"max_mean_kl": 9})
    path = tiny.write_config(tmp_path / "run", wanted)
    command = ["quantize", "--config", path, "--json", "--tokens", 10**6]
    said = tiny.distill(*command, code=tiny.BAD_INPUT).stderr
    assert "--teacher: expected the name of one of the teachers of the configuration, math or code, found none" in said
    # In float8, whatever the entry says: what is asked is how it would be.
    before = json.loads(tiny.distill(*command, "--teacher", "math").stdout)["before"]["mean_kl"]
    assert before > 0
    report = json.loads(tiny.distill(*command, "--teacher", "math", "--limit", before / 3).stdout)
    assert report["found"] and report["float8_exceptions"]
    teachers["math"] |= FLOAT8 | {
        "float8_exceptions": report["float8_exceptions"],
        "float8": {"max_mean_kl": before / 3},
    }
    run = tiny.train(tmp_path / "with", config("with", teachers, data=wanted["data"], float8={"max_mean_kl": 9}))
    assert mean_kls((run / "log.txt").read_text())["math"] <= before / 3


def test_a_teacher_without_held_out_documents_is_measured_on_its_training_documents(tmp_path, config, models, shards):
    """By a run, by quantize and by a capture, whose cache then has no held-out rows."""
    own = {"math": {"path": models["llama"][1]}, "code": {"path": models["qwen3"][1], **FLOAT8}}
    own["code"] |= {"float8": {"max_mean_kl": 100.0, "gate_tokens": 10**6}, "cache": str(tmp_path / "cache")}
    wanted = config("run", own, data={"eval": [{"path": shards["math"]}]}, eval={"every": 2})
    run = tiny.train(tmp_path / "run", wanted)
    expected = mean_kls((run / "log.txt").read_text())["code"]
    path = tiny.write_config(tmp_path / "run", wanted)
    report = json.loads(tiny.distill("quantize", "--config", path, "--teacher", "code", "--json").stdout)
    assert report["before"]["mean_kl"] == pytest.approx(expected, rel=2e-3)
    tiny.distill("capture", "--config", path, "--teacher", "code")
    cached = {"path": models["qwen3"][1], "source": "cache", "cache": str(tmp_path / "cache")}
    again = config("again", own | {"code": cached}, data=wanted["data"], eval={"every": 2})
    assert weights_of(tiny.train(tmp_path / "again", again)) == weights_of(run)
