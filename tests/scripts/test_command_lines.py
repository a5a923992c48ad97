"""Every script that a user or a developer starts shows its usage and refuses an option that it does not know."""

import argparse
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from shared.command_line import at_least

ROOT = Path(__file__).resolve().parents[2]
LISTED = subprocess.run(["git", "ls-files", "--stage", "scripts"], cwd=ROOT, capture_output=True, text=True, check=True)
# What git has as executable; the others are imported or sourced.
STARTED = [line.split("\t")[1] for line in LISTED.stdout.splitlines() if line.startswith("100755")]
# Arguments before the unknown option: a command, or what the script takes before the option is reached.
BEFORE = {"scripts/studies/quality.sh": [[], ["gpu"]], "scripts/build_wheels.sh": [[], ["dist"], ["dist", "release"]]}


def test_every_program_is_executable():
    programs = {name for name in git_files("scripts") if (ROOT / name).read_bytes()[:2] == b"#!"}
    assert programs == set(STARTED) and len(programs) > 30


def git_files(folder):
    return subprocess.run(
        ["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The scripts in a folder of their own, in which anything that one writes can be seen."""
    folder = tmp_path_factory.mktemp("repository")
    shutil.copytree(ROOT / "scripts", folder / "scripts", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".venv", "tests"):  # the interpreter, and what scripts/checks/kill_test.py imports
        (folder / name).symlink_to(ROOT / name)
    return folder


def contents(folder):
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def started(copy, name, *arguments):
    """The process of a script that wrote nothing into its repository."""
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
    }
    before = contents(copy)
    done = subprocess.run(
        [copy / name, *arguments],
        cwd=copy,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert contents(copy) == before, f"{name} {arguments} wrote something"
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("name", STARTED)
def test_help_and_unknown_options(copy, name):
    done = started(copy, name, "--help")
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert Path(name).name in done.stdout and len(done.stdout.splitlines()) >= 2
    for before in BEFORE.get(name, [[]]):
        done = started(copy, name, *before, "--no-such-option")
        assert done.returncode == 2 and not done.stdout, done.stderr
        assert "--no-such-option" in done.stderr or "required" in done.stderr


@pytest.mark.parametrize(
    "name, option, least",
    [
        ("generate.py", "--tokens", 1),
        ("eval_tasks.py", "--batch", 1),
        ("eval_tasks.py", "--limit", 1),
        ("eval_tasks.py", "--shots", 0),
        ("prune_width.py", "--tokens", 1),
        ("import_teacher.py", "--topk", 1),
        ("import_teacher.py", "--vocab-size", 1),
    ],
)
def test_counts_that_mean_nothing_are_refused(copy, name, option, least):
    done = started(copy, f"scripts/{name}", f"{option}={least - 1}")
    assert done.returncode == 2
    assert f"argument {option}: expected an integer of at least {least}, found '{least - 1}'" in done.stderr


@pytest.mark.parametrize("text, number", [("3", 3), ("2", None), ("x", None), ("1.5", None), ("", None)])
def test_a_count_is_an_integer_of_at_least_the_least(text, number):
    if number is not None:
        assert at_least(3)(text) == number
    else:
        with pytest.raises(argparse.ArgumentTypeError, match=f"at least 3, found '{text}'"):
            at_least(3)(text)


def test_a_folder_that_bundle_has_not_made_is_not_removed(copy, tmp_path):
    (tmp_path / "mine").write_text("mine")
    done = subprocess.run([copy / "scripts/bundle.sh", tmp_path], capture_output=True, text=True)
    assert done.returncode == 2 and f"{tmp_path} holds other files" in done.stderr, done.stderr
    assert (tmp_path / "mine").read_text() == "mine"
