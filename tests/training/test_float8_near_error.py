"""A student that is as near to its float8 teacher as the teacher's own error."""

import json
import re

import numpy as np
import pytest

import tiny
from float8_teacher import float8_config, gate_line


def near_config(folder, teacher, shard, error_steps, **sections):
    """A student with the teacher's own weights, which hardly learns: its KL is the float8 teacher's error."""
    train = {"steps": error_steps, "micro_batch_size": 2, "global_batch_size": 2}
    config = float8_config(
        folder,
        (teacher, teacher),
        shard,
        train=train,
        data={"eval": [{"path": shard}]},
        float8={"gate_tokens": 10**6},
        **sections,
    )
    config["loss"] = {"divergence": "forward_kl", "hard_weight": 0.0, "soft_weight": 1.0}
    config["optimizer"] |= {"lr": 1e-7, "weight_decay": 0.0}
    return config


def float8_events(run):
    path = run / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [event for event in events if event["event"] == "near_float8_error"]


def near_warnings(run):
    return [line for line in (run / "log.txt").read_text().splitlines() if "to the float8 teacher is" in line]


def report_events(folder, run):
    tiny.distill("report", run, "--output", folder / "page.html")
    page = re.search(
        r'<script id="data" type="application/json">(.*?)</script>', (folder / "page.html").read_text(), re.S
    )
    (found,) = json.loads(page.group(1))["runs"]
    return [event for event in found["events"] if event["kind"] == "near_float8_error"]


def test_a_student_near_the_teachers_own_error_is_warned_about_once(tmp_path, models, ragged_shard):
    _, teacher = models["llama"]
    run = tiny.train(tmp_path / "near", near_config(tmp_path / "near", teacher, ragged_shard, 75))
    steps = [step for step in tiny.read_metrics(run)[0] if step["valid_tokens"] > 0][:50]
    (event,) = float8_events(run)
    assert event["step"] == steps[-1]["step"] and event["steps"] == 50
    assert event["forward_kl"] == pytest.approx(np.mean([step["forward_kl"] for step in steps]), rel=1e-6)
    measured = float(re.search(r"mean KL ([0-9.e-]+) nats", gate_line(run)).group(1))
    assert event["float8_error"] == pytest.approx(measured, rel=1e-3)  # the log has four digits
    # The student is the teacher: what it is away is the error.
    assert event["forward_kl"] < 3 * event["float8_error"]
    (line,) = near_warnings(run)
    assert f" W step {event['step']}: " in line and "(mean of 50 steps)" in line and "distill quantize" in line
    figures = [f"{event[name]:.4g}" for name in ("forward_kl", "float8_error")]
    assert f"is {figures[0]} nats" in line and f"itself, {figures[1]}" in line
    # The report shows the event with both figures, and does not repeat the warning.
    (shown,) = report_events(tmp_path, run)
    assert shown["step"] == event["step"] and all(figure in shown["text"] for figure in figures)

    # A student that is far from its teacher is not warned about.
    far = near_config(tmp_path / "far", teacher, ragged_shard, 75)
    far["student"]["path"] = models["llama"][0]
    run = tiny.train(tmp_path / "far", far)
    assert tiny.read_metrics(run)[0][-1]["forward_kl"] > 10 * measured
    assert not float8_events(run) and not near_warnings(run)


@pytest.mark.parametrize("stop", [30, 68])  # before the warning and after it
def test_a_resumed_run_warns_as_an_undisturbed_one(tmp_path, models, ragged_shard, stop):
    def config(name):
        return near_config(
            tmp_path / name, models["llama"][1], ragged_shard, 75, checkpoint={"every": stop, "at_end": False}
        )

    whole = tiny.train(tmp_path / "whole", config("whole"))
    run = tiny.train(tmp_path / "parts", config("parts"))
    path = tmp_path / "parts" / "config.yaml"
    tiny.distill("--config", path, "--resume-from", run / "checkpoints" / f"step-{stop}")
    assert float8_events(run) == float8_events(whole)
    (event,) = float8_events(run)
    assert 50 <= event["step"] < 68
    assert len(report_events(tmp_path, run)) == 1
