"""One training job of the kill test: its processes, its files, and the results that no disturbance may change."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import event_points
import tiny

TIMES = ("seconds", "phase_seconds", "tokens_per_second", "peak_memory_bytes", "mfu_causal", "mfu_full", "time_ms")
TIMES += ("gathers", "gathered_bytes", "teacher_read")  # the first step of a process has more


class Failure(Exception):
    pass


def expect(condition, message):
    if not condition:
        raise Failure(message)


def timeless(run):
    return [
        [{key: value for key, value in record.items() if key not in TIMES} for record in records]
        for records in tiny.read_metrics(run)
    ]


def result_of(run, steps):
    """The results that no disturbance may change."""
    state = sorted((run / "checkpoints" / f"step-{steps}").glob("rank-*"))
    points = event_points.difference(event_points.raw(run), event_points.recorded(run))
    expect(points == "", f"the event file is not metrics.jsonl: {points}")
    return {
        "metrics": timeless(run),
        "model": [path.read_bytes() for path in sorted((run / "model").iterdir())],
        "state": [path.read_bytes() for path in state],
    }


def complete_steps(run):
    """The steps of all checkpoints with the marker COMPLETE, each of which must have all of its files."""
    steps = []
    for marker in (run / "checkpoints").glob("step-*/COMPLETE"):
        name = marker.parent.name.removeprefix("step-")
        if not name.isdigit():
            continue
        index = json.loads((marker.parent / "index.json").read_text())
        for entry in index["files"]:
            found = (marker.parent / entry["name"]).stat().st_size
            expect(found == entry["bytes"], f"{marker.parent}: {entry['name']} has {found} of {entry['bytes']} bytes")
        steps.append(int(name))
    return sorted(steps)


class Job:
    """One process group of distill: the launcher and its ranks."""

    def __init__(self, config_file, output, *flags):
        self.output = output
        self.file = open(output, "w")  # noqa: SIM115 (wait() closes it)
        self.launcher = subprocess.Popen(
            [tiny.binary(), "--config", str(config_file), *map(str, flags)],
            stdout=self.file,
            stderr=self.file,
            env=tiny.environment(),
        )
        self.began = time.monotonic()

    def ranks(self):
        """Process ids by rank."""
        found = {}
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.launcher.pid)], capture_output=True, text=True
        )
        for pid in map(int, children.stdout.split()):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            ranks = [int(entry[5:]) for entry in environment if entry.startswith(b"RANK=")]
            if ranks:
                found[ranks[0]] = pid
        return found

    def running(self):
        return self.launcher.poll() is None

    def wait(self, seconds=120):
        try:
            code = self.launcher.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            stacks = "\n".join(Path(f"/proc/{pid}/wchan").read_text() for pid in self.ranks().values())
            self.kill_all()
            raise Failure(f"the job did not end within {seconds} s\n{stacks}\n{self.text()[-3000:]}") from None
        self.file.close()
        return code

    def kill_all(self):
        pids = [self.launcher.pid, *self.ranks().values()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids

    def text(self):
        return Path(self.output).read_text()


def wait_until_gone(pids, seconds=30):
    deadline = time.monotonic() + seconds
    for pid in pids:
        while time.monotonic() < deadline:
            try:
                if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    break
            except OSError:
                break
            time.sleep(0.01)
        else:
            raise Failure(f"process {pid} is still there")
