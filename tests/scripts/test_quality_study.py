"""quality.sh in miniature, from the runner to the tables: distillation beats labels."""

import json
import shutil
import subprocess
import sys
import time

import pytest
import tiny_study
import torch
import yaml

from quality import calibration

SPEED = {"steps": 12}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    assert tiny_study.PROGRAM.is_file(), f"{tiny_study.PROGRAM} is not built (scripts/build.sh), or set DISTILL_BUILD"
    return tiny_study.make(tmp_path_factory.mktemp("study") / "work")


def arguments(work, study, results):
    return ["--profile", "cpu", "--study", study, "--work", work, "--results", results]


def run(work, study, results, *more):
    return tiny_study.script(
        "studies/quality.py",
        "run",
        *arguments(work, study, results),
        "--program",
        tiny_study.PROGRAM,
        "--jobs",
        2,
        *more,
    )


@pytest.fixture(scope="module")
def finished(work):
    """(study.yaml, results folder, output) of everything that the tiny study wants."""
    study = tiny_study.study(work.parent / "study.yaml", speed=SPEED)
    output = run(work, study, work.parent / "results")
    return study, work.parent / "results", output


def read(results, name):
    return json.loads((results / f"{name}.json").read_text())


def finals(results, row):
    found = [json.loads(file.read_text()) for file in sorted(results.glob(f"half-{row}-*.json"))]
    return [result for result in found if result["purpose"] == "final"]


def test_everything_is_there_and_what_is_left_out_is_named(finished):
    _, results, output = finished
    assert "left out: newer: this build of distill has no loss.of_tomorrow" in output
    assert "to do" not in output
    names = {file.stem for file in results.glob("*.json")}
    assert {"capture-hidden", "model-teacher", "model-half"} <= names
    for row in ("labels", "forward_kl", "hidden"):
        assert [result["seed"] for result in finals(results, row)] == [1, 2]


def test_the_report_page_of_a_run_is_kept_when_its_model_is_not(finished, work):
    _, results, _ = finished
    for result in results.glob("half-labels-*.json"):
        folder = work / "runs" / result.stem
        assert (folder / "report.html").is_file() and not (folder / "model").exists()


def test_the_searched_rate_is_the_best_one(finished):
    _, results, _ = finished
    for row in ("labels", "forward_kl"):
        searched = [json.loads(file.read_text()) for file in results.glob(f"half-{row}-3840-*.json")]
        assert len(searched) == 2
        best = min(searched, key=lambda result: result["validation"][-1]["ce"])
        assert {result["lr"] for result in finals(results, row)} == {best["lr"]}


def test_distillation_beats_labels_on_every_kind_of_text(finished):
    """The held-out KL to the teacher, and the table that says so."""
    study, results, _ = finished
    tiny_study.script("studies/quality.py", "check", "--profile", "cpu", "--study", study, "--results", results)
    for result in finals(results, "forward_kl"):
        other = next(one for one in finals(results, "labels") if one["seed"] == result["seed"])
        for kind in ("code", "reference", "prose"):
            assert result["tests"][kind]["forward_kl"] < 0.7 * other["tests"][kind]["forward_kl"]


def test_a_teacher_from_a_folder_gives_the_figures_of_the_online_one(finished):
    _, results, _ = finished
    for online, cached in zip(finals(results, "forward_kl"), finals(results, "hidden"), strict=True):
        assert cached["tests"] == online["tests"] and cached["validation"] == online["validation"]


def test_the_teacher_has_no_distance_from_itself(finished):
    _, results, _ = finished
    teacher, student = read(results, "model-teacher"), read(results, "model-half")
    for kind in ("code", "reference", "prose"):
        assert teacher["tests"][kind]["forward_kl"] == pytest.approx(0, abs=1e-6)
        assert teacher["tests"][kind]["hard"] == pytest.approx(teacher["tests"][kind]["teacher_ce"], rel=1e-5)
        assert student["tests"][kind]["forward_kl"] > 0.01


def test_calibration_and_functions_of_a_model(work):
    arguments = ("--model", work / "teacher", "--data", work / "data", "--prompts", work / "prompts.json")
    measured = json.loads(
        tiny_study.script("studies/quality.py", "measure", *arguments, "--seq-len", tiny_study.LENGTH)
    )
    assert measured["functions"] == 1 and measured["continuations_that_parse"] == 0, "words are no Python"
    assert set(measured["calibration_error"]) == {"code", "reference", "prose", "all"}
    assert all(0 < error < 0.2 for error in measured["calibration_error"].values()), "it has learnt how sure it can be"


def test_the_calibration_error_is_the_weighted_gap_of_the_bins():
    """Three tokens at 0.9, of which one is right; one at 0.5, which is: (3 |0.9 - 1/3| + |0.5 - 1|) / 4."""
    bins, other = calibration.Bins(), calibration.Bins()
    bins.add(torch.tensor([0.9, 0.9, 0.5]), torch.tensor([True, False, True]))
    other.add(torch.tensor([0.9]), torch.tensor([False]))
    bins.merge(other)
    assert bins.error() == pytest.approx((3 * (0.9 - 1 / 3) + 0.5) / 4)
    edge = calibration.Bins()
    edge.add(torch.tensor([1.0, 0.0]), torch.tensor([True, False]))
    assert edge.error() == 0


def test_windows_cover_every_target_of_a_document_once():
    tokens = torch.arange(10).numpy()
    rows = [tokens[start : start + 5] for start in (0, 4, 8)]
    found = [(inputs, targets) for inputs, targets in calibration.batches(rows, 2)]
    pairs = [
        (int(token), int(target))
        for inputs, targets in found
        for token, target in zip(inputs.flatten(), targets.flatten())
        if target != -100
    ]
    assert pairs == [(number, number + 1) for number in range(9)]


def test_a_teacher_for_the_evaluations_alone_changes_no_weight(work, tmp_path):
    """Labels are trained with one, so that their evaluations know the KL to it."""
    weights = []
    for name, teacher in (("with", str(work / "teacher")), ("without", "")):
        config = {
            "student": {"path": str(work / "students" / "half")},
            "data": {"train": [str(work / "data" / "train")], "seq_len": tiny_study.LENGTH},
            "loss": {"divergence": "none", "hard_weight": 1},
            "train": {"steps": 5, "micro_batch_size": 4, "global_batch_size": 4, "device": "cpu"},
            "run": {"dir": str(tmp_path / name), "progress": "none"},
        } | ({"teacher": {"path": teacher}} if teacher else {})
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
        tiny_study.run(tiny_study.PROGRAM, "--config", tmp_path / f"{name}.json")
        weights.append((tmp_path / name / "model" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_labels_know_the_distance_to_the_teacher_while_they_train(finished):
    """The last evaluation of a run is on the validation text with the weights of the saved model."""
    _, results, _ = finished
    for result in finals(results, "labels"):
        assert [set(point) for point in result["validation"]] == [{"tokens", "ce", "kl"}] * len(result["validation"])
        assert 0.01 < result["validation"][-1]["kl"] < result["validation"][0]["kl"]


def test_published_results_are_not_repeated_and_a_row_can_be_run_again(finished, work, tmp_path):
    """The same numbers again, from a published file alone: a run of one thread is the same to the last bit."""
    study, results, _ = finished
    published = tmp_path / "cpu.json"
    tiny_study.script("studies/quality.py", "merge", "--results", results, "--out", published)
    again = ["--published", published, "--again", "forward_kl"]
    output = run(work, study, tmp_path / "more", *again)
    names = {file.stem for file in (tmp_path / "more").iterdir()}
    lr, tokens = finals(results, "forward_kl")[0]["lr"], finals(results, "forward_kl")[0]["tokens"]
    assert names == {f"again-half-forward_kl-{tokens}-lr{lr:g}-s{seed}" for seed in (1, 2)}, output
    for name in names:
        one, other = read(tmp_path / "more", name), read(results, name.removeprefix("again-"))
        assert one["tests"] == other["tests"] and one["validation"] == other["validation"]
    arguments = ("--profile", "cpu", "--study", study, "--results", tmp_path / "more", "--published", published)
    assert "within" in tiny_study.script("studies/quality.py", "compare", *arguments)
    command = [
        sys.executable,
        tiny_study.ROOT / "scripts" / "studies" / "quality.py",
        "run",
        *arguments,
        "--again",
        "telepathy",
    ]
    done = subprocess.run([*map(str, command), "--program", tiny_study.PROGRAM], capture_output=True, text=True)
    assert done.returncode == 1 and "found telepathy" in done.stderr


def test_a_second_phase_begins_with_the_trained_model(work, tmp_path):
    """Its 8 steps on its own words leave it close to the model of 60 steps, which is kept."""
    second = {"row": "forward_kl", "steps": 8, "lrs": [1e-4], "cases": {"half": ["on_policy"]}}
    changes = {"search_tokens": 0, "seeds": [1], "prompts": 1, "second": second}
    study = tiny_study.study(tmp_path / "study.yaml", **changes)
    table = yaml.safe_load(study.read_text())
    table["rows"]["on_policy"]["on_policy"] |= {"onpolicy.every": 8, "onpolicy.max_new_tokens": 16}
    study.write_text(yaml.safe_dump(table))
    run(work, study, tmp_path / "results", "--only", "second")
    tokens = 8 * 8 * tiny_study.LENGTH
    base = read(tmp_path / "results", "base-half-forward_kl-15360-lr0.003-s1")
    result = read(tmp_path / "results", f"second-half-on_policy-{tokens}-lr0.0001-s1")
    assert (work / "runs" / "base-half-forward_kl-15360-lr0.003-s1" / "model").is_dir()
    folder = work / "runs" / f"second-half-on_policy-{tokens}-lr0.0001-s1"
    assert (folder / "report.html").is_file() and not (folder / "model").exists() and not (folder / "onpolicy").exists()
    for kind in ("code", "reference", "prose"):
        before, after = (one["tests"][kind]["forward_kl"] for one in (base, result))
        assert before != after and after == pytest.approx(before, rel=0.1)
    before, after = (one["own_words"] for one in (base, result))
    assert before["reverse_kl"] != after["reverse_kl"] == pytest.approx(before["reverse_kl"], rel=0.2)
    output = tiny_study.script("studies/quality.py", "report", *arguments_of_report(study, tmp_path / "results"))
    assert "| half | before the second phase |" in output and "on-policy, reverse KL" in output


def arguments_of_report(study, results):
    return ("--profile", "cpu", "--study", study, "--results", results)


@pytest.mark.parametrize("result, only", [("half-hidden-15360-*-s2", "cases"), ("speed-half-hidden-*", "speed")])
def test_finished_runs_are_not_repeated(finished, work, result, only):
    study, results, _ = finished
    before = {file.name: file.stat().st_mtime_ns for file in results.iterdir()}
    (lost,) = results.glob(f"{result}.json")
    lost.unlink()
    shutil.rmtree(work / "cache-hidden")  # as on another machine
    output = run(work, study, results, "--only", f"capture,{only}", "--rows", "hidden,forward_kl")
    assert "capture-hidden" in output and "half-forward_kl" not in output and "half-labels" not in output
    after = {file.name: file.stat().st_mtime_ns for file in results.iterdir()}
    assert set(before) == set(after)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {lost.name, "capture-hidden.json"}


def test_an_ended_time_leaves_nothing_half_done(work, tmp_path):
    """A run that is too long for the time is ended, and has no result."""
    study = tiny_study.study(tmp_path / "study.yaml", search_tokens=0, tokens=400_000 * 8 * tiny_study.LENGTH)
    began = time.monotonic()
    output = run(work, study, tmp_path / "results", "--only", "cases", "--minutes", 0.1)
    assert time.monotonic() - began < 60
    assert "to do: half-labels" in output and "ended with the time" in output
    assert not list((tmp_path / "results").iterdir())


def test_a_run_that_fails_is_named_and_the_others_go_on(work, tmp_path):
    study = tiny_study.study(
        tmp_path / "study.yaml",
        search_tokens=0,
        tokens=4 * 8 * tiny_study.LENGTH,
        seeds=[1],
        lrs=[-1.0],
        cases={"half": ["labels"]},
    )
    command = [
        sys.executable,
        tiny_study.ROOT / "scripts" / "studies" / "quality.py",
        "run",
        "--program",
        tiny_study.PROGRAM,
    ]
    command += [*arguments(work, study, tmp_path / "results"), "--only", "cases"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "FAILED" in done.stdout and "optimizer.lr" in done.stdout


def test_a_row_that_does_not_exist_is_named(tmp_path, script):
    arguments = ("--profile", "cpu", "--results", tmp_path / "results", "--rows", "labels,telepathy")
    assert "found telepathy" in script("studies/quality.py", "run", *arguments, code=1)


def test_a_program_that_is_not_there_is_named(tmp_path, script):
    missing = tmp_path / "distill"
    error = script(
        "studies/quality.py", "run", "--profile", "cpu", "--results", tmp_path / "r", "--program", missing, code=1
    )
    assert f"--program {missing}: expected a built distill" in error and "Traceback" not in error


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"cases": {"half": ["telepathy"]}}, "no such row or student: telepathy"),
        ({"cases": {"dwarf": ["labels"]}}, "no such row or student: dwarf"),
        ({"colour": "red"}, "expected"),
    ],
)
def test_a_mistake_in_the_table_is_named(tmp_path, script, changes, expected):
    study = tiny_study.study(tmp_path / "study.yaml", **changes)
    error = script(
        "studies/quality.py", "run", "--profile", "cpu", "--study", study, "--results", tmp_path / "results", code=1
    )
    assert expected in error
