"""What a capture, and a run from a cache, are said to take before they begin: size, memory, reading."""

import re

import numpy as np
import pytest

import memory_plans
import tiny
from cache_kinds import FORWARD_KL, KINDS, capture


@pytest.mark.parametrize("kind", ["topk", "sampled"])
def test_the_plan_says_what_a_run_with_a_few_tokens_takes(tmp_path, models, kind):
    random_tokens = np.random.default_rng(5)
    documents = [(random_tokens.integers(0, tiny.VOCAB, 256), np.ones(256, dtype=bool)) for _ in range(48)]
    shard = tiny.make_shard(tmp_path / "long.dtok", documents)
    data = {"seq_len": 256, "packing": "pack"}
    config = memory_plans.config_of(tmp_path, models["qwen3"], shard, data=data)
    config["loss"] = dict(FORWARD_KL)
    config["cache"] = dict(KINDS[kind])
    capture(config, tmp_path / "cache")
    config["teacher"] |= {"source": "cache", "cache": str(tmp_path / "cache")}
    report = memory_plans.profile(tmp_path, config)
    rows = 2 * 256 * (36 if kind == "topk" else 24)  # of a micro-batch: those that are read ahead are measured, too
    memory_plans.check_against_measured(report, unplanned=memory_plans.UNPLANNED + 8 * rows)


def test_the_size_is_said_before_and_is_that_of_the_folder(tmp_path, kind_run):
    done = capture(kind_run("base", "weighted"), tmp_path / "cache")
    rows, width = map(int, re.search(r"(\d+) tokens with a target of (\d+) bytes each", done.stderr).groups())
    assert width == 12 * (2 + 4)
    assert "12 draws from 211 tokens with exponent 0.7 and seed 3, at temperature 1" in done.stderr
    verified = tiny.distill("verify", tmp_path / "cache").stdout
    assert f" parts, {rows} rows," in verified
    sizes = sum(path.stat().st_size for path in (tmp_path / "cache").glob("part-*.dtc"))
    said = float(re.search(r"\), ([\d.e+-]+) GB", done.stderr).group(1)) * 1e9
    assert said == pytest.approx(sizes, rel=0.02)


@pytest.fixture
def long_run(tmp_path, models):
    """A configuration whose sequences are all full, so that a capture takes exactly the memory of its plan."""
    tokens = np.random.default_rng(5)
    documents = [(tokens.integers(0, tiny.VOCAB, 256), np.ones(256, dtype=bool)) for _ in range(24)]
    shard = tiny.make_shard(tmp_path / "long.dtok", documents)

    def build(kind, ranks=1):
        config = tiny.base_config(tmp_path, *models["qwen3"], shard, data={"seq_len": 256, "packing": "pack"})
        config["parallel"] = {"processes": ranks}
        config["loss"] = FORWARD_KL | {"chunk_size": 64, "min_chunk_size": 1}
        config["cache"] = dict(KINDS[kind]) if kind else {}
        return config

    return build


@pytest.mark.skipif(tiny.DEVICE == "cuda", reason="the CPU's memory is what is measured")
@pytest.mark.parametrize("kind", [None, "topk", "sampled"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_capture_takes_what_its_plan_says(tmp_path, long_run, kind, ranks):
    done = capture(long_run(kind, ranks), tmp_path / "cache", memory_limit_gib=4)
    found, planned = map(int, re.search(r"memory: (\d+) bytes .* rank 0, (\d+) planned", done.stderr).groups())
    micro_batch = 2 * 256
    width = {None: 64 * 4, "topk": 36, "sampled": 24}[kind]
    # On the CPU the rows that are on their way to the disk are measured too, and batches that are read ahead.
    on_the_host = 6 * micro_batch * width + 8 * micro_batch * 8 * 4
    assert found - memory_plans.UNPLANNED - on_the_host <= planned <= found * 1.01
    assert planned > 3 * 64 * 64 * 4  # not nothing


def test_a_dry_run_of_a_capture_writes_nothing(tmp_path, long_run):
    config = long_run("topk")
    config["teacher"]["cache"] = str(tmp_path / "cache")
    path = tiny.write_config(tmp_path, config)
    shown = tiny.distill("capture", "--config", path, "--dry-run").stdout
    assert "6120 tokens with a target of 36 bytes each" in shown
    assert "memory plan: " in shown and "nothing was written" in shown
    assert not (tmp_path / "cache").exists()
    message = tiny.distill(
        "capture", "--config", path, "--dry-run", "--set", "memory.limit_gib=0.0001", code=tiny.DOES_NOT_FIT
    ).stderr
    assert "the memory plan does not fit: device memory: " in message and "train.micro_batch_size" in message
    tight = ["--set", "memory.limit_gib=0.0001"]
    message = tiny.distill("capture", "--config", path, *tight, code=tiny.DOES_NOT_FIT).stderr
    assert "the memory plan does not fit" in message
    assert not list((tmp_path / "cache").glob("part-*"))
    # An existing cache of something else is refused by the dry run, too.
    capture(config, tmp_path / "cache")
    tiny.distill("capture", "--config", path, "--dry-run")
    message = tiny.distill(
        "capture", "--config", path, "--dry-run", "--set", "cache.topk=9", code=tiny.BAD_INPUT
    ).stderr
    assert "entries: expected 9, found 8" in message


@pytest.mark.parametrize("kind", [None, "topk"])
def test_the_plan_says_what_the_capture_says(tmp_path, long_run, kind):
    config = long_run(kind)
    config["teacher"]["cache"] = str(tmp_path / "cache")
    config["memory"] = {"limit_gib": 4}  # else the plan is for a machine of a table, and a capture for this one
    path = tiny.write_config(tmp_path, config)
    said = tiny.distill("capture", "--config", path, "--dry-run").stdout.splitlines()
    said = [line for line in said if line.startswith(("cache: ", "memory plan: "))]
    assert len(said) == 3
    text = tiny.distill("plan", "--config", path).stdout
    assert "distill capture\n" + "".join(f"  {line}\n" for line in said) in text
    plan = tiny.plan(tmp_path, config)["capture"]
    assert f"{plan['parts']} parts, {plan['tokens']} tokens with a target of {plan['bytes_per_token']} bytes" in said[0]
    assert plan["fits"] and plan["device_available"] == 4 << 30 and 0 < plan["peak"] <= plan["device"]
    assert plan["bytes"] == pytest.approx(plan["tokens"] * plan["bytes_per_token"], rel=0.2)
    # Where the data are not here, their size is not known.
    config["data"]["train"] = [{"path": str(tmp_path / "absent.dtok")}]
    text = tiny.distill("plan", "--config", tiny.write_config(tmp_path, config)).stdout
    assert f"cache: {tmp_path}/cache, {plan['bytes_per_token']} bytes for each token with a target (" in text
    config["memory"]["limit_gib"] = 0.0001
    text = tiny.distill("plan", "--config", tiny.write_config(tmp_path, config), code=tiny.DOES_NOT_FIT).stdout
    assert "  the memory plan does not fit: device memory: " in text[text.index("distill capture\n") :]


def test_a_plan_without_a_capture_does_not_speak_of_one(tmp_path, long_run):
    path = tiny.write_config(tmp_path, long_run(None))
    assert "distill capture" not in tiny.distill("plan", "--config", path).stdout
    plan = tiny.plan(tmp_path, long_run(None))
    assert "capture" not in plan and plan["cached_bytes_per_step"] == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_plan_says_what_a_cached_run_reads_a_second(tmp_path, long_run, ranks):
    config = long_run("topk", ranks)
    capture(config, tmp_path / "cache", parallel_processes=1)
    config["teacher"] = {"source": "cache", "cache": str(tmp_path / "cache")}
    path = tiny.write_config(tmp_path, config)
    plan = tiny.plan(tmp_path, config)
    step = config["train"]["global_batch_size"] * 256 * 36
    assert plan["cached_bytes_per_step"] == step
    assert plan["cached_bytes_per_second"] == pytest.approx(step / plan["seconds"]["step"])
    said = f"{step / 1e6:.4g} MB a step, {plan['cached_bytes_per_second'] / 1e6:.4g} MB/s at this speed"
    assert said in tiny.distill("plan", "--config", path).stdout
    assert f"{step / 1e6:.4g} MB a step, " in tiny.distill("--config", path, "--dry-run").stdout


def test_a_capture_says_how_fast_it_was_after_its_first_rows(tmp_path, long_run):
    log = capture(long_run("topk"), tmp_path / "cache").stderr
    found = re.search(
        r"first rows came after ([\d.]+) s, the others at ([\d.e+]+) tok/s, and ([\d.]+) s after the last ones they "
        r"were on the disk; the device waited ([\d.]+) s for the disk, this rank ([\d.]+) s for data",
        log,
    )
    first, speed, last, waited, _ = map(float, found.groups())
    sequences, seconds = map(float, re.search(r"(\d+) sequences in ([\d.]+) s", log).groups())
    between = (sequences - 2) * 256 / speed  # all but those of the first micro-batch
    assert first + between + last == pytest.approx(seconds, abs=0.15)
    assert waited <= seconds
