"""A teacher that is worse than the student on the data is noticed; an ordinary one is not."""

import json

import numpy as np
import pytest

import tiny

SEQ_LEN, STEPS, WINDOW = 32, 60, 50
EVENT = "teacher_worse_than_student"
SAYS = "the teacher is worse than the student on"


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    """Tokens that a model soon learns; more than 2000 of them."""
    tokens = np.tile(np.arange(8), 400)
    return tiny.make_shard(tmp_path_factory.mktemp("data") / "easy.dtok", [(tokens, np.ones(len(tokens), dtype=bool))])


def make_config(folder, student, teacher, shard, **sections):
    config = tiny.base_config(
        folder,
        student,
        teacher,
        shard,
        data={"eval": [{"path": shard}]},
        train={"steps": STEPS, "global_batch_size": 4},
        optimizer={"lr": 1e-3},
        checkpoint={"every": 10, "keep": 99},
        **sections,
    )
    config["loss"] = {"divergence": "jsd", "hard_weight": 1.0, "soft_weight": 0.01} if teacher else {
        "divergence": "none", "hard_weight": 1.0}  # fmt: skip
    return config


@pytest.fixture(scope="module")
def trained(tmp_path_factory, models, shard):
    """A model that has learned the data."""
    folder = tmp_path_factory.mktemp("trained")
    config = make_config(folder, models["llama"][0], "", shard, eval={"every": 0})
    config["optimizer"]["lr"] = 1e-2
    del config["data"]["eval"]
    run = tiny.train(folder, config)
    assert tiny.read_metrics(run)[0][-1]["hard"] < 1
    return str(run / "model")


def events(run):
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def warnings(run):
    return [line for line in (run / "log.txt").read_text().splitlines() if SAYS in line]


def test_a_random_teacher_of_a_trained_student(tmp_path, models, shard, trained):
    config = make_config(tmp_path, trained, models["llama"][1], shard, eval={"every": 20})
    run = tiny.train(tmp_path, config)
    steps, evaluations = tiny.read_metrics(run)
    found = [event for event in events(run) if event["event"] == EVENT]
    assert [(event["step"], "eval" in event) for event in found] == [(20, True), (WINDOW, False)]
    assert found[0]["eval"] == {name: evaluations[0]["eval"][name] for name in ("teacher_ce", "hard")}
    for name in ("teacher_ce", "hard"):
        assert found[1][name] == pytest.approx(np.mean([step[name] for step in steps[:WINDOW]]))
    lines = warnings(run)
    assert len(lines) == 2, "once for the training data and once for the held-out data"
    for line, event in zip(lines, (found[0]["eval"], found[1])):
        assert f"{event['teacher_ce']:.4f} nats" in line and f"{event['hard']:.4f}" in line
        assert "chat template" in line and "tokenizer" in line and "damaged" in line
    assert "data.eval" in lines[0] and "data.train" in lines[1]

    # Neither a resumption after the warnings nor one before them doubles or loses one.
    tiny.train(tmp_path, config, "--resume-from", run / "checkpoints" / "step-50")
    assert [event for event in events(run) if event["event"] == EVENT] == found
    tiny.train(tmp_path, config, "--resume-from", run / "checkpoints" / "step-10")
    again = [event for event in events(run) if event["event"] == EVENT]
    assert [(event["step"], "eval" in event) for event in again] == [(20, True), (WINDOW, False)]


def test_an_ordinary_teacher(tmp_path, models, shard, trained):
    run = tiny.train(tmp_path, make_config(tmp_path, models["llama"][0], trained, shard, eval={"every": 20}))
    steps, evaluations = tiny.read_metrics(run)
    assert all(line["teacher_ce"] < line["hard"] for line in steps)
    assert len(evaluations) == 3 and events(run) == [] and warnings(run) == []


def test_a_student_that_is_its_own_teacher(tmp_path, shard, trained):
    config = make_config(tmp_path, trained, trained, shard, eval={"every": 20})
    config["loss"] = {"divergence": "forward_kl"}
    run = tiny.train(tmp_path, config)
    steps, _ = tiny.read_metrics(run)
    assert steps[0]["teacher_ce"] == pytest.approx(steps[0]["hard"], rel=1e-6)
    assert warnings(run) == []


def test_the_eval_command_warns_too(tmp_path, models, shard, trained):
    config = make_config(tmp_path, trained, models["llama"][1], shard)
    file = tiny.write_config(tmp_path, config)
    done = tiny.distill("eval", "--config", file)
    assert SAYS in done.stderr and "teacher_ce" in done.stdout
    better = tiny.distill("eval", "--config", file, "--set", f"teacher.path={trained}")
    assert SAYS not in better.stderr
