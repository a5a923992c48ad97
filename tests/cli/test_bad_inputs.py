"""Every bad input gives its error and exit code, no crash, and leaves no file behind."""

import hashlib
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import bad_files
import bad_settings

GROUPS = {
    "command line": bad_settings.COMMAND_LINE,
    "config file": bad_settings.CONFIG_FILES,
    "override": bad_settings.OVERRIDES,
    "on-policy": bad_settings.ON_POLICY,
    "path": bad_files.PATHS,
    "run folder": bad_files.RUN_FOLDERS,
    "model folder": bad_files.MODEL_FOLDERS,
    "safetensors": bad_files.SAFETENSORS,
    "token shard": bad_files.SHARDS,
    "tokenizer": bad_files.TOKENIZERS,
    "plan": bad_settings.PLANS,
}
ROWS = {f"{group}: {row.name}": row for group, rows in GROUPS.items() for row in rows}


def snapshot(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="session")
def outcomes(request, distill, job, tmp_path_factory):
    """Runs the selected rows, two at a time: {row: future of (completed process, before, after)}."""
    folder = tmp_path_factory.mktemp("rows")

    def run(name):
        row = ROWS[name]
        place = folder / hashlib.sha256(name.encode()).hexdigest()[:12]
        shutil.copytree(job, place)
        if row.change is not None:
            row.change(place)
        before = snapshot(place)
        done = distill(place, *row.arguments())
        after = snapshot(place)
        shutil.rmtree(place)
        return done, before, after

    selected = [item.callspec.params["name"] for item in request.session.items if "outcomes" in item.fixturenames]
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(run, name) for name in selected}


@pytest.mark.parametrize("name", ROWS)
def test_bad_input(name, outcomes):
    done, before, after = outcomes[name].result()
    row = ROWS[name]
    assert done.returncode == row.code, f"exit code {done.returncode}, expected {row.code}\n{done.stdout}{done.stderr}"
    for text in row.says:
        assert text in done.stderr, f"{text!r} is not in the error:\n{done.stderr}"
    for trace in ("terminate called", "Sanitizer", "runtime error:", "Exception raised from", "Segmentation"):
        assert trace not in done.stderr, done.stderr
    assert len(done.stderr) < 6000, done.stderr
    assert after == before, f"files changed: {set(after.items()) ^ set(before.items())}"
