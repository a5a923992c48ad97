"""TensorBoard's own reader sees every number of metrics.jsonl once, whatever happened to the run."""

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

import event_points
import jobs
import tiny

STEP_NAMES = [
    *("loss", "hard", "soft", "teacher_ce", "forward_kl", "reverse_kl", "student_entropy", "teacher_entropy"),
    *("agreement", "accuracy", "lr", "grad_norm", "tokens_per_second", "seconds", "peak_memory_bytes", "skipped"),
    *("phase_seconds/teacher", "phase_seconds/data"),
]


@pytest.fixture
def config(tmp_path, models, ragged_shard):
    def build(steps=12, checkpoint_every=4, **sections):
        return tiny.base_config(
            tmp_path,
            *models["llama"],
            ragged_shard,
            data={"eval": [{"path": ragged_shard}]},
            train={"steps": steps},
            eval={"every": 3, "batches": 2, "at_start": True},
            checkpoint={"every": checkpoint_every, "keep": 99},
            run={"dir": str(tmp_path / "run"), "progress": "none", "tensorboard": True},
            **sections,
        )

    return build


def check(run):
    """Every point once, in all files and as TensorBoard shows them."""
    expected = event_points.recorded(run)
    assert event_points.difference(event_points.raw(run), expected) == ""
    assert event_points.difference(event_points.shown(event_points.reader(run)), expected) == ""
    return expected


def run_until(step, tmp_path, config, *flags):
    """SIGKILL once metrics.jsonl has the step."""
    run = Path(config["run"]["dir"])
    job, lines = tiny.start(tiny.write_config(tmp_path, config), *flags), run / "metrics.jsonl"
    jobs.until(lambda: lines.exists() and f'{{"step":{step},' in lines.read_text(), job, 100, pause=0.002)
    assert job.poll() is None, "the run has ended"
    job.send_signal(signal.SIGKILL)
    job.wait()
    return run


def test_every_number_of_every_line_is_a_point(tmp_path, config):
    began = time.time()
    run = tiny.train(tmp_path, config())
    points = check(run)
    for name in STEP_NAMES:
        assert [point[0] for point in points["train/" + name]] == list(range(1, 13)), name
    for tag in ("eval/loss", "eval/hard", "eval/teacher_ce", "eval/forward_kl", "eval/agreement"):
        assert [point[0] for point in points[tag]] == [0, 3, 6, 9, 12], tag
    times = [point[1] for point in points["train/loss"]]
    assert times == sorted(times) and began - 1 <= times[0] and times[-1] <= time.time()


def test_steps_without_a_target_have_no_point(tmp_path, config, models):
    shard = tiny.make_shard(
        tmp_path / "masked.dtok",
        [
            (tokens, in_loss & (index < 9))
            for index, (tokens, in_loss) in enumerate(tiny.random_documents(3, [64] * 24))
        ],
    )
    job = config(steps=4)
    job["data"]["train"] = [{"path": shard}]
    job["train"]["global_batch_size"] = 12
    run = tiny.train(tmp_path, job)
    points = check(run)
    assert len(points["train/empty_steps"]) == 4 and 0 < len(points["train/loss"]) < 4


@pytest.mark.parametrize("killed_at, checkpoint_every", [(22, 5), (31, 4)])
def test_a_killed_and_resumed_run_has_every_point_once(tmp_path, config, killed_at, checkpoint_every):
    job = config(steps=60, checkpoint_every=checkpoint_every)
    run = run_until(killed_at, tmp_path, job)
    complete = [int(marker.parent.name.split("-")[1]) for marker in (run / "checkpoints").glob("step-*/COMPLETE")]
    assert complete and max(complete) < killed_at + checkpoint_every
    # A record that was torn by the kill; and an event file that another host's job left, never emptied.
    (file,) = [path for path in (run / "tensorboard").iterdir() if path.stat().st_size]
    shutil.copy(file, run / "tensorboard" / "events.out.tfevents.1000000000.elsewhere.7")
    with file.open("ab") as stream:
        stream.write(file.read_bytes()[:77][-20:])
    tiny.train(tmp_path, job, "--resume")
    points = check(run)
    assert [point[0] for point in points["train/loss"]] == list(range(1, 61))
    assert [point[0] for point in points["eval/loss"]] == list(range(0, 61, 3))


def test_a_run_that_is_killed_again_and_again(tmp_path, config):
    job = config(steps=40, checkpoint_every=2)
    for step in (7, 13, 14, 26):
        run = run_until(step, tmp_path, job, *(["--resume"] if step > 7 else []))
    tiny.train(tmp_path, job, "--resume")
    points = check(run)
    assert [point[0] for point in points["train/loss"]] == list(range(1, 41))
    assert len(list((run / "tensorboard").iterdir())) == 2, "an empty file and the last one"


def test_an_earlier_checkpoint_takes_the_later_points_away_from_a_viewer_too(tmp_path, config):
    job = config()
    run = tiny.train(tmp_path, job)
    viewer = event_points.reader(run)
    assert event_points.difference(event_points.shown(viewer), event_points.recorded(run)) == ""
    before = event_points.recorded(run)
    job["optimizer"]["lr"] = 1e-4  # other values from here on
    tiny.train(tmp_path, job, "--resume-from", run / "checkpoints" / "step-4")
    points = check(run)
    assert points["train/loss"][:4] == before["train/loss"][:4] and points["train/loss"] != before["train/loss"]
    assert points["eval/loss"][:2] == before["eval/loss"][:2], "values and times of what was kept"
    assert event_points.difference(event_points.shown(viewer), points) == "", "a viewer that was open all the time"


def test_a_running_job_can_be_watched(tmp_path, config):
    run = run_until(30, tmp_path, config(steps=400))
    found, lines = event_points.shown(event_points.reader(run)), event_points.recorded(run)
    # A kill may come between the two files.
    assert 0 <= len(lines["train/loss"]) - len(found["train/loss"]) <= 1
    count = len(found["train/loss"])
    assert found["train/loss"] == lines["train/loss"][:count] and count >= 29


def test_tensorboard_may_be_turned_on_and_off_between_the_parts_of_a_run(tmp_path, config):
    job = config()
    job["run"]["tensorboard"] = False
    run = tiny.train(tmp_path, job)
    assert not (run / "tensorboard").exists()
    job["run"]["tensorboard"] = True
    tiny.train(tmp_path, job, "--resume-from", run / "checkpoints" / "step-8")
    assert [point[0] for point in check(run)["train/loss"]] == list(range(1, 13)), "the whole run"
    job["run"]["tensorboard"] = False
    tiny.train(tmp_path, job, "--resume-from", run / "checkpoints" / "step-4")
    found = event_points.raw(run)
    assert [point[0] for point in found["train/loss"]] == [1, 2, 3, 4], "no point of steps that were done again"
    assert [point[0] for point in found["eval/loss"]] == [0, 3]


def test_lines_of_an_older_version_have_no_time(tmp_path, config):
    job = config()
    run = tiny.train(tmp_path, job)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["time_ms"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tiny.train(tmp_path, job, "--resume-from", run / "checkpoints" / "step-8")
    assert [point[0] for point in event_points.raw(run)["train/loss"]] == list(range(1, 13))


def test_overwrite_removes_the_event_files_and_a_replay_writes_none(tmp_path, config):
    job = config()
    run = tiny.train(tmp_path, job)
    tiny.train(tmp_path, job, "--overwrite")
    check(run)
    assert len(list((run / "tensorboard").iterdir())) == 1
    tiny.distill("replay", "--config", tmp_path / "config.yaml", "--step", 3)
    assert (run / "replay-3").is_dir() and not (run / "replay-3" / "tensorboard").exists()


def test_an_event_file_that_cannot_be_written_names_itself(tmp_path, config):
    job = config()
    run = tiny.train(tmp_path, job)
    shutil.rmtree(run / "tensorboard")
    (run / "tensorboard").write_text("no folder")
    failed = tiny.distill(
        "--config", tmp_path / "config.yaml", "--resume-from", run / "checkpoints" / "step-8",
        code=tiny.RUNTIME_FAILURE,
    )  # fmt: skip
    assert f"{run}/tensorboard" in failed.stderr
