"""What a run says and does when a signal arrives, with one process and with ranks that distill has started."""

import os
import select
import signal
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest

import jobs
from program import distill_program

TRAIN = ["--config", "config.yaml", "--set", "scheduler.type=constant", "--set", "data.eval=null"]
FIRST = "distill: SIGINT: finishing the step and saving, then exit code 3; a second SIGINT (Ctrl-C) ends at once"
SECOND = "distill: second SIGINT: ending at once"


@contextmanager
def started(place, *arguments, processes=1, wait=True, **options):
    """A run that would take for ever; it has done a step when the body begins, and is killed afterwards."""
    command = [str(distill_program()), *TRAIN, "--set", "train.steps=1000000000", *arguments]
    if processes > 1:
        command += ["--set", f"parallel.processes={processes}"]
    process = subprocess.Popen(
        command,
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **options.pop("variables", {})},
        **options,
    )
    try:
        if wait:
            jobs.until(lambda: jobs.steps_done(place / "run") > 0, process)
        yield process
    finally:
        process.kill()
        process.communicate()


def is_stopped(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "T"


def answers(address):
    with socket.socket() as client:
        return client.connect_ex(address) == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_the_first_sigint_says_at_once_and_once_what_happens(place, processes):
    with started(place, processes=processes) as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert errors.count(FIRST) == 1 and errors.count("distill: SIGINT") == 1, errors
    assert SECOND not in errors and "--resume" in errors
    done = jobs.steps_done(place / "run")
    assert f"stopped by a signal after step {done}" in (place / "run" / "report.html").read_text()
    assert not (place / "run" / "model").exists()
    assert len(jobs.complete_checkpoints(place / "run")) == 1


def test_the_notice_does_not_wait_for_the_step(place):
    """It is there while the ranks cannot go on."""
    with started(place, processes=2) as process:
        ranks = jobs.ranks_of(process)
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        text, deadline = "", time.monotonic() + 10
        while FIRST not in text and time.monotonic() < deadline:
            if select.select([process.stderr], [], [], 0.1)[0]:
                text += os.read(process.stderr.fileno(), 4096).decode()
        assert FIRST in text, text


@pytest.mark.alone
@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_sigint_ends_at_once_and_says_so(place, distill, processes):
    # Steps that take about a second, so that the second signal arrives in the step of the first.
    long_steps = ["--set", "train.global_batch_size=4000"] if processes == 1 else []
    with started(place, "--set", "checkpoint.every=2", *long_steps, processes=processes) as process:
        jobs.until(lambda: jobs.complete_checkpoints(place / "run"), process)
        ranks = jobs.ranks_of(process) if processes > 1 else []
        for pid in ranks:  # they do not get to their next step
            os.kill(pid, signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        if processes == 1:  # both are handled, however fast the step is
            process.send_signal(signal.SIGSTOP)
            jobs.until(lambda: is_stopped(process.pid), process)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGCONT)
        else:
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, errors = process.communicate(timeout=60)
        assert time.monotonic() - began < 5
    assert process.returncode == -signal.SIGINT, errors
    assert errors.count(FIRST) == 1 and errors.count(SECOND) == 1, errors
    assert "failed first" not in errors
    for pid in ranks:
        assert not os.path.exists(f"/proc/{pid}")
    done = jobs.steps_done(place / "run")
    resumed = distill(
        place, *TRAIN, *long_steps, "--set", f"train.steps={done + 2}", "--set", "checkpoint.every=2", "--resume"
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed from" in resumed.stderr


@pytest.mark.parametrize("processes", [1, 2])
def test_sighup_saves_as_sigterm_does(place, processes):
    with started(place, processes=processes) as process:
        process.send_signal(signal.SIGHUP)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert errors.count("distill: SIGHUP: finishing the step and saving, then exit code 3\n") == 1, errors
    assert len(jobs.complete_checkpoints(place / "run")) == 1


@pytest.mark.parametrize("processes", [1, 2])
def test_sighup_stays_ignored_under_nohup(place, processes):
    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with started(place, processes=processes, preexec_fn=ignore) as process:
        for pid in [process.pid, *jobs.ranks_of(process)]:
            os.kill(pid, signal.SIGHUP)
        before = jobs.steps_done(place / "run")
        jobs.until(lambda: jobs.steps_done(place / "run") > before + 5, process)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert "SIGHUP" not in errors and "distill: SIGTERM: finishing" in errors


def test_a_signal_while_starting_stops_before_the_first_step(place, distill):
    with started(place, processes=2, wait=False) as process:
        jobs.until(lambda: len(jobs.ranks_of(process)) == 2, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 3, errors
    assert errors.count(FIRST) == 1
    done = jobs.steps_done(place / "run")
    assert (place / "run" / "checkpoints" / f"step-{done}" / "COMPLETE").exists()
    resumed = distill(place, *TRAIN, "--set", f"train.steps={done + 2}", "--resume")
    assert resumed.returncode == 0, resumed.stderr


def test_a_rank_that_waits_for_others_ends_within_its_grace(place):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = listener.getsockname()
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": address[0], "MASTER_PORT": str(address[1])}
    with started(place, "--set", "run.grace_s=1", wait=False, variables=variables) as process:
        jobs.until(lambda: answers(address), process)  # rank 0 serves the store
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1, errors
    assert "did not stop within run.grace_s, 1 s, after signal 15" in errors
    assert "phase joining the other ranks" in errors


def test_an_evaluation_says_that_it_has_no_result(place):
    """A signal ends it with exit code 1, which is said at once."""
    arguments = ["eval", "--config", "config.yaml", "--set", "train.micro_batch_size=1"]
    process = subprocess.Popen(
        [str(distill_program()), *arguments], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        # Handled from the moment on that the model is loaded; before that, the default ends the process.
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            with open(f"/proc/{process.pid}/status") as file:
                caught = next(line for line in file if line.startswith("SigCgt"))
            if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
                process.terminate()
                break
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    if process.returncode == 0:
        pytest.skip("the evaluation had ended before the signal")
    assert process.returncode == 1 and output == ""
    assert "distill: SIGTERM: ending the evaluation without a result, then exit code 1" in errors
