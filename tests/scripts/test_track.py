"""scripts/track.py with the packages of both services, without a network: what they hold is what metrics.jsonl has."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import wandb_file

import run_folders

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def track(tmp_path):
    """track(run, *arguments, code=0) -> standard output, or the error."""
    environment = {
        **os.environ,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
    }

    def track(run, *arguments, code=0, **more):
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / "track.py", str(run), *arguments],
            cwd=tmp_path, env={**environment, **more}, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr if code == 0 else done.stderr

    return track


def recorded(run, evaluations=False):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if ("eval" if evaluations else "loss") in line]


def wandb_points(folder, name, kind="train"):
    rows = [row for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")) for row in wandb_file.history(path)]
    return [(row[f"{kind}/step"], row[name]) for row in rows if name in row]


class Mlflow:
    def __init__(self, folder, run):
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        from mlflow import MlflowClient

        self.client = MlflowClient((folder / "mlruns").as_uri())
        self.run_id = json.loads((run / "track-mlflow.json").read_text())["run_id"]
        self.run = self.client.get_run(self.run_id)

    def points(self, name):
        return [(metric.step, metric.value) for metric in self.client.get_metric_history(self.run_id, name)]

    def artifacts(self, folder=None):
        return {item.path for item in self.client.list_artifacts(self.run_id, folder)}


def points_of(run, folder, to, name, kind="train"):
    points = wandb_points(folder, name, kind) if to == "wandb" else Mlflow(folder, run).points(name)
    return sorted(points)


def check_points(run, folder, to):
    """Every number of metrics.jsonl is there once, with its step."""
    steps, evaluations = recorded(run), recorded(run, evaluations=True)
    for name in ("loss", "forward_kl", "lr", "grad_norm", "tokens_per_second", "peak_memory_bytes"):
        expected = [(line["step"], pytest.approx(line[name])) for line in steps if line[name] is not None]
        assert points_of(run, folder, to, f"train/{name}") == expected, name
    head = [(line["step"], pytest.approx(line["phase_seconds"]["head"])) for line in steps]
    assert points_of(run, folder, to, "phases/head") == head
    assert points_of(run, folder, to, "train/time_ms") == []
    for name in ("hard", "teacher_ce"):
        expected = [(line["step"], pytest.approx(line["eval"][name])) for line in evaluations]
        assert points_of(run, folder, to, f"eval/{name}", "eval") == expected, name


def lengthen(run, first, last, keep_to):
    """The run goes on: keeps steps up to `keep_to` in a new file, as a resumption does, and has steps first to last."""
    kept = [
        line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if line["step"] <= keep_to
    ]
    added = []
    for step in range(first, last + 1):
        added += [run_folders.step_metrics(step)] + ([run_folders.eval_record(step)] if step in (30, last) else [])
    (run / "new").write_text("".join(json.dumps(line) + "\n" for line in kept + added))
    (run / "new").rename(run / "metrics.jsonl")


@pytest.mark.parametrize("to", ["wandb", "mlflow"])
def test_every_point_is_there_once_after_any_number_of_calls(track, tmp_path, to):
    run = run_folders.write_run(tmp_path / "run", steps=30, changes={7: {"loss": None, "forward_kl": None}})
    run_folders.add_events(run)
    run_folders.add_samples(run)
    run_folders.add_rounds(run, count=2)
    assert "steps up to 30 are sent" in track(run, "--to", to)
    check_points(run, tmp_path, to)
    track(run, "--to", to)
    check_points(run, tmp_path, to)
    assert points_of(run, tmp_path, to, "rounds/truncated", "rounds") == [(0, 0.25), (20, 0.25)]
    assert points_of(run, tmp_path, to, "rounds/judged/agreement", "rounds") == [(0, 0.5), (20, 0.5)]

    # Resumed after step 20: the steps from 21 on are recorded again.
    lengthen(run, first=21, last=50, keep_to=20)
    output = track(run, "--to", to)
    assert "steps up to 50 are sent" in output and "another way" not in output
    expected = [(line["step"], pytest.approx(line["loss"])) for line in recorded(run) if line["step"] != 7]
    assert [p for p in points_of(run, tmp_path, to, "train/loss") if p[0] != 7] == expected
    assert [step for step, _ in points_of(run, tmp_path, to, "eval/hard", "eval")] == [0, 15, 30, 50]
    assert [step for step, _ in points_of(run, tmp_path, to, "train/lr")] == list(range(1, 51))
    assert points_of(run, tmp_path, to, "events/loss_spike", "events") == [(20, 1)]
    assert points_of(run, tmp_path, to, "events/non_finite_step", "events") == [(30, 1)]


def test_mlflow_has_parameters_artifacts_samples_and_the_outcome(track, tmp_path):
    run = run_folders.write_run(tmp_path / "run", steps=20)
    run_folders.add_samples(run)
    (run / "report.html").write_text("a page")
    track(run, "--to", "mlflow", "--project", "tries", "--name", "first")
    found = Mlflow(tmp_path, run)
    assert found.run.data.params["optimizer.lr"] == "0.001"
    assert found.run.data.params["student.path"] == "models/student"
    assert found.run.info.status == "FINISHED" and found.run.info.run_name == "first"
    assert found.run.data.tags["outcome"] == "finished after step 20"
    assert {"report.html", "config.yaml", "events.jsonl", "samples"} <= found.artifacts()
    assert found.artifacts("samples") == {"samples/step-00000025.md", "samples/step-00000050.md"}
    history = found.client.get_metric_history(found.run_id, "train/loss")
    assert [metric.timestamp for metric in history] == [line["time_ms"] for line in recorded(run)]


def test_wandb_has_the_configuration_the_page_and_the_samples(track, tmp_path):
    run = run_folders.write_run(tmp_path / "run", steps=20)
    run_folders.add_samples(run)
    (run / "report.html").write_text("a page")
    track(run)
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    records = list(wandb_file.records(path))
    config = {
        item.key: json.loads(item.value_json)
        for record in records
        if record.HasField("run")
        for item in record.run.config.update
    }
    assert config["optimizer"] == {"lr": 0.001} and config["train"] == {"steps": 20}
    assert {record.request.log_artifact.artifact.type or record.artifact.type for record in records} >= {"report"}
    rows = [row for row in wandb_file.history(path) if "generated/step" in row]
    assert [(row["generated/step"], row["generated/samples/nrows"]) for row in rows] == [(25, 2), (50, 2)]
    axes = {
        record.metric.name or record.metric.glob_name: record.metric.step_metric
        for record in records
        if record.HasField("metric")
    }
    assert axes["train/*"] == "train/step" and axes["eval/*"] == "eval/step"


def test_a_run_that_went_another_way_is_noticed(track, tmp_path):
    run = run_folders.write_run(tmp_path / "run", steps=20)
    track(run, "--to", "mlflow")
    changed = [
        {**line, "loss": 9.0} if "loss" in line else line
        for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    ]
    run_folders.write_lines(run / "metrics.jsonl", changed)
    assert "--new sends everything to a new run" in track(run, "--to", "mlflow")
    before = Mlflow(tmp_path, run).run_id
    track(run, "--to", "mlflow", "--new")
    assert Mlflow(tmp_path, run).run_id != before
    assert Mlflow(tmp_path, run).points("train/loss")[0] == (1, 9.0)


def test_what_the_state_does_not_know_is_not_sent_twice(track, tmp_path):
    """As after a kill: the service has the points, the state file is older."""
    run = run_folders.write_run(tmp_path / "run", steps=20)
    track(run, "--to", "mlflow")
    state = json.loads((run / "track-mlflow.json").read_text())
    (run / "track-mlflow.json").write_text(json.dumps({**state, "last_step": 3, "last_evaluation": -1}))
    track(run, "--to", "mlflow")
    check_points(run, tmp_path, "mlflow")


def test_follow_ends_with_the_run(track, tmp_path):
    run = run_folders.write_run(tmp_path / "run", steps=10, ended=False)
    with open(run / ".lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        assert "is being written" in track(run, "--to", "mlflow")
        assert Mlflow(tmp_path, run).run.info.status == "RUNNING"

        def go_on():
            time.sleep(4)
            with open(run / "metrics.jsonl", "a") as file:
                for step in range(11, 31):
                    file.write(json.dumps(run_folders.step_metrics(step)) + "\n")
            with open(run / "sessions.jsonl", "a") as file:
                file.write(json.dumps(run_folders.end(30, "stopped")) + "\n")

        writer = threading.Thread(target=go_on)
        writer.start()
        track(run, "--to", "mlflow", "--follow", "--interval", "0.5")
        writer.join()
    check_points(run, tmp_path, "mlflow")
    assert Mlflow(tmp_path, run).run.info.status == "KILLED"


@pytest.mark.parametrize("to", ["wandb", "mlflow"])
def test_a_missing_package_is_named(track, tmp_path, to):
    (tmp_path / "stubs" / to).mkdir(parents=True)
    (tmp_path / "stubs" / to / "__init__.py").write_text("raise ImportError('not here')")
    run = run_folders.write_run(tmp_path / "run")
    assert f"pip install {to}" in track(run, "--to", to, code=1, PYTHONPATH=str(tmp_path / "stubs"))


def test_no_run_and_a_damaged_line_are_named(track, tmp_path):
    assert "expected a run folder, found nothing" in track(tmp_path / "nothing", code=1)
    (tmp_path / "empty").mkdir()
    assert "found no metrics.jsonl" in track(tmp_path / "empty", code=1)
    run = run_folders.write_run(tmp_path / "run", steps=10)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[6] = "{"
    (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 11, "lo')
    assert "metrics.jsonl:7: expected a JSON object" in track(run, "--to", "mlflow", code=1)
    assert [step for step, _ in Mlflow(tmp_path, run).points("train/lr")] == [1, 2, 3, 4, 5]
