"""Running jobs of distill: waiting for what they do, and the processes that they have started."""

import subprocess
import time
from pathlib import Path


def until(condition, process=None, seconds=60, pause=0.01):
    """Waits until `condition()` is true and returns its value; fails when the process has ended or the time is over."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        ended = process is not None and process.poll() is not None
        assert not ended, f"exit code {process.returncode}\n{process.stderr.read() if process.stderr else ''}"
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(pause)
    return value


def ranks_of(process):
    """Process ids of the ranks that a launcher has started, rank 0 first."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return sorted(int(pid) for pid in listed.stdout.split())


def steps_done(run):
    """Lines in the run folder's metrics.jsonl: one for each step and each evaluation."""
    metrics = Path(run) / "metrics.jsonl"
    lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
    return sum('"round":' not in line for line in lines)


def complete_checkpoints(run):
    return sorted(path.parent for path in (Path(run) / "checkpoints").glob("step-*/COMPLETE"))
