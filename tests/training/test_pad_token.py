"""A pad_token_id in config.json, whose row of the embedding transformers does not train."""

import pytest

import reference_training
import tiny
from model_files import changed_copy

PAD = 3
NAMES = ("loss", "soft", "forward_kl", "student_entropy", "grad_norm")


@pytest.fixture
def pair(tmp_path, models):
    """Student and teacher whose config.json names a token of the data as the one that pads."""
    roles = zip(("student", "teacher"), models["llama"])
    return [changed_copy(source, tmp_path / role, pad_token_id=PAD) for role, source in roles]


def follow(folder, pair, shard):
    """A run of 20 steps and its reference: (weights, weights of the reference, those before)."""
    config = tiny.base_config(folder, *pair, shard)
    expected, model = reference_training.train(config)
    run = tiny.train(folder, config)
    for step, reference in zip(tiny.read_metrics(run)[0], expected, strict=True):
        for name in NAMES:
            assert step[name] == pytest.approx(reference[name], rel=1e-4), f"step {step['step']}: {name}"
    return tiny.load_weights(run / "model"), model.state_dict(), tiny.load_weights(pair[0])


def test_a_document_without_it_trains_as_in_transformers(tmp_path, pair):
    documents = [
        (tokens + (tokens == PAD), in_loss)
        for tokens, in_loss in tiny.random_documents(3, [5, 61, 17, 128, 2, 33, 90, 47] * 5)
    ]
    trained, reference, _ = follow(tmp_path / "run", pair, tiny.make_shard(tmp_path / "data.dtok", documents))
    assert tiny.relative_difference(trained, {name: reference[name] for name in trained}) < 1e-4


def test_a_token_that_documents_have_is_trained(tmp_path, pair, ragged_shard, monkeypatch):
    load = reference_training.load

    def load_without_padding(folder):
        model = load(folder)
        assert model.get_input_embeddings().padding_idx == PAD
        model.get_input_embeddings().padding_idx = None
        return model

    monkeypatch.setattr(reference_training, "load", load_without_padding)
    trained, reference, initial = follow(tmp_path / "run", pair, ragged_shard)
    assert tiny.relative_difference(trained, {name: reference[name] for name in trained}) < 1e-4
    table = "model.embed_tokens.weight"
    moved = (trained[table] - initial[table]).norm(dim=1)
    assert moved[PAD] > 0.2 * moved.median()
