"""A run in which something hangs ends, says where it was, and keeps what it had saved."""

import os
import signal
import time

import pytest

import jobs
import tiny

pytestmark = pytest.mark.alone  # limits of 2 s, which a busy machine may take for a step
LONG = {"steps": 100000, "micro_batch_size": 1, "global_batch_size": 4}


@pytest.fixture
def job(tmp_path, parts):
    """Two ranks under way; the second one is stopped, as a process in a dead driver or file system is."""
    processes = []

    def start(**run):
        config = tiny.base_config(
            tmp_path,
            *parts,
            train=LONG,
            parallel={"processes": 2},
            checkpoint={"every": 5},
            scheduler={"type": "constant", "warmup_steps": 0},
        )
        config["run"] |= run
        process = tiny.start(tiny.write_config(tmp_path, config))
        processes.append(process)
        jobs.until(lambda: jobs.complete_checkpoints(tmp_path / "run"), process)
        ranks = jobs.ranks_of(process)
        os.kill(ranks[1], signal.SIGSTOP)
        return process, ranks, tmp_path / "run"

    yield start
    for process in processes:
        process.kill()


def resumes(run, folder):
    steps = [int(path.name.split("-")[1]) for path in jobs.complete_checkpoints(run)]
    done = tiny.distill("--config", folder / "config.yaml", "--resume", "--set", f"train.steps={max(steps) + 1}")
    assert f"after step {max(steps)}" in done.stderr


def test_a_step_that_hangs_ends_the_run_with_its_place_and_the_stacks(tmp_path, job):
    process, _, run = job(step_timeout_s=2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == tiny.RUNTIME_FAILURE
    assert "rank 0: no progress for" in errors and "run.step_timeout_s: 2" in errors
    stacks = (run / "stacks-rank0.txt").read_text()
    assert "distill::trainer::train(" in stacks and stacks.count("thread ") > 3
    resumes(run, tmp_path)


def test_a_run_that_cannot_stop_in_time_ends_within_its_grace(tmp_path, job):
    process, ranks, run = job(grace_s=2)
    began = time.monotonic()
    os.kill(ranks[0], signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 15
    assert process.returncode == tiny.RUNTIME_FAILURE
    assert "did not stop within run.grace_s, 2 s, after signal 15" in errors
    assert (run / "stacks-rank0.txt").exists()
    resumes(run, tmp_path)
