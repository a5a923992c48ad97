import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
for folder in (SCRIPTS, SCRIPTS / "benches", SCRIPTS / "checks", SCRIPTS / "studies"):
    sys.path.append(str(folder))  # for tests that import a script
sys.path.append(str(SCRIPTS.parent / "tests" / "cli"))  # run_folders


@pytest.fixture
def script():
    """Runs a script of this repository; returns its output (standard error where it fails) and checks the exit code."""

    def run(name, *arguments, code=0, output=None):
        # DISTILL_BASE is a commit of this repository, which those of the tests have not.
        variables = {key: value for key, value in os.environ.items() if key != "DISTILL_BASE"}
        command = [sys.executable, SCRIPTS / name, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=variables)
        assert done.returncode == code, (
            f"{name}: expected exit code {code}, found {done.returncode}\n{done.stdout}{done.stderr}"
        )
        assert "Traceback" not in done.stderr
        return done.stderr if code and output != "stdout" else done.stdout

    return run


class Repository:
    """A git repository in a folder of its own, for the checks of files and commits."""

    def __init__(self, folder):
        self.folder = folder
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=self.folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def commit(self, subject):
        """Commits everything; returns the hash."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    return Repository(folder)
