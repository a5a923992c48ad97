"""Builds a wheel of this repository and installs it alone into a fresh environment that has torch from .venv.

DISTILL_WHEELS names a folder of finished wheels to install instead, for a machine that cannot build any.
"""

import fcntl
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("DISTILL_BUILD", ROOT / "build" / "release"))


def checked(*command, **settings):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **settings)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


class Environment:
    """A virtual environment with one wheel in it; torch and the rest are those of this Python."""

    def __init__(self, folder, wheel):
        self.folder, self.wheel = folder, wheel
        checked(sys.executable, "-m", "venv", "--without-pip", folder)
        self.python = folder / "bin" / "python"
        self.site_packages = next(folder.glob("lib/python3*/site-packages"))
        (self.site_packages / "torch_from_elsewhere.pth").write_text(sysconfig.get_path("purelib") + "\n")
        checked(sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps", wheel)

    def run(self, *command, cwd, code=0, **variables):
        """Runs a program of the environment; returns its output and checks the exit code."""
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", **variables}
        for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
            environment.pop(name, None)
        done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True)
        output = done.stdout + done.stderr
        assert done.returncode == code, f"{command}: expected exit code {code}, found {done.returncode}\n{output}"
        return output


def environment_with(name, tmp_path_factory):
    if BUILD.name == "asan":
        pytest.skip("the wheels are of builds without sanitizers")
    folder = tmp_path_factory.mktemp(name)
    finished = os.environ.get("DISTILL_WHEELS")
    if not finished:
        with open(BUILD / "wheels.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the tests of one wheel may run in two processes
            checked(ROOT / "scripts" / "build_wheels.sh", folder, BUILD.name, name)
    (wheel,) = Path(finished or folder).resolve().glob(f"distill_{name}-*.whl")
    return Environment(folder / "environment", wheel)
