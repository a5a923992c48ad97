"""Any number of ranks, however they share the models, train as one process does."""

import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import time

import numpy as np
import pytest

import jobs
import tiny
from model_files import change_model
from run_results import losses_of

STEPS = 20
BATCH = 48  # sequences a step: divisible by 1, 2, 3 and 4 ranks with 1 or 4 micro-batches each
SEQ_LEN = 32


def config_of(folder, pair, shard, **sections):
    # 12 sequences a step: divisible by 1, 2, 3 and 4 ranks.
    sections.setdefault("train", {"steps": 4, "micro_batch_size": 1, "global_batch_size": 12})
    return tiny.base_config(folder, *pair, shard, scheduler={"warmup_steps": 1}, **sections)


@pytest.fixture(scope="module")
def shard_with_gaps(tmp_path_factory):
    """Documents of many lengths with ragged masks. In the order of the file, the second half of the third step has no
    token in the loss, nor has all of the fifth: ranks and whole batches without a valid token."""
    documents = tiny.random_documents(7, [5, 61, 17, 128, 2, 33, 90, 47, 250] * 60)
    begin = 0
    for tokens, in_loss in documents:
        row = (begin + np.arange(len(tokens))) // SEQ_LEN
        in_loss[(row >= 2.5 * BATCH) & (row < 3 * BATCH) | (row >= 4 * BATCH) & (row <= 5 * BATCH)] = False
        begin += len(tokens)
    assert begin > STEPS * BATCH * SEQ_LEN
    return tiny.make_shard(tmp_path_factory.mktemp("gaps") / "gaps.dtok", documents)


def train_in_ranks(folder, pair, shard, packing, micro_batches, activation, parallel):
    ranks = parallel["processes"]
    config = config_of(
        folder,
        pair,
        shard,
        parallel=dict(parallel),
        data={"packing": packing},
        memory={"activation": activation},
        train={"steps": STEPS, "micro_batch_size": BATCH // ranks // micro_batches, "global_batch_size": BATCH},
    )
    run = tiny.train(folder, config)
    steps, _ = tiny.read_metrics(run)
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    return steps, tiny.load_weights(run / "model")


@pytest.fixture(scope="module")
def one_process(tmp_path_factory, models, shard_with_gaps):
    """Steps and weights of one process, by (family, packing); each is run when it is first asked for."""
    runs = {}

    def run(family, packing):
        if (family, packing) not in runs:
            folder = tmp_path_factory.mktemp(f"{family}-{packing}")
            runs[family, packing] = train_in_ranks(
                folder, models[family], shard_with_gaps, packing, 1, "keep", {"processes": 1}
            )
        return runs[family, packing]

    return run


# llama has untied embeddings, qwen3 tied ones; no unit's size divides by the ranks. Every value of every column is here
# once; the long tests have all combinations.
SHORT = [
    ("llama", "concat", {"processes": 1}, 4, "recompute"),
    ("llama", "concat", {"processes": 2}, 1, "keep"),
    ("qwen3", "pack", {"processes": 2, "accumulate": "keep_full"}, 4, "recompute"),
    ("llama", "pack", {"processes": 3}, 4, "keep"),
    ("qwen3", "concat", {"processes": 4, "prefetch": 2, "debug_checks": True}, 1, "recompute"),
    ("llama", "concat", {"processes": 4, "shard": 2, "replicate": 2}, 4, "keep"),
    ("llama", "pack", {"processes": 2, "shard_teacher": False, "debug_checks": True}, 4, "recompute"),
    ("qwen3", "concat", {"processes": 4, "shard": 2, "replicate": 2, "shard_teacher": False}, 1, "keep"),
    ("qwen3", "concat", {"processes": 4, "shard": 2, "replicate": 2, "accumulate": "keep_full"}, 4, "keep"),
    ("llama", "pack", {"processes": 2, "shard": 1, "replicate": 2}, 1, "recompute"),
    ("qwen3", "pack", {"processes": 3, "gather": "nccl", "slots": 5}, 4, "recompute"),
    ("llama", "concat", {"processes": 4, "shard": 2, "replicate": 2, "gather": "copy", "slots": "auto"}, 1, "keep"),
]
MESHES = [*({"processes": ranks} for ranks in (1, 2, 3, 4)), {"processes": 4, "shard": 2, "replicate": 2}]
CHECKED = {"debug_checks": True}
ALL = [
    pytest.param(family, packing, mesh | CHECKED | {"accumulate": how}, micro_batches, activation, marks=tiny.LONG)
    for family, packing, mesh, (micro_batches, how), activation in itertools.product(
        ("llama", "qwen3"),
        ("concat", "pack"),
        MESHES,
        [(1, "reduce_each"), (4, "reduce_each"), (4, "keep_full")],
        ("keep", "recompute"),
    )
]


@pytest.mark.parametrize("family, packing, parallel, micro_batches, activation", SHORT + ALL)
def test_ranks_train_as_one_process_does(
    tmp_path, models, shard_with_gaps, one_process, family, packing, parallel, micro_batches, activation
):
    steps, weights = train_in_ranks(
        tmp_path, models[family], shard_with_gaps, packing, micro_batches, activation, parallel
    )
    expected_steps, expected_weights = one_process(family, packing)
    if packing == "concat":
        assert [step["step"] for step in steps if step["valid_tokens"] == 0] == [5]
    # The same weights, so that only the sum of squares can differ.
    assert steps[0]["grad_norm"] == pytest.approx(expected_steps[0]["grad_norm"], rel=1e-6)
    for found, expected in zip(steps, expected_steps, strict=True):
        assert found["valid_tokens"] == expected["valid_tokens"]
        for name in ("loss", "hard", "soft", "forward_kl", "agreement", "grad_norm"):
            same = expected[name] if expected[name] is None else pytest.approx(expected[name], rel=5e-5, abs=1e-7)
            assert found[name] == same, f"step {found['step']}: {name}"
    if tiny.DEVICE == "cpu":
        assert tiny.relative_difference(weights, expected_weights) < 5e-6
    else:
        # AdamW divides by the gradient's magnitude: a weight with almost no gradient moved by half a learning rate.
        assert tiny.relative_difference(weights, expected_weights, without_largest=1) < 1e-5


@pytest.mark.parametrize("parallel", [{"processes": 2}, {"processes": 2, "shard": 1, "replicate": 2}])
def test_low_precision_copies_made_by_gathers_are_those_of_one_process(
    tmp_path, models, shard_with_gaps, monkeypatch, parallel
):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # newer instructions fail on some virtual machines
    runs = []
    for folder, mesh in (("one", {"processes": 1}), ("many", parallel)):
        config = config_of(tmp_path / folder, models["llama"], shard_with_gaps, parallel=dict(mesh))
        config["train"]["dtype"] = "bfloat16"
        runs.append(tiny.read_metrics(tiny.train(tmp_path / folder, config))[0])
    # The same bits go into the first step's forward pass; later ones differ by the rounding of bf16 activations.
    assert runs[1][0]["loss"] == pytest.approx(runs[0][0]["loss"], rel=1e-6)
    for found, expected in zip(runs[1], runs[0], strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-2)


@pytest.mark.parametrize(
    "dtype, sections",
    [
        ("float32", {"parallel": {"processes": 2, "slots": 3}}),
        ("bfloat16", {"parallel": {"processes": 3, "debug_checks": True}}),
        ("bfloat16", {"parallel": {"processes": 2, "prefetch": 2, "slots": "auto"}}),
        ("bfloat16", {"parallel": {"processes": 2, "accumulate": "keep_full"}, "memory": {"optimizer": "host"}}),
        ("bfloat16", {"parallel": {"processes": 4, "shard": 2, "replicate": 2}}),
        ("float32", {"parallel": {"processes": 2, "shard_teacher": False}, "memory": {"optimizer": "host"}}),
    ],
)
def test_copies_train_bit_for_bit_as_all_gathers_do(tmp_path, models, ragged_shard, monkeypatch, dtype, sections):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # newer instructions fail on some virtual machines
    shared = {
        "train": {"steps": 6, "micro_batch_size": 1, "global_batch_size": 12, "dtype": dtype, "deterministic": True},
        "data": {"eval": [{"path": ragged_shard}]},
        "eval": {"every": 2, "batches": 5},
    }
    runs, weights = {}, {}
    for gather in ("copy", "nccl"):
        folder = tmp_path / gather
        parallel = sections["parallel"] | {"gather": gather}
        config = config_of(folder, models["llama"], ragged_shard, **(shared | sections | {"parallel": parallel}))
        run = tiny.train(folder, config)
        steps, evaluations = tiny.read_metrics(run)
        runs[gather] = (
            losses_of(run),
            [evaluation["eval"]["loss"] for evaluation in evaluations],
            [(step["gathers"], step["gathered_bytes"]) for step in steps],
        )
        weights[gather] = tiny.load_weights(run / "model")
        log = (run / "log.txt").read_text()
        assert ("gathers: by copies from the other ranks' memory" in log) == (gather == "copy"), log
    assert len(runs["copy"][0]) == 6 and len(runs["copy"][1]) == 3
    assert runs["copy"] == runs["nccl"]
    assert tiny.relative_difference(weights["copy"], weights["nccl"]) == 0


def test_more_slots_need_fewer_gathers_and_change_no_bit(tmp_path, models, ragged_shard):
    runs = []
    for slots in (0, 3, 16):
        folder = tmp_path / str(slots)
        config = config_of(folder, models["llama"], ragged_shard, parallel={"processes": 2, "slots": slots})
        runs.append(tiny.train(folder, config))
    assert losses_of(runs[0]) == losses_of(runs[1]) == losses_of(runs[2])
    gathers = [tiny.read_metrics(run)[0][-2]["gathers"] for run in runs]  # the last step begins no further one
    assert gathers[0] > gathers[1] > gathers[2], gathers
    # All blocks stay where they are: the student's, once each, after each update. Embedding and head of both models,
    # in each of 6 micro-batches.
    blocks = json.loads((tiny.Path(models["llama"][0]) / "config.json").read_text())["num_hidden_layers"]
    assert gathers[2] == blocks + 6 * 4


def test_packed_documents_and_evaluation_on_three_ranks(tmp_path, models, ragged_shard):
    runs = []
    for processes in (1, 3):
        folder = tmp_path / str(processes)
        data = {"packing": "pack", "shuffle": True, "eval": [{"path": ragged_shard}]}
        sections = {"data": data, "parallel": {"processes": processes}, "eval": {"every": 2, "batches": 7}}
        config = config_of(folder, models["llama"], ragged_shard, **sections)
        steps, evaluations = tiny.read_metrics(tiny.train(folder, config))
        runs.append(steps + [one["eval"] for one in evaluations])
    for found, expected in zip(runs[1], runs[0], strict=True):
        assert found["valid_tokens"] == expected["valid_tokens"]
        assert found["loss"] == pytest.approx(expected["loss"], rel=2e-5)


def test_resuming_on_the_same_ranks_is_bit_for_bit(tmp_path, models, ragged_shard):
    sections = {"parallel": {"processes": 2}, "checkpoint": {"every": 2, "keep": 5}}
    config = config_of(tmp_path, models["qwen3"], ragged_shard, **sections)
    run = tiny.train(tmp_path, config)
    shutil.rmtree(run / "checkpoints" / "step-4")  # as a run that stopped after step 2
    expected, weights = losses_of(run), tiny.load_weights(run / "model")
    tiny.train(tmp_path, config, "--resume")
    assert len(expected) == 4 and losses_of(run) == expected
    assert tiny.relative_difference(tiny.load_weights(run / "model"), weights) == 0


@pytest.fixture
def long_job(tmp_path, models, ragged_shard):
    """long_job(config's run, **parallel): (a job that has done two steps, its run folder)"""

    def start(run=None, **parallel):
        train = {"steps": 100000, "micro_batch_size": 1, "global_batch_size": 6}
        sections = {"parallel": parallel, "train": train, "run": run or {}}
        config = config_of(tmp_path, models["llama"], ragged_shard, **sections)
        job, folder = tiny.start(tiny.write_config(tmp_path, config)), tiny.Path(config["run"]["dir"])
        jobs.until(lambda: jobs.steps_done(folder) >= 2, job)
        return job, folder

    return start


@pytest.mark.parametrize("gather", ["copy", "nccl"])
def test_a_killed_rank_ends_the_job_with_its_name(long_job, gather):
    shared_files = set(os.listdir("/dev/shm"))
    job, _ = long_job(processes=3, gather=gather)
    victim = jobs.ranks_of(job)[1]
    began = time.monotonic()
    subprocess.run(["kill", "-9", str(victim)], check=True)
    _, errors = job.communicate(timeout=30)
    assert time.monotonic() - began < 15
    assert job.returncode == 1
    assert "rank 1 failed first" in errors
    assert "signal 9" in errors.splitlines()[-1]
    assert not [name for name in set(os.listdir("/dev/shm")) - shared_files if "distill" in name]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_named_when_the_others_have_waited_long_enough(long_job, victim):
    job, _ = long_job(processes=3, timeout_s=5)
    subprocess.run(["kill", "-STOP", str(jobs.ranks_of(job)[victim])], check=True)
    began = time.monotonic()
    _, errors = job.communicate(timeout=60)
    assert time.monotonic() - began < 5 + 15
    assert job.returncode == 1
    last = errors[errors.index("; its last lines:") :]
    if victim == 0:  # which serves the store
        assert "rank 0, which serves the store, does not answer" in last
    else:
        assert "not running any more, stopped or cut off: rank 1 on " in last
        assert "rank 2 on" not in last[last.index("cut off") :]


@pytest.mark.alone  # a limit of 2 s, which a busy machine may take for a step
def test_log_lines_of_other_ranks_say_rank_host_and_device(long_job):
    job, _ = long_job({"step_timeout_s": 2}, processes=2)
    subprocess.run(["kill", "-STOP", str(jobs.ranks_of(job)[0])], check=True)  # the other one's watchdog says so
    _, errors = job.communicate(timeout=60)
    device = "cpu" if tiny.DEVICE == "cpu" else "cuda:1"
    logged = [line for line in errors.splitlines() if re.match(r"(\[.*\] )?\d{4}-\d\d-\d\d .* E ", line)]
    assert logged and all(f" [rank 1 on {socket.gethostname()}, {device}] " in line for line in logged), errors


def test_what_all_ranks_find_alike_is_said_once(tmp_path, models, ragged_shard):
    config = config_of(tmp_path, models["llama"], ragged_shard, parallel={"processes": 2})
    errors = tiny.distill("--config", tiny.write_config(tmp_path, config)).stderr
    assert errors.count("tokenizers cannot be compared") == 1, errors
    assert "rank 0" not in errors


def test_sigterm_stops_all_ranks_at_one_step_and_saves(long_job):
    job, run = long_job(processes=2)
    subprocess.run(["kill", "-TERM", str(jobs.ranks_of(job)[1])], check=True)  # one rank alone
    _, errors = job.communicate(timeout=30)
    assert job.returncode == tiny.STOPPED_BY_SIGNAL, errors
    last = tiny.read_metrics(run)[0][-1]["step"]
    assert (run / "checkpoints" / f"step-{last}" / "COMPLETE").exists()


def test_a_rank_that_does_not_arrive_is_named(tmp_path, models, ragged_shard):
    config = config_of(tmp_path, models["llama"], ragged_shard, parallel={"timeout_s": 3})
    path = tiny.write_config(tmp_path, config)
    launcher = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    launcher |= {"MASTER_PORT": tiny.free_port()}
    job = tiny.start(path, env=tiny.environment() | launcher)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == tiny.RUNTIME_FAILURE
    assert "had not arrived: 1" in errors


def test_ranks_with_other_configurations_are_refused(tmp_path, models, ragged_shard):
    paths = []
    for rank in (0, 1):
        config = config_of(tmp_path, models["llama"], ragged_shard, optimizer={"lr": 1e-3 * (1 + rank)})
        paths.append(tiny.write_config(tmp_path / str(rank), config))
    ranks = tiny.run_ranks(paths)
    assert all(code != 0 for code, _ in ranks)
    assert "rank 1 has another configuration" in ranks[1][1]


@pytest.mark.parametrize("other", ["student", "teacher", "data"])
def test_ranks_with_other_files_are_refused(tmp_path, models, ragged_shard, other):
    # One configuration; its relative paths lead to other files on rank 1, as on a node whose disk is out of date.
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        for name, model in zip(("student", "teacher"), models["llama"]):
            shutil.copytree(model, folder / name)
        shutil.copy(ragged_shard, folder / "data.dtok")
    if other == "data":
        tiny.make_shard(folders[1] / "data.dtok", tiny.random_documents(4, [200] * 10))
    else:
        change_model(folders[1] / other, lambda weights: weights["model.norm.weight"][3].add_(1e-3))
    config = tiny.base_config(tiny.Path("."), "student", "teacher", "data.dtok")
    ranks = tiny.run_ranks([tiny.write_config(folder, config) for folder in folders], folders)
    assert all(code != 0 for code, _ in ranks), ranks
    error = ranks[1][1]
    assert f"rank 1 has another {'data.train' if other == 'data' else other + '.path'}" in error
    assert re.search("hash [0-9a-f]{16}, rank 0 has [0-9a-f]{16}", error)


@pytest.mark.parametrize(
    "sections, named",
    [
        ({"parallel": {"processes": 5}}, "train.global_batch_size"),
        ({"parallel": {"processes": 2, "replicate": 3}}, "parallel.replicate"),
        ({"parallel": {"processes": 2, "shard": 3}}, "parallel.shard"),
    ],
)
def test_impossible_meshes_name_the_key(tmp_path, models, ragged_shard, sections, named):
    config = config_of(tmp_path, models["llama"], ragged_shard, **sections)
    codes = (tiny.RUNTIME_FAILURE, tiny.BAD_INPUT)
    assert named in tiny.distill("--config", tiny.write_config(tmp_path, config), code=codes).stderr
