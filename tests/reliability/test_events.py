"""Steps that went wrong are recorded with their samples, and can be done again."""

import json
import shutil

import numpy as np
import pytest

import tiny
from model_files import change_model, setting

SEQ_LEN, BATCH, STEPS = 32, 4, 40
SPIKE, POISONED = 30, 36  # 1-based steps
POISON = 200


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A student with a token whose embedding has no norm (0 / 0), and tokens easy to guess but for two steps."""
    folder = tmp_path_factory.mktemp("events")
    student = tiny.make_model(folder / "student", "llama", seed=1, tied=False)
    change_model(student, setting("model.embed_tokens.weight", POISON, 0), rms_norm_eps=1e-60)
    tokens = np.tile(np.arange(8), STEPS * BATCH * SEQ_LEN // 8 + 1)[: STEPS * BATCH * SEQ_LEN + 1]
    begin = (SPIKE - 1) * BATCH * SEQ_LEN
    tokens[begin + 2 * SEQ_LEN : begin + 3 * SEQ_LEN] = np.random.default_rng(4).integers(100, 199, SEQ_LEN)
    tokens[((POISONED - 1) * BATCH + 1) * SEQ_LEN + 7] = POISON
    shard = tiny.make_shard(folder / "data.dtok", [(tokens, np.ones(len(tokens), dtype=bool))])
    return student, shard


def make_config(tmp_path, parts, **sections):
    student, shard = parts
    config = tiny.base_config(
        tmp_path,
        student,
        "",
        shard,
        train={"steps": STEPS, "micro_batch_size": 2, "global_batch_size": BATCH},
        optimizer={"lr": 1e-2},
        checkpoint={"every": 9, "keep": 9},
        **sections,
    )
    config["loss"] = {"divergence": "none", "hard_weight": 1.0}
    return config


def events(run):
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_spike_and_a_non_finite_step_are_recorded_and_replayed(tmp_path, parts, processes):
    config = make_config(tmp_path, parts, parallel={"processes": processes})
    run = tiny.train(tmp_path, config)
    found = events(run)
    assert [(event["step"], event["event"]) for event in found] == [
        (SPIKE, "loss_spike"),
        (POISONED, "non_finite_step"),
    ]
    for event in found:
        assert event["samples"] == [(event["step"] - 1) * BATCH, event["step"] * BATCH]
    assert f"--step {SPIKE}" in (run / "log.txt").read_text()

    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = tiny.distill("replay", "--config", tmp_path / "config.yaml", "--step", SPIKE)
    assert f"step {SPIKE}: the replay equals the record, bit for bit" in done.stdout
    assert f"resumed from {run}/checkpoints/step-27" in done.stderr
    losses = [
        float(line.split("loss ")[1].split()[0]) for line in done.stdout.splitlines() if line.startswith("sample ")
    ]
    assert len(losses) == BATCH and np.argmax(losses) == 2, "the sample of random tokens stands out"
    assert f"sample {found[0]['samples'][0] + 2}: " in done.stdout
    done = tiny.distill("replay", "--config", tmp_path / "config.yaml", "--step", POISONED)
    assert "bit for bit" in done.stdout
    sample = found[1]["samples"][0] + 1
    assert any(
        line.startswith(f"sample {sample}: loss nan")
        or line.startswith(f"sample {sample}: loss -nan")
        or line.startswith(f"sample {sample}: loss inf")
        for line in done.stdout.splitlines()
    ), done.stdout
    assert {path: path.read_bytes() for path in before} == before, "the run folder is as it was"


def test_a_step_before_the_first_checkpoint_is_replayed_from_the_start(tmp_path, parts):
    tiny.train(tmp_path, make_config(tmp_path, parts))
    done = tiny.distill("replay", "--config", tmp_path / "config.yaml", "--step", 3)
    assert "bit for bit" in done.stdout and "resumed from" not in done.stderr
    refused = tiny.distill("replay", "--config", tmp_path / "config.yaml", "--step", STEPS + 1, code=tiny.BAD_INPUT)
    assert f"1 to {STEPS}" in refused.stderr


def test_a_resumed_run_records_the_same_events_once(tmp_path, parts):
    config = make_config(tmp_path, parts)
    run = tiny.train(tmp_path, config)
    expected = events(run)
    tiny.distill("--config", tmp_path / "config.yaml", "--resume-from", run / "checkpoints" / "step-27")
    assert events(run) == expected
    shutil.rmtree(run / "checkpoints" / "step-40")
    tiny.distill("--config", tmp_path / "config.yaml", "--resume")
    assert events(run) == expected
