"""memory.tile_tokens: a block's MLP in tiles changes memory and the order of sums, and nothing else."""

import shutil

import pytest

import cache_kinds
import tiny
from memory_plans import check_against_measured, config_of, losses, profile

TILE = 20  # of micro-batches of 64 tokens: three tiles of 20 and one of 4
# Sums over tokens are added in another order, which fp32 rounds in another way.
CLOSE = dict(rel=2e-5, abs=1e-7)


@pytest.mark.parametrize(
    "family, policy",
    [("llama", policy) for policy in ("keep", "recompute", "offload", "offload_input", "recompute,keep")]
    + [("qwen3", "keep"), ("exaone4", "keep"), ("exaone4", "recompute"), ("gemma3", "offload"), ("qwen3_moe", "keep")]
    + [("qwen3_moe", "recompute"), ("qwen3_5", "offload"), ("qwen3_5_moe", "keep")],
)
def test_planned_bytes_are_those_allocated(tmp_path, models, long_shard, family, policy):
    memory = {"activation": policy, "tile_tokens": 128}
    report = profile(tmp_path, config_of(tmp_path, models[family], long_shard, memory=memory))
    assert report["plan"]["tile_tokens"] == 128
    check_against_measured(report)


@pytest.mark.parametrize("sections", [{}, {"gather": "copy"}, {"processes": 3}])
def test_planned_bytes_are_those_allocated_on_any_ranks(tmp_path, models, long_shard, sections):
    sections = {"parallel": {"processes": 2} | sections, "memory": {"activation": "keep,offload", "tile_tokens": 200}}
    config = config_of(tmp_path, models["llama"], long_shard, **sections)
    check_against_measured(profile(tmp_path, config), workspace_too=False)


def test_tiles_lower_the_peak_of_a_wide_mlp(tmp_path, models, long_shard):
    def peak(tile):
        memory = {"activation": "recompute", "tile_tokens": tile}
        train = {"steps": 3, "micro_batch_size": 8, "global_batch_size": 8}
        config = config_of(tmp_path, models["llama"], long_shard, memory=memory, train=train)
        return tiny.plan(tmp_path, config, "--ranks", 1)["phases"]["backward"]["peak"]

    assert peak(512) < peak(0)


@pytest.mark.parametrize("family", ["llama", "exaone4", "gemma3", "qwen3_moe"])
def test_tiles_train_as_without_them_under_every_policy(tmp_path, models, ragged_shard, family):
    def trained(name, activation, tile, packing="pack"):
        memory = {"activation": activation, "tile_tokens": tile}
        data = {"seq_len": 32, "packing": packing}
        return losses(tmp_path / name, models[family], ragged_shard, data=data, memory=memory)

    whole = trained("whole", "keep", 0)
    tiled = trained("keep", "keep", TILE)
    assert len(tiled) == 3
    for found, expected in zip(tiled, whole, strict=True):
        assert found == pytest.approx(expected, **CLOSE)
    assert trained("one-tile", "keep", 64) == whole
    for policy in ("recompute", "offload", "recompute,offload_input"):
        assert trained(policy, policy, TILE) == tiled, policy


def test_ranks_train_as_one_process_does(tmp_path, models, ragged_shard):
    tiny.need_devices(2)

    def trained(processes, tile):
        config = config_of(
            tmp_path / f"{processes}-{tile}",
            models["qwen3_moe"],
            ragged_shard,
            train={"steps": 3, "micro_batch_size": 2, "global_batch_size": 8},
            data={"seq_len": 32},
            parallel={"processes": processes},
            memory={"tile_tokens": tile, "activation": "recompute"},
        )
        steps, _ = tiny.read_metrics(tiny.train(tmp_path / f"{processes}-{tile}", config))
        return [number for step in steps for number in (step["loss"], step["grad_norm"])]

    assert trained(2, TILE) == pytest.approx(trained(1, TILE), rel=1e-4)


def test_a_run_in_tiles_is_resumed_bit_for_bit_and_evaluated_in_tiles(tmp_path, models, ragged_shard):
    config = config_of(
        tmp_path,
        models["llama"],
        ragged_shard,
        memory={"tile_tokens": TILE},
        train={"steps": 4, "micro_batch_size": 2, "global_batch_size": 4},
        data={"seq_len": 32, "eval": [{"path": ragged_shard}]},
        eval={"every": 2, "batches": 2},
        checkpoint={"every": 2, "keep": 5},
    )
    run = tiny.train(tmp_path, config)
    weights = tiny.load_weights(run / "model")
    evaluated = tiny.read_metrics(run)[1][-1]["eval"]["loss"]
    shutil.rmtree(run / "checkpoints" / "step-4")
    again = tiny.load_weights(tiny.train(tmp_path, config, "--resume") / "model")
    assert tiny.relative_difference(again, weights) == 0
    sets = {"student_path": run / "model", "eval_batches": 2}
    in_tiles = tiny.evaluate(tmp_path, config, **sets, memory_tile_tokens=TILE)["loss"]
    whole = tiny.evaluate(tmp_path, config, **sets, memory_tile_tokens=0)["loss"]
    assert in_tiles == pytest.approx(evaluated, **CLOSE)
    assert whole == pytest.approx(in_tiles, **CLOSE)


def test_a_float8_student_and_teacher_in_tiles(tmp_path, models, ragged_shard):
    def trained(tile):
        config = config_of(
            tmp_path / str(tile), models["llama"], ragged_shard, data={"seq_len": 32}, memory={"tile_tokens": tile}
        )
        config["student"]["dtype"] = config["teacher"]["dtype"] = "float8"
        config["float8"] = {"gate_tokens": 128, "max_mean_kl": 1.0}
        return [step["loss"] for step in tiny.read_metrics(tiny.train(tmp_path / str(tile), config))[0]]

    # A value that falls on the other side of a rounding to float8 moves by up to an eighth.
    assert trained(TILE) == pytest.approx(trained(0), rel=2e-3)


def test_a_capture_in_tiles_stores_the_same_hidden_states(tmp_path, kind_run):
    def trained(tile):
        cache = tmp_path / f"cache-{tile}"
        config = kind_run(f"capture-{tile}")
        config["memory"] = {"tile_tokens": tile}
        cache_kinds.capture(config, cache)
        run = kind_run(f"train-{tile}", cache=cache)
        return [step["loss"] for step in tiny.read_metrics(tiny.train(tmp_path / f"train-{tile}", run))[0]]

    assert trained(TILE) == pytest.approx(trained(0), **CLOSE)
