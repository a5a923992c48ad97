"""Every path that a command writes is looked at before anything else, by a dry run as by a start: exit code 2."""

import os
import subprocess

import pytest

import run_folders
from program import distill_program
from test_bad_inputs import snapshot


@pytest.fixture
def place(place, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


IN_THE_WAY = {
    "file/below": "file is a file, where a folder is needed",
    "loop": "loop is a symbolic link that leads back to itself",
    "loop/below": "loop is a symbolic link that leads back to itself",
    "dangling": "dangling is a symbolic link to nowhere, which does not exist",
    "dangling/below": "dangling is a symbolic link to nowhere, which does not exist",
    "/proc/run": "/proc belongs to the kernel, which takes no files there",
    "x" * 300: "longer than the system allows",
    "~/run": "~ is not expanded: write the whole path",
    "runs/$USER/a": "variables are not expanded: write the whole path",
}
COMMANDS = {
    "dry run": ("run.dir", lambda path: ["--config", "config.yaml", "--dry-run", "--set", f"run.dir={path}"]),
    "start": ("run.dir", lambda path: ["--config", "config.yaml", "--set", f"run.dir={path}"]),
    "start on ranks": (
        "run.dir",
        lambda path: ["--config", "config.yaml", "--set", f"run.dir={path}", "parallel.processes=2"],
    ),
    "dry run of a capture": (
        "teacher.cache",
        lambda path: ["capture", "--config", "config.yaml", "--dry-run", "--set", f"teacher.cache={path}"],
    ),
    "capture": (
        "teacher.cache",
        lambda path: ["capture", "--config", "config.yaml", "--set", f"teacher.cache={path}"],
    ),
    "export": ("--out", lambda path: ["export", "--checkpoint", "gone", "--out", path]),
    "profile": ("--out", lambda path: ["profile-memory", "--config", "config.yaml", "--out", path]),
}


@pytest.mark.parametrize(
    "command, path",
    [("dry run", path) for path in IN_THE_WAY] + [(name, path) for name in COMMANDS for path in ("file/below", "loop")],
)
def test_a_folder_that_cannot_be_made_is_refused_before_anything_else(distill, place, command, path):
    name, arguments = COMMANDS[command]
    before = snapshot(place)
    done = distill(place, *arguments(path))
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{name}: expected a folder that can be made or written to, found {path}: " in done.stderr, done.stderr
    assert IN_THE_WAY[path] in done.stderr, done.stderr
    assert "everything checks out" not in done.stdout
    assert snapshot(place) == before


FILES = {
    "report": ("--output", lambda path: ["report", "run", "--output", path]),
    "inspect": ("--html", lambda path: ["inspect", "train", "--tokenizer", "student", "--html", path]),
    "calibrate": ("--calibrate", lambda path: ["plan", "--calibrate", path]),
}


@pytest.mark.parametrize(
    "command, path",
    [("report", path) for path in ("train", "loop", "dangling", "file/page", "gone/page", "pipe", "x" * 300, "~/page")]
    + [(name, path) for name in FILES for path in ("train", "file/page")],
)
def test_a_file_that_cannot_be_made_is_refused_before_anything_else(distill, place, command, path):
    run_folders.write_run(place / "run")
    name, arguments = FILES[command]
    before = snapshot(place)
    done = distill(place, *arguments(path))
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"{name}: expected a file that can be made or replaced, found {path}: " in done.stderr, done.stderr
    assert snapshot(place) == before


def test_a_profile_leaves_what_stands_in_its_folder(distill, place):
    run_folders.write_run(place / "run")
    before = snapshot(place / "run")
    done = distill(place, "profile-memory", "--config", "config.yaml", "--out", ".", "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert snapshot(place / "run") == before and not (place / "distill-profile-run").exists()


def run_read_only(program, place, *arguments):
    """With `place`/disk as a file system that is mounted read-only."""
    mount = 'mount -t tmpfs none disk && mount -o remount,ro disk && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", program, *arguments]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_read_only_file_system_is_named(place, dry_run):
    (place / "disk").mkdir()
    if run_read_only("true", place).returncode != 0:
        pytest.skip("needs user namespaces, to mount a file system")
    flags = ["--dry-run"] if dry_run else []
    for path in ("disk", "disk/run"):
        done = run_read_only(
            str(distill_program()), place, "--config", "config.yaml", "--set", f"run.dir={path}", *flags
        )
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"{place}/disk is on a file system that is mounted read-only" in done.stderr, done.stderr


def test_a_folder_without_permission_is_named(place):
    """As another user than root, who may write everywhere."""
    (place / "closed").mkdir(mode=0o555)
    drop = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if subprocess.run([*drop, "true"], capture_output=True).returncode != 0:
        drop = []  # not root
    place.chmod(0o755)
    visible = subprocess.run([*drop, "test", "-r", str(place / "config.yaml")]).returncode == 0
    if not visible or subprocess.run([*drop, str(distill_program()), "--version"], capture_output=True).returncode != 0:
        pytest.skip("the other user cannot read the job or the program")
    arguments = ["--config", "config.yaml", "--dry-run", "--set", "run.dir=closed/run"]
    done = subprocess.run([*drop, str(distill_program()), *arguments], cwd=place, capture_output=True, text=True)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"there is no permission to make files in {place}/closed" in done.stderr, done.stderr
