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
    "mode, rounds, ranks, teachers",
    [
        ("kill", 10, 4, 1),
        ("kill", 6, 2, 2),
        ("disk", 3, 4, 1),
        ("flip", 3, 2, 1),
        ("stop", 3, 2, 1),
        ("start", 6, 2, 1),
    ],
)
def test_disturbed_runs_equal_undisturbed_ones(tmp_path, mode, rounds, ranks, teachers):
    if mode == "disk" and not can_mount():
        pytest.skip("needs root or user namespaces, to mount a small tmpfs")
    sizes = ["--mode", mode, "--rounds", rounds, "--ranks", ranks, "--teachers", teachers, "--steps", 30]
    command = [sys.executable, SCRIPT, *sizes, "--work", tmp_path / "work"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert f"passed: {rounds} disturbances" in done.stdout
