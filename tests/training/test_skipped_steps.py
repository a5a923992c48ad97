"""Steps with non-finite gradients, or without a target, change no weight and are counted; too many skipped steps in a
row end the run."""

import subprocess

import numpy as np
import pytest
import torch

import reference_training
import tiny
from model_files import changed_copy, setting

POISON = 200  # a token whose embedding has no norm: only rows that hold it are affected
ROWS, SEQ_LEN, BATCH = 48, 32, 8


@pytest.fixture
def poisoned_student(tmp_path, models):
    """The student with a row of zeros in its (untied) embedding, and no eps that keeps its norm from 0 / 0."""
    change = setting("model.embed_tokens.weight", POISON, 0)
    return changed_copy(models["llama"][0], tmp_path / "poisoned", change, rms_norm_eps=1e-60)  # 0 in fp32: 0 / 0


def make_shard(path, poisoned_steps):
    """One long document whose rows of the given 0-based steps hold the poisoned token once."""
    tokens = np.random.default_rng(4).integers(0, POISON, ROWS * SEQ_LEN + 1)
    for step in poisoned_steps:
        tokens[(step * BATCH + 5) * SEQ_LEN + 7] = POISON
    return tiny.make_shard(path, [(tokens, np.ones(len(tokens), dtype=bool))])


def make_config(tmp_path, student, teacher, shard, **train):
    return tiny.base_config(tmp_path, student, teacher, shard, train={"steps": 6, **train})


def test_a_step_with_non_finite_gradients_changes_nothing(tmp_path, models, poisoned_student):
    shard = make_shard(tmp_path / "data.dtok", poisoned_steps=[1, 3])
    config = make_config(tmp_path, poisoned_student, models["llama"][1], shard)
    expected, model = reference_training.train(config)
    run = tiny.train(tmp_path, config)
    found, _ = tiny.read_metrics(run)

    assert [record["skipped"] for record in found] == [False, True, False, True, False, False]
    assert [record["skipped_total"] for record in found] == [0, 1, 1, 2, 2, 2]
    assert (run / "log.txt").read_text().count("not finite") >= 2
    for step, reference in zip(found, expected, strict=True):
        if step["skipped"]:
            assert step["grad_norm"] is None  # JSON has no infinity
        else:
            assert step["loss"] == pytest.approx(reference["loss"], rel=1e-4)
            assert step["grad_norm"] == pytest.approx(reference["grad_norm"], rel=1e-4)
    trained = tiny.load_weights(run / "model")
    others = torch.arange(tiny.VOCAB) != POISON
    for weights in (trained, state := model.state_dict()):
        weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][others]
    assert tiny.relative_difference(trained, {name: state[name] for name in trained}) < 1e-4


def test_too_many_in_a_row_end_the_run_and_say_why(tmp_path, models, poisoned_student):
    shard = make_shard(tmp_path / "data.dtok", poisoned_steps=[1, 3, 4])
    config = make_config(tmp_path, poisoned_student, models["llama"][1], shard, max_skipped_steps=2)
    failed = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.RUNTIME_FAILURE)
    assert "step 5" in failed.stderr and "train.max_skipped_steps" in failed.stderr
    found, _ = tiny.read_metrics(tmp_path / "run")
    assert [record["skipped"] for record in found] == [False, True, False, True, True]
    assert not (tmp_path / "run" / "model").exists()


def config_with_an_empty_step(tmp_path, models):
    """Four steps; no token of the second one is in the loss."""
    tokens = np.random.default_rng(4).integers(0, tiny.VOCAB, 4 * BATCH * SEQ_LEN + 1)
    in_loss = np.ones(len(tokens), dtype=bool)
    in_loss[BATCH * SEQ_LEN + 1 : 2 * BATCH * SEQ_LEN + 1] = False  # the second step's targets
    shard = tiny.make_shard(tmp_path / "data.dtok", [(tokens, in_loss)])
    return make_config(tmp_path, *models["llama"], shard, steps=4)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_step_without_any_target_changes_nothing(tmp_path, models, processes):
    tiny.need_devices(processes)
    config = config_with_an_empty_step(tmp_path, models)
    expected, model = reference_training.train(config)  # does not step the optimizer there
    config["parallel"] = {"processes": processes}
    run = tiny.train(tmp_path, config)
    found, _ = tiny.read_metrics(run)
    assert [record["valid_tokens"] for record in found] == [256, 0, 256, 256]
    assert [record["empty_steps"] for record in found] == [0, 1, 1, 1]
    assert not any(record["skipped"] or record["skipped_total"] for record in found)
    empty = found.pop(1)
    assert all(empty[name] is None for name in ("loss", "hard", "soft", "forward_kl", "agreement", "grad_norm"))
    del expected[1]
    for step, reference in zip(found, expected, strict=True):
        assert step["lr"] == pytest.approx(reference["lr"])  # the schedule goes by the number of the step
        assert step["grad_norm"] == pytest.approx(reference["grad_norm"], rel=1e-4)
        assert step["loss"] == pytest.approx(reference["loss"], rel=1e-4)
    state = model.state_dict()
    trained = tiny.load_weights(run / "model")
    assert tiny.relative_difference(trained, {name: state[name] for name in trained}) < 1e-5
    log = (run / "log.txt").read_text()
    assert log.count("no token of its 8 samples (8 to 15) has a target") == 1


def test_the_number_of_empty_steps_survives_a_resumption(tmp_path, models):
    config = config_with_an_empty_step(tmp_path, models)
    config["checkpoint"] = {"every": 2, "keep": 9}
    run = tiny.train(tmp_path, config)
    tiny.distill("--config", tmp_path / "config.yaml", "--resume-from", run / "checkpoints" / "step-2")
    assert [record["empty_steps"] for record in tiny.read_metrics(run)[0]] == [0, 1, 1, 1]


def test_an_evaluation_without_any_target_measures_nothing(tmp_path, models):
    config = config_with_an_empty_step(tmp_path, models)
    tokens = np.random.default_rng(4).integers(0, tiny.VOCAB, 100)
    config["data"]["eval"] = tiny.make_shard(tmp_path / "eval.dtok", [(tokens, np.zeros(100, dtype=bool))])
    config["eval"] = {"every": 4}
    run = tiny.train(tmp_path, config)
    (found,) = tiny.read_metrics(run)[1]
    assert found["eval"]["loss"] is None and found["eval"]["valid_tokens"] == 0
    assert "no token of data.eval has a target" in (run / "log.txt").read_text()
    refused = tiny.distill("eval", "--config", tmp_path / "config.yaml", "--json", code=tiny.BAD_INPUT)
    assert "data.eval: expected tokens with a target, found none" in refused.stderr and not refused.stdout


@pytest.mark.parametrize("role", ["student", "teacher"])
@pytest.mark.parametrize("processes", [1, 2])
def test_weights_that_are_not_finite_are_named_before_anything_starts(tmp_path, models, role, processes):
    tiny.need_devices(processes)
    config = config_with_an_empty_step(tmp_path, models)
    bad = setting("model.layers.1.mlp.up_proj.weight", ([3, 4], [17, 0]), torch.tensor([float("nan"), float("inf")]))
    config[role]["path"] = changed_copy(config[role]["path"], tmp_path / "bad", bad)
    config["parallel"] = {"processes": processes}
    command = [tiny.binary(), "--config", tiny.write_config(tmp_path, config)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120, env=tiny.environment())
    # With two ranks, one of which has the bad values, the exit code is that of the rank that ends first.
    assert refused.returncode in ((tiny.BAD_INPUT,) if processes == 1 else (tiny.BAD_INPUT, tiny.RUNTIME_FAILURE))
    assert f"{config[role]['path']}/model.safetensors: tensor model.layers.1.mlp.up_proj.weight" in refused.stderr
    assert "the first at [3, 17]" in refused.stderr
    if processes == 1:
        assert "found 2 NaN or infinite value(s)" in refused.stderr
    assert not (tmp_path / "run").exists()
