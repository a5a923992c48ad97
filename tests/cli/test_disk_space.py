"""Before a run, the disk that checkpoints and model take is compared with the one that there is."""

import json
import re

import pytest

import tiny_job


def test_a_disk_that_is_too_small_is_a_warning(distill, place):
    big = tiny_job.MODEL | {"hidden_size": 32768, "intermediate_size": 1 << 22, "num_hidden_layers": 1}
    (place / "student" / "config.json").write_text(json.dumps(big))
    sets = ["student.init=random", "memory.on_overflow=warn", "train.steps=50", "checkpoint.every=5"]
    flags = [part for text in sets for part in ("--set", text)]
    done = distill(place, "--config", "config.yaml", "--dry-run", *flags)
    assert done.returncode == 0, done.stderr
    size = r"([\d.]+(?:e\+\d+)?) GB"
    line = re.search(
        rf"disk: {size} for 3 checkpoints of {size} and the model of {size}; {size} available", done.stdout
    )
    assert line, done.stdout
    whole, checkpoint, model, available = map(float, line.groups())
    assert checkpoint == pytest.approx(3 * model, rel=0.01), "12 bytes of a parameter, and 4"
    assert whole == pytest.approx(3 * checkpoint + model, rel=0.01)
    warning = re.search(rf"run\.dir: expected {size} of disk for 3 checkpoints .* found {size} in (\S+);", done.stderr)
    assert warning and float(warning[1]) == whole and warning[3] == str(place), done.stderr
    assert "not even the first checkpoint fits" in done.stderr
    assert not (place / "run").exists()


def test_the_start_report_has_the_disk(distill, place):
    done = distill(place, "--config", "config.yaml")
    assert done.returncode == 0, done.stderr
    assert "of disk for" not in done.stderr
    log = (place / "run" / "log.txt").read_text()
    assert re.search(
        r" I disk: \S+ GB for 1 checkpoint of \S+ GB and the model of \S+ GB; \S+ GB available in /", log
    ), log
