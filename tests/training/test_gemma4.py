"""Gemma 4: the numbers that multiply its layers' outputs, and folders that contradict their config.json."""

import pytest
import torch

import tiny
from model_files import changed_copy

LAYER = "model.layers.1."


def test_the_scales_of_the_layers_are_applied_and_not_trained(tmp_path, models, ragged_shard):
    student, teacher = models["gemma4"]
    initial = tiny.load_weights(student)
    scales = [f"model.layers.{layer}.layer_scalar" for layer in range(2)]
    assert all(abs(initial[name] - 1) > 0.01 for name in scales)
    ones = {name: torch.ones_like(initial[name]) for name in scales}
    other = changed_copy(student, tmp_path / "other", lambda weights: weights.update(ones))
    losses = []
    for name, folder in (("student", student), ("others", other)):
        config = tiny.base_config(tmp_path / name, folder, teacher, ragged_shard, train={"steps": 4})
        config["optimizer"]["weight_decay"] = 0.5
        config["scheduler"] = {"type": "constant", "warmup_steps": 1}
        run = tiny.train(tmp_path / name, config)
        losses.append(tiny.read_metrics(run)[0][0]["loss"])
        trained, before = tiny.load_weights(run / "model"), tiny.load_weights(folder)
        for tensor, value in trained.items():
            assert torch.equal(value, before[tensor]) == (tensor in scales), tensor
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


BAD = {
    "no scale of a layer": (
        lambda w: w.pop(LAYER + "layer_scalar"),
        {},
        [f"missing (1): {LAYER}layer_scalar"],
    ),
    "values where keys are values": (
        lambda w: w.update({LAYER + "self_attn.v_proj.weight": torch.zeros(32, 48)}),
        {},
        ["unexpected inside the model", LAYER + "self_attn.v_proj.weight"],
    ),
    "no values where keys are not": (
        None,
        {"attention_k_eq_v": False},
        [f"missing (1): {LAYER}self_attn.v_proj.weight"],
    ),
    "wide heads of another size": (
        None,
        {"per_layer_config": {"1": {"head_dim": 16, "num_key_value_heads": 1}}},
        [LAYER + "self_attn.q_proj.weight ([64, 48] expected, [128, 48] found)"],
    ),
    "embeddings of layers": (
        None,
        {"hidden_size_per_layer_input": 8},
        ["hidden_size_per_layer_input: 0 is expected", "found 8"],
    ),
    "an unknown type of layer": (
        None,
        {"layer_types": ["sliding_attention", "linear_attention"]},
        ["layer_types: full_attention or sliding_attention is expected", "linear_attention"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_folder_that_is_wrong_is_refused_by_name(tmp_path, models, ragged_shard, case):
    tiny.expect_folder_refused(tmp_path, models["gemma4"], ragged_shard, BAD[case])
