"""`distill report` as a command: what it reads and refuses, how large its page is, and that every run writes one."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest

import jobs
import run_folders
from program import distill_program


def page_data(path):
    text = path.read_text()
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S).group(1))


@pytest.fixture
def report(distill, tmp_path):
    def report(*runs, output="page.html", code=0):
        made = distill(tmp_path, "report", *map(str, runs), "--output", output, timeout=600)
        assert made.returncode == code, made.stdout + made.stderr
        return page_data(tmp_path / output) if code == 0 else made.stderr

    return report


def test_the_page_has_every_number_of_a_short_run(report, tmp_path):
    run = run_folders.write_run(tmp_path / "run", steps=50)
    (found,) = report(run)["runs"]
    recorded = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in recorded if "eval" not in line]
    assert found["x"]["step"] == [line["step"] for line in steps]
    assert found["x"]["tokens"] == [line["tokens"] for line in steps]
    for name in ("loss", "grad_norm", "lr", "peak_memory_bytes"):
        assert found["series"][name]["mean"] == pytest.approx([line[name] for line in steps], rel=1e-5), name
        assert "min" not in found["series"][name]
    seconds = found["series"]["phase_seconds.head"]["mean"]
    assert seconds == pytest.approx([line["phase_seconds"]["head"] for line in steps], rel=1e-5)
    assert [e["step"] for e in found["evals"]] == [0, 25, 50]
    assert found["evals"][1]["values"] == pytest.approx(recorded[26]["eval"])
    assert found["state"] == "finished" and found["total_steps"] == 50 and found["missing"] == []
    assert ["optimizer.lr", "0.001"] in found["config"]
    assert found["sessions"][0]["plan"]["bytes"]["peak"] == run_folders.PLAN["bytes"]["peak"]


LONG = 1_000_000 if os.environ.get("DISTILL_LONG_TESTS") else 150_000


@pytest.mark.parametrize(("count", "steps"), [(1, LONG), (4, 40_000)])
def test_long_runs_stay_below_two_megabytes_and_keep_their_extremes(report, tmp_path, count, steps):
    spike = steps * 7 // 9
    run = tmp_path / "run0"
    run_folders.write_run(run, steps=3)
    record = run_folders.step_metrics(1)
    text = json.dumps(record)
    with open(run / "metrics.jsonl", "w") as file:
        for step in range(1, steps + 1):
            loss = 1000.0 if step == spike else 1 + step % 10
            file.write(
                text.replace('"step": 1,', f'"step": {step},', 1)
                .replace(f'"loss": {record["loss"]}', f'"loss": {loss}', 1)
                .replace('"tokens": 512,', f'"tokens": {512 * step},', 1)
                + "\n"
            )
    runs = [run]
    for i in range(1, count):
        runs.append(tmp_path / f"run{i}")
        shutil.copytree(run, runs[-1], copy_function=os.link)
    found = report(*runs)["runs"][0]
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    x, loss = found["x"], found["series"]["loss"]
    assert x["step"][-1] == steps and x["tokens"][-1] == 512 * steps
    assert 200 < len(x["step"]) <= 1200
    place = next(i for i, step in enumerate(x["step"]) if step >= spike)
    assert max(loss["max"]) == loss["max"][place] == 1000 and min(loss["min"]) == 1
    assert loss["mean"][0] == pytest.approx(5.5, rel=0.01)
    assert x["seconds"][-1] == pytest.approx(steps * record["seconds"], rel=1e-4)


@pytest.mark.parametrize(
    ("file", "line", "text", "expected"),
    [
        ("metrics.jsonl", 7, '{"step": 6, "loss"', "metrics.jsonl:7: expected a JSON object, found a damaged line"),
        ("metrics.jsonl", 7, "[1]", "metrics.jsonl:7: expected a JSON object, found array"),
        ("metrics.jsonl", 7, "", "metrics.jsonl:7: expected a JSON object, found an empty line"),
        ("metrics.jsonl", 7, '{"loss": 1}', 'metrics.jsonl:7: expected a whole number as "step", found none'),
        ("metrics.jsonl", 7, '{"step": 2}', "metrics.jsonl:7: expected a step after 5, found step 2"),
        ("metrics.jsonl", 1, '{"step": 0, "eval": 3}', 'metrics.jsonl:1: expected an object as "eval"'),
        ("metrics.jsonl", 1, '{"step": 0, "round": 3}', 'metrics.jsonl:1: expected an object as "round"'),
        (
            "metrics.jsonl",
            7,
            '{"step": ' + "[" * 100_000,
            "metrics.jsonl:7: expected a JSON object, found more than 16",
        ),
        ("events.jsonl", 1, "{", "events.jsonl:1: expected a JSON object"),
        ("sessions.jsonl", 2, "x", "sessions.jsonl:2: expected a JSON object"),
        ("samples.jsonl", 1, '{"step": -1}', 'samples.jsonl:1: expected a whole number as "step", found -1'),
    ],
)
def test_a_damaged_line_is_named_and_the_old_page_stays(report, tmp_path, file, line, text, expected):
    run = run_folders.write_run(tmp_path / "run", steps=20)
    run_folders.add_samples(run)
    (tmp_path / "page.html").write_text("an older page")
    lines = (run / file).read_text().splitlines()
    lines[line - 1 : line] = [text]
    (run / file).write_text("\n".join(lines) + "\n")
    assert expected in report(run, code=2)
    assert (tmp_path / "page.html").read_text() == "an older page"
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_rounds_have_their_numbers_times_and_judged_tokens(report, tmp_path):
    run = run_folders.write_run(tmp_path / "run", steps=50)
    without = report(run)["runs"][0]
    run_folders.add_rounds(run)
    (found,) = report(run)["runs"]
    assert without["rounds"] == [] and found["series"] == without["series"] and found["evals"] == without["evals"]
    assert [(one["number"], one["step"], one["completions"]) for one in found["rounds"]] == [
        (0, 0, 8),
        (1, 20, 8),
        (2, 40, 8),
    ]
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    seconds = [line["seconds"] for line in steps if "loss" in line]
    trained = [one["seconds"]["train"] for one in found["rounds"]]
    assert trained == pytest.approx([sum(seconds[:20]), sum(seconds[20:40]), sum(seconds[40:])], rel=1e-6)
    assert found["rounds"][1]["judged"]["reverse_kl"] == pytest.approx(0.8)
    assert [one["agreement"] for one in found["rounds"][2]["positions"]] == pytest.approx([0.8, 0.7, 0.6, 0.5])
    newest = found["round_samples"][0]
    assert newest["number"] == 2 and [len(one["ids"]) for one in newest["completions"]] == [8, 9]
    assert newest["completions"][1]["reverse_kl"] == pytest.approx([0.1 * i for i in range(9)])
    shutil.rmtree(run / "onpolicy" / "round-00000")  # onpolicy.keep_rounds
    (found,) = report(run)["runs"]
    assert len(found["rounds"]) == 3 and "positions" not in found["rounds"][0]
    (run / "onpolicy" / "round-00002" / "judged.json").write_text("{}")
    assert "round-00002/judged.json: expected the checksum" in report(run, code=2)


def test_long_completions_of_many_rounds_leave_room(report, tmp_path):
    run = run_folders.write_run(tmp_path / "run", steps=2000)
    run_folders.add_rounds(run, steps=1, count=500)
    (found,) = report(run)["runs"]
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    assert len(found["rounds"]) == 400 and found["rounds_recorded"] == 500
    assert [found["rounds"][i]["number"] for i in (0, -1)] == [0, 499] and len(found["round_samples"]) == 12


def test_a_torn_last_line_is_left_out(report, tmp_path):
    run = run_folders.write_run(tmp_path / "run", steps=20)
    whole = report(run)["runs"]
    for file in ("metrics.jsonl", "events.jsonl", "sessions.jsonl"):
        with open(run / file, "a") as lines:
            lines.write('{"step": 21, "lo')
    assert report(run)["runs"] == whole


def test_what_is_no_run_folder_is_refused(report, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name, found in {"nothing": "found nothing", "file": "found a file", "empty": "neither config.yaml nor"}.items():
        assert found in report(name, code=2)
    run = run_folders.write_run(tmp_path / "run")
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").mkdir()
    assert "events.jsonl: expected a file" in report(run, code=2)
    assert not (tmp_path / "page.html").exists()


def test_an_output_that_cannot_be_written_is_an_error(report, tmp_path):
    run = run_folders.write_run(tmp_path / "run")
    assert "no/such/folder/page.html" in report(run, output="no/such/folder/page.html", code=2)


def test_old_runs_without_some_files_say_what_is_missing(report, tmp_path):
    run = run_folders.write_run(tmp_path / "run")
    for file in ("sessions.jsonl", "events.jsonl"):
        (run / file).unlink()
    with open(run / "log.txt", "a") as log:
        log.write("2026-01-02 04:00:00 I resumed from runs/x/checkpoints/step-50 after step 50 (100 samples)\n")
        log.write("2026-01-02 04:00:01 I stopped by a signal after step 50; the state is saved\n")
    (found,) = report(run)["runs"]
    assert [text.split()[0] for text in found["missing"]] == ["events.jsonl", "sessions.jsonl"]
    assert found["start"] == "2026-01-02 03:04:05" and found["end"] == "2026-01-02 04:00:01"
    assert found["state"] == "stopped" and found["device"] == "cuda:0 (a GPU), 80 GiB"
    assert [(event["kind"], event["step"]) for event in found["events"]] == [("resumption", 50)]


def test_a_warning_about_an_event_is_not_said_twice(report, tmp_path):
    run = run_folders.write_run(tmp_path / "run")
    run_folders.add_events(run)
    with open(run / "log.txt", "a") as log:
        log.write("2026-01-02 04:00:00 W step 20: loss 9.0000, while the steps before had 2.0000 +- 0.1000\n")
        log.write("2026-01-02 04:00:00 W step 21: something else\n")
        log.write("2026-01-02 04:00:00 W evaluation after step 40: the teacher is worse than the student\n")
        log.write("2026-01-02 04:00:00 E a failure\n")
    (found,) = report(run)["runs"]
    assert [(event["step"], event["kind"]) for event in found["events"]] == [
        (10, "warning"), (20, "loss_spike"), (21, "warning"), (25, "end"), (25, "resumption"),
        (30, "non_finite_step"), (40, "teacher_worse_than_student"), (40, "error"), (50, "end"),
    ]  # fmt: skip


def test_many_events_and_samples_leave_room(report, tmp_path):
    run = run_folders.write_run(tmp_path / "run")
    event = {"step": 1, "event": "loss_spike", "loss": 9.0, "grad_norm": 1.0}
    run_folders.write_lines(run / "events.jsonl", [{**event, "step": step} for step in range(1, 5001)])
    sample = {"prompt": "p" * 2000, "target": "t", "student": "s", "teacher": None}
    run_folders.write_lines(
        run / "samples.jsonl", [{"step": 1 + i // 4, "index": i % 4, **sample} for i in range(2000)]
    )
    (found,) = report(run)["runs"]
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    assert len(found["events"]) == 1000 and found["events_left_out"] == 5001 - 1000
    assert (found["events"][0]["step"], found["events"][-1]["step"]) == (1, 5000)
    assert found["samples"][-1]["step"] == 500 and found["samples_left_out"] == 2000 - len(found["samples"]) > 1000


def test_text_that_is_not_utf8_is_replaced(report, tmp_path):
    run = run_folders.write_run(tmp_path / "run")
    (run / "config.yaml").write_bytes(b'student:\n  path: "\xff\xfe"\n')
    (found,) = report(run)["runs"]
    assert found["config"] == [["student.path", '"��"']]


def test_every_run_ends_with_its_report_and_a_resumed_one_has_its_history(distill, place):
    train = ["--config", "config.yaml", "--set", "checkpoint.every=2", "eval.every=2"]
    assert distill(place, *train, "train.steps=4").returncode == 0
    run = place / "run"
    (first,) = page_data(run / "report.html")["runs"]
    assert first["state"] == "finished" and first["last_step"] == 4 and first["model"] == "run/model"
    assert first["path"] == "run" and first["name"] == "run"

    assert distill(place, *train, "train.steps=6", "--resume").returncode == 0
    (found,) = page_data(run / "report.html")["runs"]
    assert found["x"]["step"] == [1, 2, 3, 4, 5, 6]
    assert [e["step"] for e in found["evals"]] == [2, 4, 6]
    assert [(session["first_step"], bool(session["plan"])) for session in found["sessions"]] == [(0, True), (4, True)]
    assert [(e["step"], e["kind"]) for e in found["events"] if e["kind"] != "warning"] == [
        (4, "end"), (4, "resumption"), (6, "end"),
    ]  # fmt: skip

    assert distill(place, "report", "run").stdout == "run/report.html\n"
    overwritten = distill(place, *train, "train.steps=2", "--overwrite")
    assert overwritten.returncode == 0, overwritten.stderr
    assert len(page_data(run / "report.html")["runs"][0]["sessions"]) == 1


@pytest.mark.parametrize("victim", [0, 1])
def test_a_run_that_loses_a_rank_has_a_report(place, victim):
    """Also where it was rank 0, which writes the report otherwise."""
    settings = ["scheduler.type=constant", "data.eval=null", "train.steps=1000000", "parallel.processes=2"]
    metrics = place / "run" / "metrics.jsonl"
    command = [str(distill_program()), "--config", "config.yaml", "--set", *settings]
    process = subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True)
    try:
        jobs.until(lambda: jobs.steps_done(place / "run") >= 3, process)
        os.kill(jobs.ranks_of(process)[victim], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1, errors
    (found,) = page_data(place / "run" / "report.html")["runs"]
    assert found["last_step"] == metrics.read_text().count("\n") >= 3 and found["state"] == "unknown"


def test_a_run_out_of_memory_has_a_report(distill, place):
    limit = [
        "memory.limit_gib=0.001",
        "memory.on_overflow=warn",
        "train.micro_batch_size=64",
        "train.global_batch_size=64",
    ]
    failed = distill(place, "--config", "config.yaml", "--set", *limit)
    assert failed.returncode == 1 and "out of memory on rank 0" in failed.stderr
    (found,) = page_data(place / "run" / "report.html")["runs"]
    assert "out of memory" in json.dumps([event for event in found["events"] if event["kind"] == "error"])


def test_a_failed_run_has_a_report_and_one_that_cannot_be_written_fails_no_run(distill, place):
    failing = ["optimizer.lr=1e30", "optimizer.max_grad_norm=0", "train.steps=30", "train.max_skipped_steps=2"]
    failed = distill(place, "--config", "config.yaml", "--set", *failing)
    assert failed.returncode == 1
    (found,) = page_data(place / "run" / "report.html")["runs"]
    assert found["state"] == "failed" and "train.max_skipped_steps" in found["outcome"]
    assert "non_finite_step" in {event["kind"] for event in found["events"]}

    (place / "run" / "report.html").unlink()
    (place / "run" / "report.html").mkdir()
    (place / "run" / "report.html" / "in the way").write_text("")
    resumed = distill(place, "--config", "config.yaml", "--set", "run.dir=other", "train.steps=2")
    assert resumed.returncode == 0
    blocked = place / "other"
    (blocked / "report.html").unlink()
    (blocked / "report.html").mkdir()
    again = distill(place, "--config", "config.yaml", "--set", "run.dir=other", "train.steps=3", "--resume")
    assert again.returncode == 0
    assert "the report of this run was not written" in again.stderr
