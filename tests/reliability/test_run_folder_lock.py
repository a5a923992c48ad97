"""A run folder belongs to one job: all others are refused and change nothing, and a job that dies leaves no lock."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

import jobs
import tiny

STEPS = 60


@pytest.fixture
def config(tmp_path, parts):
    """Writes a configuration with run.dir tmp_path/run and returns its path."""

    def write(ranks=1, steps=STEPS):
        sections = {
            "parallel": {"processes": ranks},
            "train": {"steps": steps, "micro_batch_size": 2},
            "checkpoint": {"every": 5},
            "scheduler": {"type": "constant", "warmup_steps": 0},
        }
        content = tiny.base_config(tmp_path, *parts, **sections)
        return tiny.write_config(tmp_path, content)

    return write


class Started:
    """A running job."""

    def __init__(self, config_file, *flags, **environment):
        self.output = Path(config_file).parent / f"output-{time.monotonic_ns()}.txt"
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(
                [tiny.binary(), "--config", config_file, *flags],
                stdout=output,
                stderr=output,
                env=tiny.environment() | environment,
            )

    def ranks(self):
        """Process ids of the ranks, rank 0 first."""
        return jobs.ranks_of(self.process) or [self.process.pid]

    def signal(self, number):
        for pid in self.ranks():
            os.kill(pid, number)

    def stopped(self):
        """Whether every thread of the ranks is: a thread may still write for a moment after SIGSTOP was sent."""
        threads = [thread for pid in self.ranks() for thread in Path(f"/proc/{pid}/task").iterdir()]
        return all((thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)

    def wait(self):
        code = self.process.wait(timeout=120)
        return code, self.output.read_text()

    def end(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.kill()
            self.process.wait()


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def steps_of(run):
    return [record["step"] for record in tiny.read_metrics(run)[0]]


def check_complete(run, steps=STEPS):
    assert steps_of(run) == list(range(1, steps + 1))
    assert (run / "model" / "model.safetensors").exists()
    assert not (run / ".lock").exists()


@pytest.fixture
def held_job(config, tmp_path, request):
    """A job with a checkpoint, whose ranks are stopped, so that nothing in its folder changes by itself."""
    job = Started(config(ranks=request.param))
    run = tmp_path / "run"
    jobs.until(lambda: jobs.complete_checkpoints(run), job.process, pause=0.002)
    job.signal(signal.SIGSTOP)
    jobs.until(job.stopped, job.process)
    yield job
    job.end()


@pytest.mark.parametrize("held_job", [1, 2], indirect=True)
def test_whatever_writes_to_a_folder_in_use_is_refused(tmp_path, config, held_job):
    run, file = tmp_path / "run", str(tmp_path / "config.yaml")
    before = content(run)
    holder = json.loads((run / ".lock").read_text())
    assert holder["pid"] == held_job.ranks()[0] and holder["host"] == socket.gethostname()
    checkpoint = jobs.complete_checkpoints(run)[0]
    for command in (
        ["--config", file],
        ["--config", file, "--overwrite"],
        ["--config", file, "--resume"],
        ["--config", file, "--resume-from", checkpoint],
        ["--config", file, "--resume", "--dry-run"],
        ["--config", file, "--overwrite", "--set", "parallel.processes=3", "--set", "train.micro_batch_size=1"]
        + ["--set", "train.global_batch_size=3"],
        ["replay", "--config", file, "--step", "3"],
    ):
        refused = tiny.distill(*command, code=tiny.BAD_INPUT)
        assert (
            f"run.dir: {run} is in use by process {holder['pid']} on host {holder['host']} since {holder['since']}"
            in refused.stderr
        ), refused.stderr
    assert content(run) == before
    assert sorted(path.name for path in run.iterdir()) == [
        ".lock",
        "checkpoints",
        "config.yaml",
        "events.jsonl",
        "log.txt",
        "metrics.jsonl",
        "sessions.jsonl",
    ]

    held_job.signal(signal.SIGCONT)
    code, output = held_job.wait()
    assert code == tiny.SUCCESS, output
    check_complete(run)


@pytest.mark.parametrize("held_job", [1], indirect=True)
def test_ranks_of_a_launcher_are_refused_alike(tmp_path, config, held_job):
    run = tmp_path / "run"
    before = content(run)
    environment = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    environment["MASTER_PORT"] = tiny.free_port()
    ranks = [
        Started(str(tmp_path / "config.yaml"), "--overwrite", RANK=rank, LOCAL_RANK=rank, **environment)
        for rank in ("0", "1")
    ]
    results = [rank.wait() for rank in ranks]
    assert [code for code, _ in results] == [tiny.BAD_INPUT, tiny.BAD_INPUT], results
    assert "is in use by process" in results[0][1] and "other rank(s) failed" in results[1][1]
    assert content(run) == before


@pytest.mark.parametrize("held_job", [2], indirect=True)
def test_reading_a_folder_in_use_works(tmp_path, held_job):
    run = tmp_path / "run"
    before = content(run)
    assert re.search(rf"in use by +process {held_job.ranks()[0]} on host", tiny.distill("inspect", run).stdout)
    tiny.distill("verify", run)
    tiny.distill("export", "--checkpoint", run, "--out", tmp_path / "exported")
    assert (tmp_path / "exported" / "model.safetensors").exists()
    branch = ["--set", f"run.dir={tmp_path / 'branch'}", "--resume-from", next((run / "checkpoints").glob("step-?"))]
    tiny.distill("--config", tmp_path / "config.yaml", *branch)
    assert (tmp_path / "branch" / "model" / "model.safetensors").exists()
    assert content(run) == before


@pytest.mark.parametrize("ranks, victim", [(1, "rank 0"), (2, "rank 0"), (2, "launcher")])
def test_a_killed_job_leaves_no_lock(tmp_path, config, ranks, victim):
    run, file = tmp_path / "run", config(ranks)
    job = Started(file)
    jobs.until(lambda: jobs.complete_checkpoints(run), job.process, pause=0.002)
    pid = job.ranks()[0]
    os.kill(job.process.pid if victim == "launcher" else pid, signal.SIGKILL)
    # At once: ranks that are about to die must not stand in the way.
    resumed = tiny.distill("--config", file, "--resume")
    job.end()
    said = rf"the lock of {run} was left by process {pid} on host {socket.gethostname()} since .* has been taken over"
    assert re.search(said, resumed.stderr), resumed.stderr
    assert re.search(said, (run / "log.txt").read_text())
    check_complete(run)
    assert "taken over" not in tiny.distill("--config", file, "--overwrite").stderr


def test_a_signal_and_a_failed_start_release_the_folder(tmp_path, config):
    run = tmp_path / "run"
    tiny.distill("--config", config(), "--set", "memory.limit_gib=0.0001", "--set", "memory.budget_gib=0.0001", code=4)
    assert not run.exists(), "nothing was written"
    job = Started(config(steps=100000))
    jobs.until(lambda: jobs.steps_done(run), job.process)
    job.signal(signal.SIGTERM)
    code, output = job.wait()
    assert code == tiny.STOPPED_BY_SIGNAL, output
    assert not (run / ".lock").exists()
    assert "taken over" not in tiny.distill("--config", config(steps=steps_of(run)[-1] + 2), "--resume").stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_two_first_starts_leave_one_run(tmp_path, config, ranks):
    run, file = tmp_path / "run", config(ranks, steps=15)
    for _ in range(3):
        results = [job.wait() for job in (Started(file), Started(file))]
        assert sorted(code for code, _ in results) == [tiny.SUCCESS, tiny.BAD_INPUT], results
        refused = next(output for code, output in results if code == tiny.BAD_INPUT)
        assert "is in use by process" in refused or "is not empty" in refused, refused
        check_complete(run, 15)
        subprocess.run(["rm", "-r", run], check=True)
