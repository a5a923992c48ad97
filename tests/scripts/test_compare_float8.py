"""compare_float8.py in miniature: all kinds are trained and evaluated alike, and a stop loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import tiny_study


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tiny_study.make(tmp_path_factory.mktemp("float8") / "work")
    (folder / "students" / "half").rename(folder / "student")
    (folder / "data" / "validation").rename(folder / "data" / "eval")
    return folder


def command(work, out, *more):
    sizes = ["--seq-len", tiny_study.LENGTH, "--batch", 4, "--gate-tokens", 500]
    return [
        *(sys.executable, tiny_study.ROOT / "scripts" / "studies" / "compare_float8.py", "--work", work, "--out", out),
        *("--program", tiny_study.PROGRAM, *sizes, *more),
    ]


def results(out):
    return {file.stem: json.loads(file.read_text()) for file in out.glob("*.json")}


def evaluated(work, model, *settings):
    arguments = ["--student", model, "--teacher", work / "teacher", "--data", work / "data" / "eval", "--json", "--set"]
    sets = [f"data.seq_len={tiny_study.LENGTH}", "data.packing=pack", "train.micro_batch_size=4", "eval.batches=0"]
    output = tiny_study.run(tiny_study.PROGRAM, "eval", *arguments, *sets, "loss.divergence=forward_kl", *settings)
    return json.loads(output[output.index("{") :])


def test_all_students_are_evaluated_without_float8(work, tmp_path):
    out = tmp_path / "out"
    said = tiny_study.run(*command(work, out, "--seeds", "1,2", "--steps", 16, "--jobs", 2))
    found = results(out)
    assert set(found) == {f"{kind}-{seed}" for kind in ("bf16", "float8-teacher", "both") for seed in (1, 2)}
    for name, result in found.items():
        model = out / "runs" / name / "model"
        plain = evaluated(work, model)["forward_kl"]
        assert result["alike"]["forward_kl"] == pytest.approx(plain, rel=1e-6)
        assert (result["gate"] is None) == name.startswith("bf16")
        as_trained = result["evaluations"]["16"]
        if name.startswith("bf16"):
            assert as_trained == pytest.approx(plain, rel=1e-6)
        else:  # measured with a float8 teacher, and student for `both`
            assert as_trained != pytest.approx(plain, rel=1e-6)
    both = [result["alike"]["forward_kl"] for name, result in found.items() if name.startswith("both")]
    row = next(line for line in said.splitlines() if line.startswith("| both | 2 |"))
    assert f"| {sum(both) / 2:.4f} ± " in row
    # What is finished is not repeated.
    again = tiny_study.run(*command(work, out, "--seeds", "1,2", "--steps", 16, "--table"))
    assert row in again


def test_a_stopped_run_continues_where_it_was(work, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    arguments = ["--seeds", 1, "--steps", 400]
    process = subprocess.Popen(
        list(map(str, command(work, parts, *arguments))), env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True
    )
    metrics = parts / "runs" / "bf16-1" / "metrics.jsonl"
    end = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text().count("\n") > 20):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    (saved,) = (parts / "runs" / "bf16-1" / "checkpoints").glob("step-*")
    assert 20 <= int(saved.name.removeprefix("step-")) < 400 and not results(parts)
    tiny_study.run(*command(work, parts, *arguments))
    tiny_study.run(*command(work, whole, *arguments))
    assert set(results(parts)) == {"bf16-1", "float8-teacher-1", "both-1"}
    for name, result in results(whole).items():
        assert results(parts)[name]["alike"] == result["alike"], name


def test_a_limit_adds_the_teacher_whose_exceptions_hold_it(work, tmp_path):
    out = tmp_path / "out"
    tiny_study.run(*command(work, out, "--seeds", 1, "--steps", 8, "--jobs", 2))
    whole = results(out)["float8-teacher-1"]["gate"]
    limit = 0.5 * whole
    kinds = "bf16,float8 teacher with exceptions"
    said = tiny_study.run(*command(work, out, "--seeds", 1, "--steps", 8, "--limit", limit, "--kinds", kinds))
    (report,) = (json.loads(file.read_text()) for file in (out / "exceptions").glob("*.json"))
    assert report["before"]["mean_kl"] == pytest.approx(whole, rel=1e-3) and report["float8_exceptions"]
    found = results(out)["float8-teacher-with-exceptions-1"]
    assert 0 < found["gate"] <= limit
    assert f"| float8 teacher with exceptions | 1 | {found['alike']['forward_kl']:.4f} " in said
