"""train_cache_kinds.sh: one table of all kinds, from runs that are not repeated and do not stop one another."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "training"))

import tiny
from token_shard import write_shard

VOCAB = 512  # more than the 256 most probable tokens of the comparison


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    tiny.make_model(folder / "student", "llama", 1, tied=False, vocab=VOCAB)
    tiny.make_model(folder / "teacher", "llama", 2, tied=False, vocab=VOCAB, hidden=64, layers=3)
    random = np.random.default_rng(1)
    for name, count in (("train", 12), ("eval", 4)):
        (folder / "data" / name).mkdir(parents=True)
        lengths = random.integers(50, 400, count)
        documents = [(random.integers(0, VOCAB, length), np.ones(length, dtype=bool)) for length in lengths]
        write_shard(folder / "data" / name / "shard-0.dtok", documents, VOCAB)
    return folder


def train(quickstart, out, code=0, **settings):
    variables = {"QUICKSTART": quickstart, "DISTILL": tiny.binary(), "PYTHON": sys.executable, "STEPS": 12, "BATCH": 2}
    variables |= {"JOBS": 2, "LIBRARY": "absent", "OMP_NUM_THREADS": 1} | settings
    done = subprocess.run(
        [tiny.REPOSITORY / "scripts" / "studies" / "train_cache_kinds.sh", out],
        env=os.environ | {key: str(value) for key, value in variables.items()},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows[2:]}, done


def test_a_table_of_all_kinds_whose_runs_are_not_repeated(quickstart, tmp_path):
    settings = {"KINDS": "online hidden-int8 topk-16 sampled-12", "SEEDS": "1 2"}
    table, done = train(quickstart, tmp_path / "out", **settings)
    assert "the table has no KL of the rows" in done.stderr
    assert {kind: row[0].strip() for kind, row in table.items()} == {
        "online": "",
        "hidden-int8": str(64 + 2),
        "topk-16": str(16 * 4 + 4),
        "sampled-12": str(12 * 2),
    }
    assert all(float(row[3]) > 0 and float(row[4]) >= 0 and row[6] == "2" for row in table.values())
    assert float(table["hidden-int8"][3]) == pytest.approx(float(table["online"][3]), rel=1e-2)
    (tmp_path / "out" / "topk-16-2.json").unlink()  # as if the call had been killed before
    again, done = train(quickstart, tmp_path / "out", **settings)
    assert again == table
    assert done.stdout.count("trained: ") == 1 and "captured: " not in done.stdout


def test_what_fails_does_not_stop_the_others(quickstart, tmp_path):
    table, done = train(quickstart, tmp_path / "out", code=1, KINDS="topk-600 sampled-12", SEEDS="1")
    assert "cache.topk: expected at most the vocabulary, 512 tokens, found 600" in done.stderr
    assert float(table["sampled-12"][3]) > 0 and table["topk-600"][6] == "0"
    _, done = train(quickstart, tmp_path / "out", code=1, KINDS="sampled-12", SEEDS="1", STEPS=13)
    assert "holds runs of other settings" in done.stderr
