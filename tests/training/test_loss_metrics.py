"""loss.metrics: steps that compute the loss alone learn the same, and evaluations have every mean."""

import pytest

import tiny
from run_results import steps_of, weights_of

BESIDE_THE_LOSS = {
    "teacher_ce", "forward_kl", "reverse_kl", "student_entropy", "teacher_entropy", "agreement", "accuracy",
}  # fmt: skip


@pytest.fixture
def run_of(tmp_path, models, ragged_shard):
    def build(name, metrics, **sections):
        config = tiny.base_config(
            tmp_path / name,
            *models["llama"],
            ragged_shard,
            data={"eval": [{"path": ragged_shard}]},
            train={"steps": 6, "deterministic": tiny.DEVICE == "cuda"},
            eval={"every": 3, "batches": 4},
            **sections,
        )
        config["loss"]["metrics"] = metrics
        return config

    return build


def expect_equal(found, expected):
    """Bit for bit on a CPU; on a GPU another kernel computes the loss."""
    assert found == (expected if tiny.DEVICE == "cpu" else pytest.approx(expected, rel=1e-4))


def test_steps_have_the_loss_alone_and_evaluations_everything(tmp_path, run_of):
    runs = {metrics: tiny.train(tmp_path, run_of(metrics, metrics)) for metrics in ("all", "loss")}
    steps, evaluations = steps_of(runs["loss"])
    all_steps, all_evaluations = steps_of(runs["all"])
    for found, expected in zip(steps, all_steps, strict=True):
        assert set(expected) - set(found) == BESIDE_THE_LOSS
        expect_equal(found, {name: expected[name] for name in found})
    for found, expected in zip(evaluations, all_evaluations, strict=True):
        assert set(found["eval"]) > BESIDE_THE_LOSS and found["step"] == expected["step"]
        expect_equal(found["eval"], expected["eval"])
    assert set(tiny.evaluate(tmp_path, run_of("loss", "loss"))) > BESIDE_THE_LOSS
    if tiny.DEVICE == "cpu":
        assert weights_of(runs["loss"]) == weights_of(runs["all"])
    lines = (runs["loss"] / "log.txt").read_text().splitlines()
    for line in (line for line in lines if "step 6/6" in line or "eval after step 6" in line):
        assert "  soft " in line and "  ce " in line
        assert [text in line for text in ("  teacher ce ", "  kl ", "  agree ")] == ["eval after" in line] * 3
    assert '"forward_kl"' in (runs["loss"] / "report.html").read_text()


def test_a_run_may_be_resumed_with_the_other_value(tmp_path, run_of):
    whole = steps_of(tiny.train(tmp_path / "whole", run_of("whole", "all")))
    config = run_of("two", "all", checkpoint={"every": 3})
    tiny.train(tmp_path / "two", config)
    config["loss"]["metrics"] = "loss"
    run = tiny.train(tmp_path / "two", config, "--resume-from", tmp_path / "two" / "run" / "checkpoints" / "step-3")
    assert "changed since the checkpoint: loss.metrics" in (run / "log.txt").read_text()
    steps, evaluations = steps_of(run)
    assert [set(step) > BESIDE_THE_LOSS for step in steps] == [True] * 3 + [False] * 3
    for found, expected in zip(steps + evaluations, whole[0] + whole[1], strict=True):
        for name, value in found.items():
            expect_equal(value, expected[name])
