import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def script():
    """Runs a script of this repository; returns its output (standard error where it fails) and checks the exit code."""

    def run(name, *arguments, code=0):
        done = subprocess.run([sys.executable, SCRIPTS / name, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == code, (
            f"{name}: expected exit code {code}, found {done.returncode}\n{done.stdout}{done.stderr}"
        )
        assert "Traceback" not in done.stderr
        return done.stderr if code else done.stdout

    return run
