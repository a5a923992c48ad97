"""A part of kill_test.py, which runs longer by itself: runs disturbed at random instants lose nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "checks" / "kill_test.py"


def can_mount():
    if os.geteuid() == 0:
        return True
    return (
        subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], capture_output=True).returncode == 0
    )


@pytest.mark.parametrize(
    "mode, rounds, ranks", [("kill", 10, 4), ("disk", 3, 4), ("flip", 3, 2), ("stop", 3, 2), ("start", 6, 2)]
)
def test_disturbed_runs_equal_undisturbed_ones(tmp_path, mode, rounds, ranks):
    if mode == "disk" and not can_mount():
        pytest.skip("needs root or user namespaces, to mount a small tmpfs")
    sizes = ["--mode", mode, "--rounds", rounds, "--ranks", ranks, "--steps", 30, "--work", tmp_path / "work"]
    command = [sys.executable, SCRIPT, *sizes]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert f"passed: {rounds} disturbances" in done.stdout
