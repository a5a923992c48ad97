"""How long a run is: steps, tokens or epochs; what a resumption finds when nothing is left to do."""

import json
import re
import shutil

import tiny_job

EPOCHS = ["--config", "config.yaml", "--set", "train.steps=null", "scheduler.min_lr_ratio=0.1"]


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def resumed(distill, place, *overrides):
    """What a resumption adds to the log."""
    log = place / "run" / "log.txt"
    before = len(log.read_text())
    done = distill(place, "--config", "config.yaml", "--resume", *(["--set", *overrides] if overrides else []))
    assert done.returncode == 0, done.stderr
    return log.read_text()[before:]


def model_times(run):
    return {path.name: path.stat().st_mtime_ns for path in (run / "model").iterdir()}


def test_set_takes_several_overrides(distill, place):
    for args in (
        ["--set", "train.steps=3", "optimizer.lr=0.5"],
        ["--set", "train.steps=3", "--set", "optimizer.lr=0.5"],
    ):
        done = distill(place, "--config", "config.yaml", *args, "--overwrite")
        assert done.returncode == 0, done.stderr
        config = (place / "run" / "config.yaml").read_text()
        assert "  steps: 3\n" in config and "  lr: 0.5\n" in config


def test_epochs_are_passes_over_the_data(distill, place):
    dry = distill(place, *EPOCHS, "train.epochs=2", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    sequences = int(re.search(r"data.train: .* (\d+) (?:sequences|rows) of 16", dry.stdout)[1])
    steps = -(-2 * sequences // 4)
    assert f"run: {steps} steps of 64 tokens" in dry.stdout
    done = distill(place, *EPOCHS, "train.epochs=2")
    assert done.returncode == 0, done.stderr
    lines = records(place / "run")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    # The schedule ends with the last step.
    assert lines[-1]["lr"] > 1e-4 and lines[0]["lr"] == 1e-3

    # Longer: the run goes on to the new end.
    more = distill(place, *EPOCHS, "train.epochs=3", "--resume")
    assert more.returncode == 0, more.stderr
    assert "train.epochs: 2 -> 3" in (place / "run" / "log.txt").read_text()
    assert [line["step"] for line in records(place / "run")] == list(range(1, -(-3 * sequences // 4) + 1))
    said = distill(place, "inspect", "run").stdout
    assert re.search(r"steps done +\d+ of 3 epochs", said), said


def test_a_token_shard_that_is_given_twice_is_warned_of(distill, place):
    expected = "data.train: 1 of its token shards have the tokens of an earlier one (again/"
    shutil.copytree(place / "train", place / "again")
    for sets, warned in (("[train, again]", True), ("train", False)):
        dry = distill(place, "--config", "config.yaml", "--dry-run", "--set", f"data.train={sets}")
        assert dry.returncode == 0 and (expected in dry.stderr) == warned, dry.stderr


def test_a_folder_of_token_shards_with_a_hole_is_warned_of(distill, place):
    for name, warned in (("shard-00001", False), ("shard-00003", True)):
        tiny_job.write_shard(place / "train" / f"{name}.dtok", seed=7 + warned)
        dry = distill(place, "--config", "config.yaml", "--dry-run")
        says = "train has shard-00003.dtok and not shard-00002.dtok"
        assert dry.returncode == 0 and (says in dry.stderr) == warned, dry.stderr
    alone = distill(place, "--config", "config.yaml", "--dry-run", "--set", "data.train=train/shard-00003.dtok")
    assert "shard-00002" not in alone.stderr


def test_a_token_shard_without_anything_to_learn_is_warned_of(distill, place):
    tiny_job.write_shard(place / "prompts.dtok", masked=True)
    dry = distill(place, "--config", "config.yaml", "--dry-run", "--set", "data.train=[train, prompts.dtok]")
    assert dry.returncode == 0 and "prompts.dtok: no token is in the loss" in dry.stderr, dry.stderr
    assert "no token is in the loss" not in distill(place, "--config", "config.yaml", "--dry-run").stderr


def test_a_batch_larger_than_the_epochs_is_warned_of(distill, place):
    dry = distill(
        place, *EPOCHS, "train.epochs=1", "train.global_batch_size=64", "scheduler.warmup_steps=0", "--dry-run"
    )
    assert dry.returncode == 0, dry.stderr
    sequences = int(re.search(r"data.train: .* (\d+) (?:sequences|rows) of 16", dry.stdout)[1])
    expected = f"train.epochs 1 of {sequences} sequences is 1 step(s) of train.global_batch_size 64"
    assert expected in dry.stderr and f"reads {64 / sequences:.2f} epochs" in dry.stderr
    done = distill(place, *EPOCHS, "train.epochs=1", "train.global_batch_size=64", "scheduler.warmup_steps=0")
    assert expected in done.stderr
    # Whole steps that come near enough are what was asked for.
    dry = distill(
        place,
        *EPOCHS,
        "train.epochs=1",
        "train.global_batch_size=1",
        "train.micro_batch_size=1",
        "--dry-run",
        "--overwrite",
    )
    assert dry.returncode == 0 and "train.epochs 1" not in dry.stderr


def test_replay_of_a_run_of_epochs_knows_its_steps(distill, place):
    args = ["train.epochs=1", "checkpoint.every=1", "checkpoint.keep=9"]
    assert distill(place, *EPOCHS, *args).returncode == 0
    last = records(place / "run")[-1]["step"]
    done = distill(place, "replay", "--config", "run/config.yaml", "--step", str(last))
    assert done.returncode == 0, done.stderr
    beyond = distill(place, "replay", "--config", "run/config.yaml", "--step", str(last + 1))
    assert beyond.returncode == 2 and f"1 to {last}" in beyond.stderr, beyond.stderr


def test_a_mixture_has_as_many_sequences_as_its_sets_together(distill, place):
    text = distill(
        place, *EPOCHS, "train.epochs=1", "data.train=[train, {path: eval.dtok, weight: 9}]", "--dry-run"
    ).stdout
    sequences = [int(count) for count in re.findall(r"data.train: .* (\d+) (?:sequences|rows) of 16", text)]
    assert len(sequences) == 2
    assert f"run: {-(-sum(sequences) // 4)} steps" in text


def test_no_step_has_a_learning_rate_of_zero(distill, place):
    for kind in ("cosine", "linear", "wsd"):
        args = ["--set", f"scheduler.type={kind}", "train.steps=4", "--overwrite"]
        assert distill(place, "--config", "config.yaml", *args).returncode == 0
        assert all(line["lr"] > 0 for line in records(place / "run")), kind


def test_resuming_a_complete_run_says_so_and_leaves_its_model(distill, place):
    assert distill(place, "--config", "config.yaml").returncode == 0
    times = model_times(place / "run")
    said = resumed(distill, place)
    assert "the run is complete, all its 2 steps are done" in said
    assert "stays as it is" in said and "wrote the model" not in said
    assert model_times(place / "run") == times and len(records(place / "run")) == 2

    shutil.rmtree(place / "run" / "model")
    assert "wrote the model" in resumed(distill, place)
    assert (place / "run" / "model" / "model.safetensors").exists()


def test_resuming_with_fewer_steps_than_done_says_so(distill, place):
    assert distill(place, "--config", "config.yaml", "--set", "train.steps=4").returncode == 0
    times = model_times(place / "run")
    said = resumed(distill, place, "train.steps=3")
    assert "the run has 3 steps and the state is of step 4" in said
    assert "wrote the model" not in said and model_times(place / "run") == times


def test_a_model_that_is_older_than_the_state_is_written_again(distill, place):
    """A run ended, went on to a later step without its model, and is then resumed at its end."""
    assert distill(place, "--config", "config.yaml").returncode == 0
    old = (place / "run" / "model" / "model.safetensors").read_bytes()
    shutil.move(place / "run" / "model", place / "old")
    assert "wrote the model" in resumed(distill, place, "train.steps=4")
    shutil.rmtree(place / "run" / "model")
    shutil.move(place / "old", place / "run" / "model")
    assert "wrote the model" in resumed(distill, place, "train.steps=4")
    assert (place / "run" / "model" / "model.safetensors").read_bytes() != old
