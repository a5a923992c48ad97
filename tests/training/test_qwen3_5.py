"""Qwen3.5: folders that contradict their config.json, and packed documents that must not see one another."""

import pytest
import torch

import tiny

LAYER = "model.layers.0.linear_attn."
BAD = {
    "no decay of the states": (lambda w: w.pop(LAYER + "A_log"), {}, [f"missing (1): {LAYER}A_log"]),
    "attention where the config has a recurrence": (
        lambda w: w.update({"model.layers.0.self_attn.q_proj.weight": torch.zeros(128, 48)}),
        {},
        ["unexpected inside the model", "model.layers.0.self_attn.q_proj.weight"],
    ),
    "a bias of the convolution": (
        lambda w: w.update({LAYER + "conv1d.bias": torch.zeros(80)}),
        {},
        ["unexpected inside the model", LAYER + "conv1d.bias"],
    ),
    "taps of another number": (
        None,
        {"linear_conv_kernel_dim": 3},
        [LAYER + "conv1d.weight ([80, 1, 3] expected, [80, 1, 4] found)"],
    ),
    "heads of another number": (
        None,
        {"linear_num_value_heads": 6},
        [LAYER + "in_proj_z.weight ([72, 48] expected, [48, 48] found)", LAYER + "A_log ([6] expected, [4] found)"],
    ),
    "an interval that says something else": (
        None,
        {"full_attention_interval": 3},
        ["layer_types: full_attention in each full_attention_interval-th layer (3)", "linear_attention"],
    ),
    "another gate": (None, {"attn_output_gate": False}, ["attn_output_gate: true is expected"]),
    "an unknown type of layer": (
        None,
        {"layer_types": ["sliding_attention", "full_attention"]},
        ["layer_types: full_attention or linear_attention is expected", "sliding_attention"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_folder_that_is_wrong_is_refused_by_name(tmp_path, models, ragged_shard, case):
    tiny.expect_folder_refused(tmp_path, models["qwen3_5"], ragged_shard, BAD[case])


@pytest.mark.parametrize("ranks", [1, 3])
def test_neighbours_in_a_sequence_change_no_loss(tmp_path, models, ranks):
    """Every second document has loss; with other tokens in those between them, with which they share sequences, every
    step has the same losses and gradient norm, and the trained weights have the same bits, on any number of ranks."""
    tiny.need_devices(ranks)
    random = torch.Generator().manual_seed(4)
    runs = []
    for neighbours in ("some", "others"):
        documents = []
        for length in (5, 9, 13, 18, 7, 11):
            other = torch.randint(0, tiny.VOCAB, (32 - length,), generator=random)
            documents.append((other.numpy(), torch.zeros(32 - length, dtype=bool).numpy()))
            tokens = torch.randint(0, tiny.VOCAB, (length,), generator=torch.Generator().manual_seed(length))
            documents.append((tokens.numpy(), torch.ones(length, dtype=bool).numpy()))
        shard = tiny.make_shard(tmp_path / f"{neighbours}.bin", documents)
        config = tiny.base_config(
            tmp_path / neighbours,
            *models["qwen3_5"],
            shard,
            data={"packing": "pack", "seq_len": 32},
            train={"steps": 2, "micro_batch_size": 1, "global_batch_size": 6},
            scheduler={"type": "constant", "warmup_steps": 1},
            parallel={"processes": ranks},
        )
        run = tiny.train(tmp_path / neighbours, config)
        runs.append((tiny.read_metrics(run)[0], tiny.load_weights(run / "model")))
    (first, one), (second, other) = runs
    for before, after in zip(first, second, strict=True):
        assert before["valid_tokens"] == after["valid_tokens"] > 0
        for name in ("loss", "soft", "hard", "grad_norm"):
            assert before[name] == after[name], name
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name
