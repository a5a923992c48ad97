"""Resuming after data.train has changed: the error has both counts, and its commands begin a new run that works."""

import json
import os
import shlex
from pathlib import Path

import pytest
import xxhash

import tiny


@pytest.fixture
def place(tmp_path, models):
    data = tmp_path / "data"
    data.mkdir()
    tiny.make_shard(data / "a.dtok", tiny.random_documents(1, [20, 40, 60]))
    tiny.make_shard(data / "b.dtok", tiny.random_documents(2, [30, 50]))
    config = tiny.base_config(
        tmp_path, *models["llama"], str(data), train={"steps": 2, "global_batch_size": 2}, scheduler={"warmup_steps": 0}
    )
    tiny.train(tmp_path, config)
    return tmp_path, config, data


def refused(folder, config):
    path = tiny.write_config(folder, config)
    config_before = (folder / "run" / "config.yaml").read_text()
    message = tiny.distill("--config", path, "--resume", "--set", "train.steps=4", code=tiny.BAD_INPUT).stderr
    assert (folder / "run" / "config.yaml").read_text() == config_before
    assert "data.train is not what it was when the run began" in message
    return message


def commands(message):
    """The commands that an error gives."""
    lines = [line.strip() for line in message.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith(("distill export --", "distill --config "))]


def test_more_documents_are_counted_and_the_commands_begin_a_new_run(place):
    folder, config, data = place
    tiny.make_shard(data / "c.dtok", tiny.random_documents(3, [10, 20, 30, 40]))
    message = refused(folder, config)
    counts = "5 documents, 200 tokens then, 9 documents, 300 tokens now"
    assert f"{data}: 4 documents more and 100 tokens more than when the run began: {counts}" in message
    export, begin = commands(message)
    tiny.distill(*export)
    tiny.distill(*begin)
    run = folder / "run-continued"
    assert [record["step"] for record in tiny.read_metrics(run)[0]] == [1, 2]
    tiny.distill("--config", run / "config.yaml", "--resume", "--set", "train.steps=3")


@pytest.mark.parametrize("init", ["pretrained", "random"])
def test_other_data_sets_are_in_the_commands(place, init):
    folder, config, data = place
    other = folder / "other.dtok"
    tiny.make_shard(other, tiny.random_documents(7, [33, 44]))
    config["student"]["init"] = init
    if init == "random":
        tiny.train(folder, config, "--overwrite")
    config["data"]["train"] = [{"path": str(other)}, {"path": str(data), "weight": 2}]
    message = refused(folder, config)
    assert f"{other}: 2 documents, 77 tokens now; not a data set of the run" in message
    export, begin = commands(message)
    assert any(str(other) in argument for argument in begin)
    assert ("student.init=pretrained" in begin) is (init == "random")
    tiny.distill(*export)
    tiny.distill(*begin)


def test_fewer_changed_and_renamed_data_are_told_apart(place):
    folder, config, data = place
    whole = (data / "b.dtok").read_bytes()
    (data / "b.dtok").unlink()
    assert "2 documents fewer and 80 tokens fewer than when the run began: 5 documents, 200 tokens then" in refused(
        folder, config
    )
    tiny.make_shard(data / "b.dtok", tiny.random_documents(9, [30, 50]))
    assert "the same 5 documents, 200 tokens, with other content or in another order" in refused(folder, config)
    (data / "b.dtok").write_bytes(whole)
    os.rename(data, folder / "moved")
    config["data"]["train"] = [{"path": str(folder / "moved")}]
    path = tiny.write_config(folder, config)
    tiny.distill("--config", path, "--resume", "--set", "train.steps=4")  # the same files


def test_a_checkpoint_without_counts_says_so(place):
    folder, config, data = place
    index = next((folder / "run" / "checkpoints").glob("step-*/index.json"))
    content = json.loads(index.read_text())
    assert content.pop("data_sets") == [{"path": str(data), "documents": 5, "tokens": 200}]
    marker = next(path for path in index.parent.iterdir() if path.read_bytes().startswith(b"distill-checkpoint "))
    old = index.read_bytes()
    index.write_text(json.dumps(content))
    sums = [xxhash.xxh3_64_hexdigest(data) for data in (old, index.read_bytes())]
    marker.write_text(marker.read_text().replace(*sums))
    tiny.make_shard(data / "c.dtok", tiny.random_documents(3, [10]))
    message = tiny.distill(
        "--config", Path(folder) / "config.yaml", "--resume", "--set", "train.steps=4", code=tiny.BAD_INPUT
    ).stderr
    assert f"{data}: 6 documents, 210 tokens now; the checkpoint does not say how many" in message


def test_another_seed_is_another_run_as_before(place):
    folder, config, _ = place
    config["data"] |= {"shuffle": True, "seed": 9}
    path = tiny.write_config(folder, config)
    message = tiny.distill("--config", path, "--resume", code=tiny.BAD_INPUT).stderr
    assert "this checkpoint belongs to another run" in message and "seed 9" in message
