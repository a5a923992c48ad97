"""Steps with non-finite gradients change no weight and are counted; too many in a row end the run."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import reference_training
import tiny

POISON = 200  # a token whose embedding is infinite: only rows that hold it are affected
ROWS, SEQ_LEN, BATCH = 48, 32, 8


@pytest.fixture
def poisoned_student(tmp_path, models):
    """The student with an infinite row in its (untied) embedding."""
    import shutil

    source = models["llama"][0]
    folder = tmp_path / "poisoned"
    shutil.copytree(source, folder)
    weights = tiny.load_weights(source)
    weights["model.embed_tokens.weight"][POISON, 3] = math.inf
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


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


def test_a_batch_without_any_target_is_no_error(tmp_path, models):
    tokens = np.random.default_rng(4).integers(0, tiny.VOCAB, 4 * BATCH * SEQ_LEN + 1)
    in_loss = np.ones(len(tokens), dtype=bool)
    in_loss[BATCH * SEQ_LEN + 1 : 2 * BATCH * SEQ_LEN + 1] = False  # the second step's targets
    shard = tiny.make_shard(tmp_path / "data.dtok", [(tokens, in_loss)])
    config = make_config(tmp_path, *models["llama"], shard, steps=4)
    expected, _ = reference_training.train(config)
    found, _ = tiny.read_metrics(tiny.train(tmp_path, config))
    assert [record["valid_tokens"] for record in found] == [256, 0, 256, 256]
    assert found[1]["loss"] == 0 and found[1]["grad_norm"] == 0 and not found[1]["skipped"]
    for step, reference in zip(found, expected, strict=True):
        assert step["grad_norm"] == pytest.approx(reference["grad_norm"], rel=1e-4)
