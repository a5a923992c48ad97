"""What a plan that does not fit advises, for models of real shapes."""

import json
import re

import pytest

import tiny


def test_a_pair_that_is_too_large_for_two_cards_is_advised_the_fastest_that_fits(tmp_path):
    """8B <- 8B, 2 x 4096 tokens on each of two cards of 79.2 GiB: state on the host, which the teacher hides."""
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    machine = {
        "name": "a card of 79.2 GiB",
        "memory_gib": 79.2,
        "host_gib": 512,
        "matmul_flops": 700e12,
        "float8_flops": 1400e12,
        "attention_forward_flops": 530e12,
        "attention_backward_flops": 420e12,
        "memory_bytes": 2.8e12,
        "host_bytes": 50e9,
        "host_store_bytes": 150e9,
        "gather_bytes": 334e9,
        "reduce_bytes": 344e9,
        "node_bytes": 45e9,
        "overlap_cost": 0.6,
        "copy_cost": 0.05,
        "launch_seconds": 4e-6,
        "context_gib": 0.8,
        "communicator_gib": 0.6,
    }
    for model in ("student", "teacher"):
        (tmp_path / model).mkdir()
        (tmp_path / model / "config.json").write_text(json.dumps(shape))
    (tmp_path / "machine.json").write_text(json.dumps(machine))
    config = {
        "student": {"path": str(tmp_path / "student"), "init": "random"},
        "teacher": {"path": str(tmp_path / "teacher"), "init": "random"},
        "data": {"train": str(tmp_path / "nothing.dtok"), "seq_len": 4096, "packing": "concat"},
        "train": {"steps": 1, "micro_batch_size": 2, "global_batch_size": 4, "device": "cuda"},
        # The budget is that of the tensors: it does not depend on how the allocator is modelled.
        "memory": {"machine": str(tmp_path / "machine.json"), "budget_gib": 75},
    }
    path = tiny.write_config(tmp_path, config)

    def plan(*settings, code=tiny.SUCCESS):
        sets = ["--set", *settings] if settings else []
        return tiny.plan(tmp_path, config, "--ranks", 2, *sets, code=code)

    found = plan(code=tiny.DOES_NOT_FIT)
    first = found["changes"][0]
    assert "memory.optimizer" in first["settings"] and first["settings"]["memory.optimizer"] == "auto"
    advised = plan(*(f"{key}={value}" for key, value in first["settings"].items()))
    assert advised["fits"] and advised["optimizer"].count("host") > 0
    assert advised["optimizer"].startswith("device*") and advised["optimizer"].endswith("device")
    assert advised["bytes"]["peak"] == first["peak_bytes"] <= 75 * 2**30
    assert advised["tokens_per_second"] == pytest.approx(first["tokens_per_second"], rel=1e-6)
    assert plan("memory.optimizer=host")["tokens_per_second"] < first["tokens_per_second"]
    both = plan("memory.optimizer=auto", "memory.activation=auto")
    assert both["tokens_per_second"] == pytest.approx(first["tokens_per_second"], rel=1e-3)
    text = tiny.distill("plan", "--config", path, "--ranks", 2, code=tiny.DOES_NOT_FIT).stdout
    advice = text.split("what would fit, the fastest first\n")[1].splitlines()[0]
    assert re.search(r"memory.optimizer=auto  \(peak [\d.]+ GiB, \d+ tok/s, \d+% of the speed of this plan\)", advice)
