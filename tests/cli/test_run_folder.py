"""The life of a run folder: trained, refused, overwritten, stopped by a signal, resumed."""

import json
import re


def steps(run):
    return [
        line["step"] for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "eval" not in line
    ]


def test_a_run_is_refused_then_replaced_and_what_stands_beside_it_stays(distill, place):
    train = ["--config", "config.yaml"]
    assert distill(place, *train).returncode == 0
    run = place / "run"
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "events.jsonl",
        "log.txt",
        "metrics.jsonl",
        "model",
        "report.html",
        "sessions.jsonl",
    ]
    assert steps(run) == [1, 2]
    assert re.search(r" I models: loaded or initialised in \d+\.\d s\n", (run / "log.txt").read_text())
    trained = (run / "model" / "model.safetensors").read_bytes()

    again = distill(place, *train)
    assert again.returncode == 2
    assert "--resume" in again.stderr and "--overwrite" in again.stderr
    assert (run / "model" / "model.safetensors").read_bytes() == trained

    (run / "notes.md").write_text("mine")
    refused = distill(place, *train, "--overwrite")
    assert refused.returncode == 2 and "notes.md" in refused.stderr
    assert steps(run) == [1, 2]
    (run / "notes.md").unlink()

    assert distill(place, *train, "--overwrite", "--set", "train.steps=3").returncode == 0
    assert steps(run) == [1, 2, 3]

    # The resolved configuration runs the same again.
    assert distill(place, "--config", "run/config.yaml", "--set", "run.dir=again").returncode == 0
    assert (place / "again" / "config.yaml").read_text().replace("again", "run") == (run / "config.yaml").read_text()
    assert (place / "again" / "model" / "model.safetensors").read_bytes() == (
        run / "model" / "model.safetensors"
    ).read_bytes()


def test_inspect_describes_a_run_and_its_checkpoint(distill, place):
    assert distill(place, "--config", "config.yaml", "--set", "eval.every=1").returncode == 0
    done = distill(place, "inspect", "run")
    assert done.returncode == 0, done.stderr
    for text in ("steps done               2 of 2", "step-2", "training after step 2", "evaluation after step 2"):
        assert text in done.stdout
    done = distill(place, "inspect", "run/checkpoints/step-2")
    assert done.returncode == 0, done.stderr
    for text in (
        "complete         yes",
        "samples          8",
        "block 0",
        "ranks            sharded over 1, 1 replica(s)",
        "format version 3",
        "data stage       from sample 0: seq_len",
    ):
        assert text in done.stdout


def test_a_damaged_checkpoint_is_an_error(distill, place):
    assert distill(place, "--config", "config.yaml").returncode == 0
    index = place / "run" / "checkpoints" / "step-2" / "index.json"
    index.write_text("{}")
    done = distill(place, "--config", "config.yaml", "--resume", "--set", "train.steps=3")
    assert done.returncode == 2
    assert "index.json" in done.stderr
