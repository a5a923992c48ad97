"""A run continues with another sequence length or packing, from the unread tokens of its epoch, on any ranks."""

import json
import re
import shutil

import pytest

import tiny
from run_results import files, state_files, timeless

LENGTHS = [5, 61, 17, 128, 2, 33, 90, 47] * 5


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Two sets, and how many targets an epoch of each has."""
    folder = tmp_path_factory.mktemp("sets")
    documents = [tiny.random_documents(3, LENGTHS), tiny.random_documents(4, LENGTHS[:23])]
    paths = [tiny.make_shard(folder / f"{i}.dtok", part) for i, part in enumerate(documents)]
    return paths, [sum(int(in_loss[1:].sum()) for _, in_loss in part) for part in documents]


@pytest.fixture
def stage(tmp_path, models, shards):
    """stage(seq_len, steps, *flags, **sections): a run with this length, or its continuation. Returns its folder."""

    def train(seq_len, steps, *flags, name="run", sets=1, packing="pack", **sections):
        batch = {"steps": steps, "micro_batch_size": 1, "global_batch_size": 1} | sections.pop("train", {})
        config = tiny.base_config(tmp_path / name, *models["qwen3"], shards[0][0], train=batch, **sections)
        config["train"]["deterministic"] = tiny.DEVICE == "cuda"
        data = [{"path": path} for path in shards[0][:sets]]
        config["data"] = {"train": data, "seq_len": seq_len, "packing": packing, "shuffle": True, "seed": 5}
        config["parallel"] = {"processes": 1} | sections.get("parallel", {})
        config["checkpoint"] = {"every": 4, "keep": 99}
        return tiny.train(tmp_path / name, config, *flags)

    return train


def step_of(run, step):
    """--resume-from of a checkpoint"""
    return "--resume-from", run / "checkpoints" / f"step-{step}"


def rest_samples(run):
    """Samples that the newest stage begins with, by the log."""
    log = (run / "log.txt").read_text()
    line = r"epoch \d+ continues with its \d+ unread tokens \(\d+ fragments of documents\) in (\d+) samples of"
    found = re.findall(line, log)
    assert found, log
    return int(found[-1])


@pytest.mark.parametrize("lengths", [(32, 64), (32, 8), (16, 100, 24)])
def test_an_epoch_has_each_target_once_whatever_the_lengths(tmp_path, stage, shards, lengths):
    run = stage(lengths[0], 8)
    step = 8
    for length in lengths[1:]:
        stage(length, step + 4, "--resume")
        step += 4
    last = step - 4 + rest_samples(run)
    assert last > step
    stage(lengths[-1], last, "--resume")
    records = tiny.read_metrics(run)[0]
    assert [record["step"] for record in records] == list(range(1, last + 1))
    assert sum(record["valid_tokens"] for record in records) == shards[1][0]
    index = json.loads((run / "checkpoints" / f"step-{last}" / "index.json").read_text())
    begins = [0 if i == 0 else 4 + 4 * i for i in range(len(lengths))]
    stages = [(one["step"], one["first_sample"], one["seq_len"]) for one in index["data_stages"]]
    assert stages == list(zip(begins, begins, lengths))
    assert index["tokens"] == sum(record["tokens"] for record in records[-1:])
    assert "changed since the checkpoint: data.seq_len" in (run / "log.txt").read_text()


def test_stopping_in_a_later_stage_changes_no_bit(tmp_path, stage):
    """Mixed sets, the second stage interrupted once and not at all; replays of steps of both stages."""

    sections = {"sets": 2, "train": {"global_batch_size": 4, "micro_batch_size": 2}}
    for name in ("whole", "parts"):
        run = stage(32, 16, name=name, **sections)
        stage(48, 16, *step_of(run, 8), name=name, **sections)
    expected, model = state_files(run.parents[1] / "whole" / "run", 16), files(tmp_path / "whole" / "run" / "model")
    shutil.rmtree(run / "checkpoints" / "step-16")
    shutil.rmtree(run / "model")
    stage(48, 16, "--resume", name="parts", **sections)
    assert state_files(run, 16) == expected
    assert files(run / "model") == model
    for found, reference in zip(tiny.read_metrics(run), tiny.read_metrics(tmp_path / "whole" / "run"), strict=True):
        assert timeless(found) == timeless(reference)
    # In the run's config.yaml stands the last length; a step is replayed with its own.
    for step in (3, 6, 8, 9, 14):
        done = tiny.distill("replay", "--config", run / "config.yaml", "--step", step)
        assert f"step {step}: the replay equals the record, bit for bit" in done.stdout, step


@pytest.mark.parametrize("parallel", [{"processes": 2}, {"processes": 4}, {"processes": 4, "shard": 2, "replicate": 2}])
def test_other_ranks_read_the_same_samples_in_a_later_stage(stage, parallel):
    tiny.need_devices(parallel["processes"])

    sections = {"sets": 2, "train": {"global_batch_size": 8, "micro_batch_size": 2}}
    one, more = (stage(32, 16, name=name, **sections) for name in ("one", "more"))
    stage(80, 16, *step_of(one, 8), name="one", **sections)
    stage(80, 16, *step_of(more, 8), name="more", parallel=parallel, **sections)
    for found, reference in zip(tiny.read_metrics(more)[0], tiny.read_metrics(one)[0], strict=True):
        assert found["valid_tokens"] == reference["valid_tokens"]
        assert found["loss"] == pytest.approx(reference["loss"], rel=3e-5)


def test_packing_may_change_and_come_back(stage):
    run = stage(32, 8)
    stage(24, 12, "--resume", packing="concat")
    stage(32, 16, "--resume")
    index = json.loads((run / "checkpoints" / "step-16" / "index.json").read_text())
    stages = [(one["seq_len"], one["packing"]) for one in index["data_stages"]]
    assert stages == [(32, "pack"), (24, "concat"), (32, "pack")]
    # A stage in which nothing was read leaves nothing: another length, and back at the same step.
    stage(64, 16, "--resume")
    stage(32, 20, "--resume")
    index = json.loads((run / "checkpoints" / "step-20" / "index.json").read_text())
    assert len(index["data_stages"]) == 3


def test_a_budget_of_tokens_is_kept_whatever_the_length(stage):
    budget = {"train": {"tokens": 32 * 12}}
    run = stage(32, 0, **budget)
    assert tiny.read_metrics(run)[0][-1]["step"] == 12
    stage(64, 0, *step_of(run, 8), **budget)
    assert [record["tokens"] for record in tiny.read_metrics(run)[0]][7:] == [256, 320, 384]
