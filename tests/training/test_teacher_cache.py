"""A teacher that was captured once trains, evaluates and is verified as the one that runs."""

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import memory_plans
import teacher_texts
import tiny
from cache_kinds import as_float8, content, killed_captures, part_times
from run_results import steps_of, weights_of

# Of the captures that tests share. A GPU's products depend on the number of rows, so that only equal micro-batches give
# equal bits there.
MICRO = 3 if tiny.DEVICE == "cpu" else 2


@pytest.fixture
def config(tmp_path, models, ragged_shard):
    """A configuration with packed documents; `dtype` is of both models, `ranks` of training."""

    def build(name, dtype="float32", ranks=1, micro=2, shard=ragged_shard, **sections):
        data = {"packing": "pack", "shuffle": True, "seed": 5, "eval": [{"path": shard}]} | sections.pop("data", {})
        train = {"steps": 8, "micro_batch_size": micro, "global_batch_size": 12, "dtype": dtype}
        train |= {"deterministic": tiny.DEVICE == "cuda"} | sections.pop("train", {})
        sections.setdefault("eval", {"every": 4})
        parallel = {"processes": ranks} | sections.pop("parallel", {})
        return tiny.base_config(
            tmp_path / name, *models["qwen3"], shard, data=data, train=train, parallel=parallel, **sections
        )

    return build


def capture(folder, config, cache, *flags, code=tiny.SUCCESS, **settings):
    sets = [part for key, value in settings.items() for part in ("--set", f"{key.replace('_', '.', 1)}={value}")]
    path = tiny.write_config(Path(folder) / "capture", config)
    return tiny.distill("capture", "--config", path, "--set", f"teacher.cache={cache}", *sets, *flags, code=code)


def from_cache(config, cache, **teacher):
    """The configuration of a run that has the cache and no teacher's folder."""
    return config | {"teacher": {"source": "cache", "cache": str(cache)} | teacher}


@pytest.fixture(scope="module")
def caches(tmp_path_factory, models, ragged_shard):
    """The cache of a dtype, which is captured when it is asked for first."""
    found = {}

    def cache(dtype, **settings):
        key = (dtype, *settings.items())
        if key not in found:
            folder = tmp_path_factory.mktemp("caches")
            data = {"packing": "pack", "eval": [{"path": ragged_shard}]}
            train = {"dtype": dtype, "micro_batch_size": MICRO, "deterministic": tiny.DEVICE == "cuda"}
            base = tiny.base_config(folder, *models["qwen3"], ragged_shard, data=data, train=train)
            capture(folder, base, folder / "cache", cache_part_tokens=200, **settings)
            found[key] = folder / "cache"
        return found[key]

    return cache


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("ranks, micro", [(1, 2), (1, 6), (tiny.RANKS, 2), (tiny.RANKS, 1)])
def test_a_run_from_the_cache_is_the_online_run_bit_for_bit(tmp_path, config, caches, dtype, ranks, micro):
    online = tiny.train(tmp_path, config("online", dtype, ranks, micro))
    equal = {} if tiny.DEVICE == "cpu" else {"train_micro_batch_size": micro}
    cached = tiny.train(tmp_path, from_cache(config("cached", dtype, ranks, micro), caches(dtype, **equal)))
    assert steps_of(cached) == steps_of(online)
    assert weights_of(cached) == weights_of(online)


def test_other_data_orders_and_lengths_of_uncut_documents_use_the_same_cache(tmp_path, models, config, caches):
    shard = tiny.make_shard(tmp_path / "short.dtok", tiny.random_documents(9, [3, 17, 30, 9, 25, 31, 6] * 6))
    base = config("base", shard=shard)
    capture(tmp_path, base, tmp_path / "cache")
    for name, data in {"longer": {"seq_len": 48}, "order": {"seed": 9}, "straight": {"shuffle": False}}.items():
        online = config(f"{name}-online", shard=shard, data=data)
        cached = from_cache(config(f"{name}-cached", shard=shard, data=data), tmp_path / "cache")
        runs = [tiny.train(tmp_path, each) for each in (online, cached)]
        assert steps_of(runs[0]) == steps_of(runs[1])
        assert weights_of(runs[0]) == weights_of(runs[1])


def test_mixed_data_sets_find_their_rows(tmp_path, config, ragged_shard):
    other = tiny.make_shard(tmp_path / "other.dtok", tiny.random_documents(4, [40, 7, 33, 80, 12] * 5))
    data = {"train": [{"path": ragged_shard, "weight": 3}, {"path": other}], "eval": [{"path": other}]}
    capture(tmp_path, config("base", data=data), tmp_path / "cache")
    data["train"][0]["weight"] = 0.7  # free
    online = tiny.train(tmp_path, config("online", data=data))
    cached = tiny.train(tmp_path, from_cache(config("cached", data=data), tmp_path / "cache"))
    assert weights_of(cached) == weights_of(online)


def test_a_teacher_with_a_text_of_its_own_is_cached_too(tmp_path, config):
    tiny.need_devices(tiny.RANKS)
    shard = str(tmp_path / "texts.dtok")
    teacher_texts.write_shard(shard, teacher_texts.ragged_documents(3, 60))
    data = {"teacher_seq_len": 40}
    capture(tmp_path, config("base", shard=shard, data=data), tmp_path / "cache")
    online = tiny.train(tmp_path, config("online", shard=shard, data=data))
    cached = tiny.train(
        tmp_path, from_cache(config("cached", shard=shard, data=data, ranks=tiny.RANKS), tmp_path / "cache")
    )
    several = tiny.train(tmp_path, config("several", shard=shard, data=data, ranks=tiny.RANKS))
    assert weights_of(cached) == weights_of(several)
    one = tiny.train(tmp_path, from_cache(config("one", shard=shard, data=data), tmp_path / "cache"))
    assert weights_of(one) == weights_of(online)


def test_evaluation_and_plan_need_no_teacher_either(tmp_path, config, caches):
    online, cached = config("online"), from_cache(config("cached"), caches("float32"))
    assert tiny.evaluate(tmp_path, cached) == tiny.evaluate(tmp_path, online)
    path = tiny.write_config(tmp_path, cached)
    plan = tiny.plan(tmp_path, cached)
    assert plan["cached_bytes_per_token"] == 64 * 4
    # Three micro-batches... of a step, the next step's with one more, and one that is being read.
    micro_batches = plan["micro_batches"]
    assert plan["bytes"]["host_teacher"] == (2 * micro_batches + 2) * 2 * 32 * 256
    shown = tiny.distill("--config", path, "--dry-run").stdout
    assert "teacher: from the cache" in shown and "teacher's rows, read ahead" in shown
    assert plan["bytes"]["static"] < tiny.plan(tmp_path, online)["bytes"]["static"]


def test_the_plan_says_what_a_run_with_a_cache_takes(tmp_path, models):
    random_tokens = np.random.default_rng(5)
    documents = [(random_tokens.integers(0, tiny.VOCAB, 256), np.ones(256, dtype=bool)) for _ in range(48)]
    shard = tiny.make_shard(tmp_path / "long.dtok", documents)
    data = {"seq_len": 256, "packing": "pack"}
    config = memory_plans.config_of(tmp_path, models["qwen3"], shard, data=data)
    capture(tmp_path, config, tmp_path / "cache")
    config["teacher"] |= {"source": "cache", "cache": str(tmp_path / "cache")}
    rows = 2 * 256 * 64 * 4  # bytes of a micro-batch: on the CPU those that are read ahead are measured, too
    report = memory_plans.profile(tmp_path, config)
    memory_plans.check_against_measured(report, unplanned=memory_plans.UNPLANNED + 8 * rows)


def test_steps_say_how_fast_the_cache_is_read(tmp_path, config, caches):
    run = tiny.train(tmp_path, from_cache(config("cached"), caches("float32")))
    steps, _ = tiny.read_metrics(run)
    # A step that begins right after another has nothing to say: its rows were read together with those of that one.
    read = {step["step"]: step["teacher_read"] for step in steps if "teacher_read" in step}
    assert 1 in read
    assert all(each["bytes"] > 0 and each["bytes_per_second"] > 0 for each in read.values())
    rows = sum(step["valid_tokens"] for step in steps)
    assert sum(each["bytes"] for each in read.values()) >= rows * 64 * 4


def test_a_replay_of_a_cached_step_equals_the_record(tmp_path, config, caches):
    cached = from_cache(config("cached", checkpoint={"every": 4}), caches("float32"))
    run = tiny.train(tmp_path, cached)
    for step in (1, 5):
        done = tiny.distill("replay", "--config", run / "config.yaml", "--step", step)
        assert f"step {step}: the replay equals the record, bit for bit" in done.stdout, done.stdout


def test_a_cached_run_resumes_bit_for_bit(tmp_path, config, caches):
    def run(name, steps):
        result = from_cache(config(name, checkpoint={"every": 4}, train={"steps": steps}), caches("float32"))
        return result | {"scheduler": {"type": "constant", "warmup_steps": 3}}

    expected = tiny.train(tmp_path, run("whole", 8))
    tiny.train(tmp_path, run("half", 4))
    assert weights_of(tiny.train(tmp_path, run("half", 8), "--resume")) == weights_of(expected)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_write_what_one_process_writes(tmp_path, config, caches, ranks):
    tiny.need_devices(ranks)
    base = config("base", micro=MICRO)
    capture(tmp_path, base, tmp_path / "cache", cache_part_tokens=200, parallel_processes=ranks)
    assert content(tmp_path / "cache") == content(caches("float32"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_capture_that_is_killed_goes_on_to_the_same_bytes(tmp_path, config, ranks):
    shard = tiny.make_shard(tmp_path / "long.dtok", tiny.random_documents(8, [61, 128, 33, 90, 250] * 60))
    base = config("base", shard=shard, ranks=ranks)
    capture(tmp_path, base, tmp_path / "whole", cache_part_tokens=128)
    expected = content(tmp_path / "whole")
    path, cache = tiny.write_config(tmp_path, base), tmp_path / "cache"
    settings = ("cache.part_tokens=128",)
    times, kills = killed_captures(path, cache, 8, ranks, *settings)
    assert kills >= 3
    for earlier, later in zip(times, times[1:]):  # what is complete is never written again
        assert earlier.items() <= later.items()
    command = ["capture", "--config", path, "--set", f"teacher.cache={cache}", *settings]
    tiny.distill(*command)
    assert content(cache) == expected
    finished = part_times(cache)
    assert times[-1].items() <= finished.items()
    tiny.distill(*command)  # nothing is left to do
    assert part_times(cache) == finished


def test_a_signal_stops_a_capture_with_what_is_complete(tmp_path, config):
    shard = tiny.make_shard(tmp_path / "long.dtok", tiny.random_documents(8, [61, 128, 33, 90, 250] * 60))
    cache = tmp_path / "cache"
    path = tiny.write_config(tmp_path, config("base", shard=shard))
    command = [tiny.binary(), "capture", "--config", path, "--set", f"teacher.cache={cache}", "cache.part_tokens=128"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=tiny.environment())
    while not list(cache.glob("part-*.dtc")):
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == tiny.STOPPED_BY_SIGNAL, messages
    assert "what is complete stays, exit code 3" in messages
    assert not list(cache.glob("*.partial"))
    done = tiny.distill(*command[1:])
    assert re.search(r"cache: \d+ of \d+ parts are there and stay as they are", done.stderr)
    tiny.distill("verify", cache)


def test_the_size_is_said_before_and_is_that_of_the_folder(tmp_path, config):
    # With the configuration of the run that will read it.
    done = capture(tmp_path, config("base"), tmp_path / "cache", teacher_source="cache")
    rows, width = map(int, re.search(r"(\d+) tokens with a target of (\d+) bytes each", done.stderr).groups())
    parts = list((tmp_path / "cache").glob("part-*.dtc"))
    verified = tiny.distill("verify", tmp_path / "cache").stdout
    assert f"{len(parts)} parts, {rows} rows," in verified
    assert width == 64 * 4


def test_a_cache_is_refused_by_the_name_of_what_differs(tmp_path, models, config, caches, ragged_shard):
    def refused(config):
        path = tiny.write_config(tmp_path, config)
        return tiny.distill("--config", path, "--overwrite", code=tiny.BAD_INPUT).stderr

    cache = caches("float32")
    run = from_cache(config("run"), cache)
    other_length = from_cache(config("run", data={"seq_len": 64}), cache)
    message = refused(other_length)
    assert "is cut at other places than in the cache" in message
    assert "(data.seq_len 64)" in message and "(captured with data.seq_len 32)" in message
    assert "cache.other_contexts: allow" in message
    tiny.train(tmp_path, other_length | {"cache": {"other_contexts": "allow"}})

    message = refused(run | {"train": run["train"] | {"dtype": "bfloat16"}})
    assert "teacher.dtype: expected float32" in message and "found bfloat16" in message

    message = refused(from_cache(config("run2"), cache, path=models["llama"][1]))
    assert "teacher_hash, against teacher.path" in message
    shutil.rmtree(tmp_path / "run2", ignore_errors=True)
    tiny.train(tmp_path, from_cache(config("run3"), cache, path=models["qwen3"][1]))

    changed = tmp_path / "changed" / "ragged.dtok"
    changed.parent.mkdir()
    tiny.make_shard(changed, tiny.random_documents(4, [5, 61, 17, 128]))
    message = refused(from_cache(config("run4", shard=str(changed)), cache))
    assert f"{changed} is not in the cache {cache}, which is of " in message

    message = refused(from_cache(config("run5", data={"packing": "concat"}), cache))
    assert "data.packing" in message and "expected pack" in message

    message = refused(from_cache(config("run6"), tmp_path))
    assert "with manifest.json" in message

    copy = tmp_path / "copy"
    shutil.copytree(cache, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"version": 0}))
    message = refused(from_cache(config("run7"), copy))
    assert "version: expected 1 to 5, found 0" in message
    (copy / "manifest.json").write_text(json.dumps(manifest))
    victim = copy / "part-00000001.dtc"
    bytes_ = victim.read_bytes()
    victim.write_bytes(bytes_[:-1])
    message = refused(from_cache(config("run8"), copy))
    assert "part-00000001.dtc: truncated or damaged" in message
    victim.unlink()
    message = refused(from_cache(config("run9"), copy))
    assert "the cache is not complete" in message and "without part 1" in message


def test_a_flipped_bit_ends_the_run_by_name_and_is_found_by_verify(tmp_path, config, caches):
    copy = tmp_path / "copy"
    shutil.copytree(caches("float32"), copy)
    victim = copy / "part-00000000.dtc"
    damaged = bytearray(victim.read_bytes())
    damaged[200] ^= 1
    victim.write_bytes(damaged)
    for ranks in (1, tiny.RANKS):
        run = from_cache(config(f"run{ranks}", ranks=ranks, checkpoint={"every": 1}), copy)
        command = [tiny.binary(), "--config", tiny.write_config(tmp_path, run)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=tiny.environment())
        assert done.returncode in (tiny.BAD_INPUT, tiny.RUNTIME_FAILURE)  # of the rank that ended first
        assert re.search(r"part-00000000.dtc: bytes \d+ to \d+ \(document \d+", done.stderr)
    done = tiny.distill("verify", copy, code=tiny.BAD_INPUT)
    assert "part-00000000.dtc: bytes" in done.stderr and "are damaged" in done.stderr


def test_a_capture_of_something_else_does_not_touch_a_cache(tmp_path, config, caches):
    copy = tmp_path / "copy"
    shutil.copytree(caches("float32"), copy)
    before = content(copy)
    base = config("base", data={"seq_len": 48})
    done = capture(tmp_path, base, copy, code=tiny.BAD_INPUT)
    assert "seq_len: expected 48, found 32" in done.stderr
    assert content(copy) == before


def test_verify_computes_again(tmp_path, models, caches):
    teacher = models["qwen3"][1]
    for dtype in ("float32", "bfloat16"):
        done = tiny.distill("verify", "--cache", caches(dtype), "--teacher", teacher, "--samples", 9)
        assert "every checksum fits" in done.stdout
        assert "mean 0, largest 0 nats" in done.stdout and "(100%) are the same bit for bit" in done.stdout
    other = tiny.distill("verify", "--cache", caches("float32"), "--teacher", models["llama"][1], code=tiny.BAD_INPUT)
    assert "teacher_hash: expected" in other.stderr
    means = {}
    for dtype in ("bfloat16", "int8"):
        cache = caches("float32", cache_dtype=dtype)
        done = tiny.distill("verify", "--cache", cache, "--teacher", teacher, "--samples", 9)
        means[dtype] = float(re.search(r"mean ([\d.e+-]+),", done.stdout).group(1))
    assert 0 < means["bfloat16"] < means["int8"] < 0.05
    longer = tiny.distill("verify", "--cache", caches("float32"), "--teacher", teacher, "--samples", 9, "--seq-len", 64)
    assert float(re.search(r"mean ([\d.e+-]+),", longer.stdout).group(1)) > 1e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_smaller_rows_train_nearly_the_same(tmp_path, config, caches, dtype):
    online = tiny.train(tmp_path, config("online"))
    cached = tiny.train(tmp_path, from_cache(config("cached"), caches("float32", cache_dtype=dtype)))
    (steps, _), (expected, _) = tiny.read_metrics(cached), tiny.read_metrics(online)
    limit = {"bfloat16": 0.002, "int8": 0.01}[dtype]
    assert steps[0]["loss"] == pytest.approx(expected[0]["loss"], rel=limit)
    assert weights_of(cached) != weights_of(online)


def test_float8_rows_of_earlier_versions_are_read_and_no_longer_written(tmp_path, models, config, caches):
    cache = tmp_path / "cache"
    shutil.copytree(caches("float32"), cache)
    as_float8(cache)
    assert "hidden states of 64 in float8" in tiny.distill("inspect", cache).stdout
    verified = tiny.distill("verify", "--cache", cache, "--teacher", models["qwen3"][1], "--samples", 9).stdout
    if tiny.DEVICE == "cpu":  # as_float8 rounds on a CPU; a GPU may round a value to the neighbouring one
        assert "(100%) are the same bit for bit" in verified
    assert 1e-5 < float(re.search(r"mean ([\d.e+-]+),", verified).group(1)) < 0.05
    online = tiny.train(tmp_path, config("online"))
    cached = tiny.train(tmp_path, from_cache(config("cached"), cache))
    (steps, _), (expected, _) = tiny.read_metrics(cached), tiny.read_metrics(online)
    assert steps[0]["loss"] == pytest.approx(expected[0]["loss"], rel=0.05) and steps[0] != expected[0]
    assert weights_of(cached) != weights_of(online)
    message = capture(tmp_path, config("base"), tmp_path / "other", code=tiny.BAD_INPUT, cache_dtype="float8").stderr
    assert 'cache.dtype: expected one of auto, float32, bfloat16, int8, float16, found "float8"' in message
    assert "a cache in float8 is read as before" in message and not (tmp_path / "other").exists()
