"""Stopping and resuming changes no bit; a signal loses nothing."""

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import tiny

TIMES = ("seconds", "phase_seconds", "tokens_per_second", "peak_memory_bytes", "mfu_causal", "mfu_full")


def timeless(records):
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


@pytest.fixture
def config(tmp_path, models, ragged_shard):
    def build(name, steps, **sections):
        student, teacher = models["qwen3"]
        data = {"shuffle": True, "packing": "pack", "seed": 5, "eval": [{"path": ragged_shard}]}
        return tiny.base_config(tmp_path / name, student, teacher, ragged_shard, data=data, train={"steps": steps},
                                eval={"every": 4, "batches": 2}, **sections)
    return build


@pytest.mark.parametrize("threads", [1, 2])
def test_two_halves_equal_the_whole_bit_for_bit(tmp_path, config, threads):
    whole = config("whole", 12, checkpoint={"every": 6})
    run = tiny.train(tmp_path / "whole", whole, threads=threads)
    expected, metrics = files(run / "model"), tiny.read_metrics(run)

    # The second run has done all 12 steps too; the end of it is then lost, as if it had been killed after step 6.
    half = config("half", 12, checkpoint={"every": 6})
    run = tiny.train(tmp_path / "half", half, threads=threads)
    checkpoints = sorted((run / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    assert [path.name for path in checkpoints] == ["step-6", "step-12"]
    shutil.rmtree(checkpoints[1])
    shutil.rmtree(run / "model")
    tiny.train(tmp_path / "half", half, "--resume", threads=threads)
    assert files(run / "model") == expected
    for found, reference in zip(tiny.read_metrics(run), metrics):
        assert timeless(found) == timeless(reference)


def stop_after(steps, configuration, folder, number, *flags):
    """Starts a run and signals it once `steps` steps are in metrics.jsonl. Returns the exit code and its output."""
    path = tiny.write_config(folder, configuration)
    with open(Path(folder) / "output.txt", "w+") as output:
        process = subprocess.Popen([tiny.binary(), "--config", path, *flags], stdout=output, stderr=output,
                                   env=tiny.environment())
        lines = Path(configuration["run"]["dir"]) / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if lines.exists() and len(lines.read_text().splitlines()) >= steps:
                break
            time.sleep(0.01)
        process.send_signal(number)
        code = process.wait(timeout=60)
        output.seek(0)
        return code, output.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_resumed_run_equals_the_whole(tmp_path, config, number):
    steps = 300
    expected = tiny.train(tmp_path / "whole", config("whole", steps))
    stopped = config("stopped", steps)
    code, output = stop_after(10, stopped, tmp_path / "stopped", number)
    run = Path(stopped["run"]["dir"])
    assert code == tiny.STOPPED_BY_SIGNAL, output
    assert "--resume" in output
    done = tiny.read_metrics(run)[0]
    assert 10 - 3 <= len(done) < steps, "the run ended before the signal came: the test needs more steps"
    assert not (run / "model").exists(), "a model is written at the end only"
    assert (run / "checkpoints" / f"step-{len(done)}").is_dir()

    tiny.train(tmp_path / "stopped", stopped, "--resume")
    assert files(run / "model") == files(expected / "model")
    for found, reference in zip(tiny.read_metrics(run), tiny.read_metrics(expected)):
        assert timeless(found) == timeless(reference)


def test_a_killed_run_resumes_from_its_newest_complete_checkpoint(tmp_path, config):
    steps = 300
    expected = tiny.train(tmp_path / "whole", config("whole", steps))
    killed = config("killed", steps, checkpoint={"every": 5})
    code, output = stop_after(20, killed, tmp_path / "killed", signal.SIGKILL)
    assert code == -signal.SIGKILL, output
    run = Path(killed["run"]["dir"])
    # A checkpoint that was being written when the machine died: unfinished, and newer than every complete one.
    newest = max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.split("-")[1]))
    torn = run / "checkpoints" / "step-299"
    torn.mkdir()
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    (torn / largest.name).write_bytes(largest.read_bytes()[:1000])
    tiny.train(tmp_path / "killed", killed, "--resume")
    assert files(run / "model") == files(expected / "model")
    assert [record["step"] for record in tiny.read_metrics(run)[0]] == list(range(1, steps + 1))


def test_a_run_folder_is_neither_overwritten_nor_resumed_without_being_asked(tmp_path, config):
    first = config("run", 4)
    run = tiny.train(tmp_path / "run", first)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    refused = tiny.distill("--config", tiny.write_config(tmp_path / "run", first), code=tiny.BAD_INPUT)
    assert "--resume" in refused.stderr and "--overwrite" in refused.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    tiny.train(tmp_path / "run", first, "--overwrite")
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["step"] == 1
    assert files(run / "model")["model.safetensors"] == before[run / "model" / "model.safetensors"]
