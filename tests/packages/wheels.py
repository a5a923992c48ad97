"""Builds a wheel of this repository and installs it alone into a fresh environment that has torch from .venv.

DISTILL_WHEELS names a folder of finished wheels to install instead, for a machine that cannot build any.
"""

import fcntl
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("DISTILL_BUILD", ROOT / "build" / "release"))


def checked(*command, **settings):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **settings)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def version_of(wheel, name):
    """The local part of the version in a wheel's name."""
    return re.fullmatch(rf"{name}-[\d.]+\+([\w.]+)-py3-none-linux_\w+\.whl", wheel.name)[1]


def local_version(has_kernels):
    """What the name of a wheel for the torch of this Python has to say."""
    label = f"cu{torch.version.cuda.replace('.', '')}" if has_kernels else "cpu"
    return f"torch{torch.__version__.split('+')[0]}.{label}"


def needs_cuda(library):
    return re.search(r"\(NEEDED\).*\[libtorch_cuda\.so\]", checked("readelf", "-d", library)) is not None


def fake_torch(folder, version, cuda):
    """What is looked at in the folder of a torch package."""
    (folder / "lib").mkdir(parents=True)
    for name in ("libtorch_cpu.so", *(["libtorch_cuda.so"] if cuda else [])):
        (folder / "lib" / name).touch()
    (folder / "version.py").write_text(f"__version__ = {version!r}\ncuda = {cuda!r}\n")
    return str(folder)


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
    (wheel,) = Path(finished or folder).resolve().glob(f"{name.replace('-', '_')}-*.whl")
    return Environment(folder / "environment", wheel)
