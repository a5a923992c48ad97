"""Standard input, output and error that are closed, full or without a reader."""

import json
import os
import resource
import shutil
import subprocess

import pytest

from program import distill_program

TRAIN = ["--config", "config.yaml", "--set", "run.progress=lines", "--set", "eval.every=1"]


@pytest.fixture(scope="module")
def trained(job, tmp_path_factory, distill):
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(job, folder, dirs_exist_ok=True)
    assert distill(folder, "--config", "config.yaml").returncode == 0
    return folder


def run(folder, *args, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [str(distill_program()), *args]
    return subprocess.run(command, cwd=folder, env=environment, text=True, timeout=120, check=False, **options)


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(folder):
    return [line["step"] for line in records(folder / "run" / "metrics.jsonl") if "eval" not in line]


@pytest.mark.parametrize("processes", [1, 2])
def test_closed_descriptors_do_not_become_the_files_of_a_run(place, processes):
    arguments = [*TRAIN, "--set", f"parallel.processes={processes}", "--set", "train.steps=5"]

    def close_all():
        for descriptor in range(3):
            os.close(descriptor)

    done = run(place, *arguments, preexec_fn=close_all)
    assert done.returncode == 0
    assert steps(place) == [1, 2, 3, 4, 5]
    assert records(place / "run" / "events.jsonl") == []
    log = (place / "run" / "log.txt").read_text()
    assert all(line.startswith("20") for line in log.splitlines()), log
    assert (place / "run" / "model" / "model.safetensors").exists()


RESULTS = [
    ["--help"],
    ["--version"],
    ["--help-config"],
    ["eval", "--help"],
    ["plan", "--config", "config.yaml"],
    ["plan", "--config", "config.yaml", "--json"],
    ["eval", "--config", "config.yaml"],
    ["eval", "--config", "config.yaml", "--json"],
    ["--config", "config.yaml", "--dry-run", "--set", "run.dir=other"],
    ["inspect", "run"],
    ["verify", "run"],
    ["report", "run"],
    ["export", "--checkpoint", "run", "--out", "exported"],
    ["replay", "--config", "run/config.yaml", "--step", "1"],
    ["profile-memory", "--config", "config.yaml", "--steps", "1"],
    ["profile-memory", "--config", "config.yaml", "--steps", "1", "--json", "--set", "parallel.processes=2"],
]


@pytest.mark.parametrize("arguments", RESULTS, ids=" ".join)
def test_a_result_that_cannot_be_printed_is_a_failure(trained, arguments):
    shutil.rmtree(trained / "exported", ignore_errors=True)
    with open("/dev/full", "w") as full:
        done = run(trained, *arguments, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1, done.stderr
    assert "standard output: cannot write: No space left on device" in done.stderr


def test_a_result_for_a_closed_standard_output_is_a_failure(trained):
    arguments = ["plan", "--config", "config.yaml", "--json"]
    done = run(trained, *arguments, stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    assert done.returncode == 1
    assert "standard output: expected an open file, found it closed" in done.stderr


def test_a_reader_that_has_enough_of_a_result_is_told_nothing(trained):
    command = f"{distill_program()} --help-config | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=trained, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] in ("0", "1")  # 0: all of it was in the pipe before head ended


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_whose_progress_nobody_reads_goes_on_to_its_end(place, processes):
    arguments = [*TRAIN, "--set", "train.steps=30", "--set", f"parallel.processes={processes}"]
    reading, writing = os.pipe()
    with subprocess.Popen(
        [str(distill_program()), *arguments],
        cwd=place,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        os.close(writing)
        assert os.read(reading, 10)
        os.close(reading)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert steps(place) == list(range(1, 31))
    assert (place / "run" / "model" / "model.safetensors").exists()
    log = (place / "run" / "log.txt").read_text()
    assert log.count("progress cannot be printed on standard output any more") == 1


def test_a_run_with_full_standard_output_and_error_goes_on_to_its_end(place):
    with open("/dev/full", "w") as full:
        done = run(place, *TRAIN, stdout=full, stderr=full)
    assert done.returncode == 0
    assert steps(place) == [1, 2]


def test_a_checkpoint_at_the_file_size_limit_is_an_error_that_names_the_file(place):
    limit = 8000  # less than a checkpoint's 3000 parameters, more than the other files

    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    arguments = ["--config", "config.yaml", "--set", "checkpoint.every=1", "--set", "data.eval=null"]
    done = run(place, *arguments, preexec_fn=limit_files, capture_output=True)
    assert done.returncode == 1, done.stderr
    assert "rank-00000.safetensors: cannot write: File too large" in done.stderr
    assert list((place / "run" / "checkpoints").iterdir()) == []


def test_metrics_at_the_file_size_limit_are_an_error_that_names_the_file(place):
    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))

    arguments = ["--config", "config.yaml", "--set", "train.steps=100000", "--set", "scheduler.type=constant"]
    done = run(place, *arguments, preexec_fn=limit_files, capture_output=True)
    assert done.returncode == 1, done.stderr
    assert "metrics.jsonl: cannot write: File too large" in done.stderr


def test_programs_that_a_command_starts_do_not_ignore_the_signals(place):
    """SIGPIPE and SIGXFSZ are handled and not ignored: what is ignored stays ignored in every program started."""
    log = place / "run" / "log.txt"
    with subprocess.Popen(
        [str(distill_program()), *TRAIN, "--set", "train.steps=1000000", "--set", "scheduler.type=constant"],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while not log.exists():
            assert process.poll() is None
        with open(f"/proc/{process.pid}/status") as file:
            status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
        process.kill()
    for number in (13, 25):  # SIGPIPE, SIGXFSZ
        assert not int(status["SigIgn"], 16) >> (number - 1) & 1
        assert int(status["SigCgt"], 16) >> (number - 1) & 1
