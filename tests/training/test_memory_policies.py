"""Policies of memory change what is kept where, and nothing else."""

import os
import re
import shutil
from pathlib import Path

import pytest

import jobs
import tiny
from memory_plans import POLICIES, config_of, losses

PLACES = ["host", "host,device", "device,host", "cpu", "host,cpu"]  # of the optimizer's state
BF16 = {"moments": "bfloat16", "gradients": "bfloat16"}


@pytest.mark.parametrize("family", ["llama", "qwen3", "exaone4", "qwen3_5", "qwen3_5_moe", "qwen3_moe"])
def test_every_policy_trains_bit_for_bit_alike(tmp_path, models, ragged_shard, family):
    data = {"seq_len": 32, "packing": "pack"}
    expected = losses(tmp_path / "keep", models[family], ragged_shard, data=data, memory={"activation": "keep"})
    assert len(expected) == 3
    for policy in POLICIES[1:]:
        found = losses(tmp_path / policy, models[family], ragged_shard, data=data, memory={"activation": policy})
        assert found == expected, policy
    for places in PLACES:
        memory = {"activation": "offload", "optimizer": places}
        assert losses(tmp_path / places, models[family], ragged_shard, data=data, memory=memory) == expected, places


@pytest.mark.parametrize("processes", [1, 2])
def test_automatic_places_are_the_least_on_the_host_that_fits_and_change_no_bit(
    tmp_path, models, ragged_shard, processes
):
    tiny.need_devices(processes)
    sections = {"data": {"seq_len": 32}, "parallel": {"processes": processes, "gather": "nccl"}}

    def plan(**memory):
        config = config_of(tmp_path, models["qwen3"], ragged_shard, **sections, memory=memory)
        return tiny.plan(tmp_path, config, "--ranks", processes)

    def trained(name, **memory):
        return losses(tmp_path / name, models["qwen3"], ragged_shard, **sections, memory=memory)

    peaks = {places: plan(optimizer=places)["bytes"]["peak"] for places in ("device", "device,host", "host")}
    assert peaks["device"] > peaks["device,host"] > peaks["host"], peaks
    expected = trained("device")
    for places, peak in peaks.items():
        memory = {"optimizer": "auto", "budget_gib": (peak + 0.5) / 2**30}
        found = plan(**memory)
        assert found["fits"] and found["optimizer"] == places
        assert found["bytes"]["host_optimizer"] == plan(optimizer=places)["bytes"]["host_optimizer"]
        assert trained(f"auto-{places}", **memory) == expected


@pytest.mark.parametrize("processes, asynchronous, dtypes", [(1, True, {}), (1, False, BF16), (2, True, BF16)])
def test_state_in_host_memory_is_saved_and_resumed_bit_for_bit(
    tmp_path, models, ragged_shard, processes, asynchronous, dtypes
):
    tiny.need_devices(processes)
    weights, evaluations = [], []
    for optimizer, later in (("device", "device,cpu"), ("host", "cpu"), ("device,cpu", "host,device")):
        config = config_of(
            tmp_path / optimizer,
            models["llama"],
            ragged_shard,
            memory={"optimizer": optimizer},
            optimizer=dtypes,
            train={"steps": 4, "micro_batch_size": 2, "global_batch_size": 4 * processes},
            data={"seq_len": 32, "eval": [{"path": ragged_shard}]},
            eval={"every": 1, "batches": 2},
            parallel={"processes": processes},
            checkpoint={"every": 2, "keep": 5, "async": asynchronous},
        )
        run = tiny.train(tmp_path / optimizer, config)
        weights.append(tiny.load_weights(run / "model"))
        evaluations.append([found["eval"]["loss"] for found in tiny.read_metrics(run)[1]])
        shutil.rmtree(run / "checkpoints" / "step-4")
        config["memory"]["optimizer"] = later  # checkpoints do not depend on where the state is
        weights.append(tiny.load_weights(tiny.train(tmp_path / optimizer, config, "--resume") / "model"))
    assert evaluations[1] == evaluations[2] == evaluations[0]  # right after the update
    assert len(evaluations[0]) == 4
    assert [tiny.relative_difference(found, weights[0]) for found in weights] == [0] * 6


@pytest.mark.parametrize("parallel", [{"processes": 2}, {"processes": 3}, {"processes": 4, "replicate": 2}])
def test_every_policy_trains_bit_for_bit_alike_on_any_ranks(tmp_path, models, ragged_shard, parallel):
    tiny.need_devices(parallel["processes"])
    sections = {"data": {"seq_len": 32, "packing": "pack"}, "parallel": parallel}
    expected = losses(tmp_path / "keep", models["llama"], ragged_shard, **sections, memory={"activation": "keep"})
    assert len(expected) == 3
    for activation, optimizer in [
        ("recompute", "device"),
        ("offload", "device"),
        ("offload_input,offload", "host"),
        ("keep", "device,host"),
        ("keep,offload", "host,device"),
    ]:
        memory = {"activation": activation, "optimizer": optimizer}
        folder = tmp_path / f"{activation}-{optimizer}"
        found = losses(folder, models["llama"], ragged_shard, **sections, memory=memory)
        assert found == expected, memory


def shared_files():
    """Memory that could outlive a process: what this program's libraries are known to name so."""
    return {path for path in os.listdir("/dev/shm") if re.match("nccl|gloo|torch|cuda|distill", path)}


@pytest.mark.parametrize("processes", [1, 2])
def test_killing_a_run_leaves_no_memory_or_temporary_files_behind(tmp_path, models, long_shard, processes):
    tiny.need_devices(processes)
    config = config_of(
        tmp_path,
        models["llama"],
        long_shard,
        memory={"activation": "offload", "optimizer": "host"},
        parallel={"processes": processes},
        checkpoint={"every": 3},
    )
    config["train"]["steps"] = 100_000
    before = shared_files()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = tiny.start(tiny.write_config(tmp_path, config), env=tiny.environment() | {"TMPDIR": str(temporary)})
    try:
        jobs.until(lambda: jobs.steps_done(config["run"]["dir"]) >= 2, process)
        ranks = jobs.ranks_of(process)
        assert len(ranks) == (processes if processes > 1 else 0)
    finally:
        process.kill()
        process.wait()
    # Ranks end with their parent.
    jobs.until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks), seconds=10)
    assert shared_files() <= before
    assert list(temporary.iterdir()) == []
