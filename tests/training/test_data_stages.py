"""A run continues with another sequence length or packing, from the unread tokens of its epoch, on any ranks."""

import json
import re
import shutil

import pytest

import tiny
from test_resume import files, state_files, timeless

LENGTHS = [5, 61, 17, 128, 2, 33, 90, 47] * 5


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Two sets, and how many targets an epoch of each has."""
    folder = tmp_path_factory.mktemp("sets")
    documents = [tiny.random_documents(3, LENGTHS), tiny.random_documents(4, LENGTHS[:23])]
    paths = [tiny.make_shard(folder / f"{i}.dtok", part) for i, part in enumerate(documents)]
    return paths, [sum(int(in_loss[1:].sum()) for _, in_loss in part) for part in documents]


def stage(tmp_path, models, shards, seq_len, name="run", steps=40, sets=1, packing="pack", train=None, **sections):
    student, teacher = models["qwen3"]
    config = tiny.base_config(tmp_path / name, student, teacher, shards[0][0], **sections)
    config["data"] = {
        "train": [{"path": path} for path in shards[0][:sets]],
        "seq_len": seq_len,
        "packing": packing,
        "shuffle": True,
        "seed": 5,
    }
    config["train"] |= {
        "steps": steps,
        "micro_batch_size": 1,
        "global_batch_size": 1,
        "deterministic": tiny.DEVICE == "cuda",
    } | (train or {})
    config["parallel"] = {"processes": 1} | sections.get("parallel", {})
    config["checkpoint"] = {"every": 4, "keep": 99} | sections.get("checkpoint", {})
    return config


def resume(tmp_path, config, checkpoint, name="run"):
    return tiny.train(tmp_path / name, config, "--resume-from", tmp_path / name / "run" / "checkpoints" / checkpoint)


def rest_samples(run):
    """Samples that the newest stage begins with, by the log."""
    found = re.findall(
        r"epoch \d+ continues with its \d+ unread tokens \(\d+ fragments of documents\) "
        r"in (\d+) samples of",
        (run / "log.txt").read_text(),
    )
    assert found, (run / "log.txt").read_text()
    return int(found[-1])


@pytest.mark.parametrize("lengths", [(32, 64), (32, 8), (16, 100, 24)])
def test_an_epoch_has_each_target_once_whatever_the_lengths(tmp_path, models, shards, lengths):
    run = tiny.train(tmp_path / "run", stage(tmp_path, models, shards, lengths[0], steps=8))
    step = 8
    for length in lengths[1:]:
        tiny.train(tmp_path / "run", stage(tmp_path, models, shards, length, steps=step + 4), "--resume")
        step += 4
    last = step - 4 + rest_samples(run)
    assert last > step
    tiny.train(tmp_path / "run", stage(tmp_path, models, shards, lengths[-1], steps=last), "--resume")
    records = tiny.read_metrics(run)[0]
    assert [record["step"] for record in records] == list(range(1, last + 1))
    assert sum(record["valid_tokens"] for record in records) == shards[1][0]
    index = json.loads((run / "checkpoints" / f"step-{last}" / "index.json").read_text())
    assert [(one["step"], one["first_sample"], one["seq_len"]) for one in index["data_stages"]] == [
        (0 if i == 0 else 4 + 4 * i, 0 if i == 0 else 4 + 4 * i, length) for i, length in enumerate(lengths)
    ]
    assert index["tokens"] == sum(record["tokens"] for record in records[-1:])
    assert "changed since the checkpoint: data.seq_len" in (run / "log.txt").read_text()


def test_stopping_in_a_later_stage_changes_no_bit(tmp_path, models, shards):
    """Mixed sets, the second stage interrupted once and not at all; replays of steps of both stages."""

    def config(name, seq_len):
        return stage(
            tmp_path,
            models,
            shards,
            seq_len,
            name=name,
            steps=16,
            sets=2,
            train={"global_batch_size": 4, "micro_batch_size": 2},
        )

    for name in ("whole", "parts"):
        tiny.train(tmp_path / name, config(name, 32))
        run = resume(tmp_path, config(name, 48), "step-8", name)
    expected, model = state_files(run.parents[1] / "whole" / "run", 16), files(tmp_path / "whole" / "run" / "model")
    shutil.rmtree(run / "checkpoints" / "step-16")
    shutil.rmtree(run / "model")
    tiny.train(tmp_path / "parts", config("parts", 48), "--resume")
    assert state_files(run, 16) == expected
    assert files(run / "model") == model
    for found, reference in zip(tiny.read_metrics(run), tiny.read_metrics(tmp_path / "whole" / "run"), strict=True):
        assert timeless(found) == timeless(reference)
    # In the run's config.yaml stands the last length; a step is replayed with its own.
    for step in (3, 6, 8, 9, 14):
        done = tiny.distill("replay", "--config", run / "config.yaml", "--step", step)
        assert f"step {step}: the replay equals the record, bit for bit" in done.stdout, step


@pytest.mark.parametrize("parallel", [{"processes": 2}, {"processes": 4}, {"processes": 4, "shard": 2, "replicate": 2}])
def test_other_ranks_read_the_same_samples_in_a_later_stage(tmp_path, models, shards, parallel):
    tiny.need_devices(parallel["processes"])

    def config(name, seq_len, **sections):
        return stage(
            tmp_path,
            models,
            shards,
            seq_len,
            name=name,
            steps=16,
            sets=2,
            train={"global_batch_size": 8, "micro_batch_size": 2},
            **sections,
        )

    for name in ("one", "more"):
        tiny.train(tmp_path / name, config(name, 32))
    one = resume(tmp_path, config("one", 80), "step-8", "one")
    more = resume(tmp_path, config("more", 80, parallel=parallel), "step-8", "more")
    for found, reference in zip(tiny.read_metrics(more)[0], tiny.read_metrics(one)[0], strict=True):
        assert found["valid_tokens"] == reference["valid_tokens"]
        assert found["loss"] == pytest.approx(reference["loss"], rel=3e-5)


def test_packing_may_change_and_come_back(tmp_path, models, shards):
    run = tiny.train(tmp_path / "run", stage(tmp_path, models, shards, 32, steps=8))
    tiny.train(tmp_path / "run", stage(tmp_path, models, shards, 24, steps=12, packing="concat"), "--resume")
    tiny.train(tmp_path / "run", stage(tmp_path, models, shards, 32, steps=16), "--resume")
    index = json.loads((run / "checkpoints" / "step-16" / "index.json").read_text())
    assert [(one["seq_len"], one["packing"]) for one in index["data_stages"]] == [
        (32, "pack"),
        (24, "concat"),
        (32, "pack"),
    ]
    # A stage in which nothing was read leaves nothing: another length, and back at the same step.
    tiny.train(tmp_path / "run", stage(tmp_path, models, shards, 64, steps=16), "--resume")
    tiny.train(tmp_path / "run", stage(tmp_path, models, shards, 32, steps=20), "--resume")
    index = json.loads((run / "checkpoints" / "step-20" / "index.json").read_text())
    assert len(index["data_stages"]) == 3


def test_a_budget_of_tokens_is_kept_whatever_the_length(tmp_path, models, shards):
    first = stage(tmp_path, models, shards, 32, steps=0, train={"tokens": 32 * 12})
    run = tiny.train(tmp_path / "run", first)
    assert tiny.read_metrics(run)[0][-1]["step"] == 12
    resume(tmp_path, stage(tmp_path, models, shards, 64, steps=0, train={"tokens": 32 * 12}), "step-8")
    assert [record["tokens"] for record in tiny.read_metrics(run)[0]][7:] == [256, 320, 384]
