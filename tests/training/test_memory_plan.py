"""The memory plan predicts the trainer's allocations, category by category."""

import pytest

import tiny
from memory_plans import POLICIES, check_against_measured, config_of, profile


@pytest.mark.parametrize(
    "family, policy",
    [("llama", policy) for policy in POLICIES]
    + [
        (family, policy)
        for family in ("qwen3", "exaone4", "qwen3_5", "qwen3_5_moe", "qwen3_moe")
        for policy in ("keep", "recompute", "offload")
    ],
)
def test_planned_bytes_are_those_allocated(tmp_path, models, long_shard, family, policy):
    report = profile(tmp_path, config_of(tmp_path, models[family], long_shard, memory={"activation": policy}))
    check_against_measured(report)


@pytest.mark.parametrize(
    "sections",
    [
        {"parallel": {"processes": 2}},
        {"parallel": {"processes": 3}, "memory": {"activation": "recompute"}},
        {"parallel": {"processes": 4, "replicate": 2}},
        {"parallel": {"processes": 2, "accumulate": "keep_full"}},
        {"parallel": {"processes": 2, "gather": "copy"}},
        {"parallel": {"processes": 3, "gather": "copy"}, "memory": {"activation": "recompute"}},
        {"parallel": {"processes": 3, "slots": 4}},
        {"parallel": {"processes": 2, "shard_teacher": False}},
        {"parallel": {"processes": 2, "reduce_dtype": "bfloat16"}, "memory": {"activation": "offload"}},
        {"parallel": {"processes": 2}, "memory": {"optimizer": "host", "activation": "offload_input"}},
        {"memory": {"optimizer": "host"}},
        {"memory": {"optimizer": "host,device"}},
        {"memory": {"optimizer": "cpu,device"}},
        {"parallel": {"processes": 2}, "memory": {"optimizer": "host,cpu"}},
        {"optimizer": {"moments": "bfloat16"}},
        {"optimizer": {"moments": "bfloat16"}, "memory": {"optimizer": "host"}},
        {"optimizer": {"gradients": "bfloat16"}},
        {"optimizer": {"gradients": "bfloat16"}, "memory": {"optimizer": "cpu,device"}},
        {"optimizer": {"gradients": "bfloat16"}, "parallel": {"processes": 2, "accumulate": "keep_full"}},
        {"optimizer": {"gradients": "bfloat16"}, "parallel": {"processes": 4, "replicate": 2}},
        {"parallel": {"processes": 2}, "memory": {"optimizer": "device,host", "activation": "keep,offload"}},
        {"parallel": {"processes": 2, "gather": "copy"}, "memory": {"optimizer": "device,host"}},
        {"student": {"lora": {"rank": 4}}},
        {"student": {"lora": {"rank": 4, "dropout": 0.1}}, "memory": {"activation": "recompute"}},
        {"student": {"lora": {"rank": 4, "modules_to_save": ["lm_head", "norm"]}}, "parallel": {"processes": 2}},
        {
            "student": {"lora": {"rank": 8, "targets": ["q_proj", "layers.1.mlp.down_proj"]}},
            "parallel": {"processes": 3, "gather": "nccl"},
        },
        # Groups of 384 tokens, which a batch's ignored tokens do not make smaller.
        {"data": {"seq_len": 256, "packing": "pack"}, "loss": {"memory_cap_mb": 1, "chunk_size": 192}},
    ],
)
def test_planned_bytes_are_those_allocated_on_any_ranks(tmp_path, models, long_shard, sections):
    config = config_of(tmp_path, models["llama"], long_shard, **sections)
    # Gloo copies what it reduces on threads of its own.
    check_against_measured(profile(tmp_path, config), workspace_too=False)


@pytest.mark.parametrize(
    "family, lora, policy",
    [
        ("qwen3_moe", {"rank": 4}, "keep"),
        ("qwen3_moe", {"rank": 8, "targets": [], "target_parameters": ["experts.down_proj"]}, "recompute"),
        ("qwen3_5_moe", {"rank": 8, "target_parameters": ["gate_up_proj", "down_proj", "gate.weight"]}, "keep"),
        ("qwen3_5_moe", {"rank": 4, "target_parameters": ["gate_up_proj"]}, "offload"),
    ],
)
def test_planned_bytes_of_adapters_on_experts_are_those_allocated(tmp_path, models, long_shard, family, lora, policy):
    memory = {"activation": policy}
    config = config_of(tmp_path, models[family], long_shard, student={"lora": lora}, memory=memory)
    check_against_measured(profile(tmp_path, config))


def test_planned_bytes_are_those_allocated_without_a_teacher(tmp_path, models, long_shard):
    config = config_of(tmp_path, models["llama"], long_shard)
    config["teacher"] = {"path": None}
    config["loss"] = {"divergence": "none", "hard_weight": 1, "memory_cap_mb": 1}
    check_against_measured(profile(tmp_path, config))


def test_the_plan_lists_the_chunks_of_the_head(tmp_path, models, long_shard):
    train = {"steps": 3, "micro_batch_size": 8, "global_batch_size": 8}  # more tokens than one chunk has on any device
    head = tiny.plan(tmp_path, config_of(tmp_path, models["llama"], long_shard, train=train))["head"]
    assert len(head["chunks"]) > 1 and head["chunks"] == sorted(head["chunks"], reverse=True)
    assert head["chunk_size"] == head["chunks"][0] and head["gradient_rows"] == sum(head["chunks"])
    assert head["bytes"] <= 1 << 20


def test_memory_is_flat_over_many_steps_of_offload(tmp_path, models, long_shard):
    peaks = []
    for steps in (3, 40):  # within the first epoch: its last row holds a token without a target
        folder, memory = tmp_path / str(steps), {"activation": "offload", "optimizer": "host"}
        config = config_of(folder, models["llama"], long_shard, memory=memory, data={"seq_len": 64})
        phases = profile(folder, config, "--steps", steps)["measured"]["phases"]
        peaks.append({phase: phases[phase]["highest"] for phase in ("forward", "head", "backward")})
    for phase, categories in peaks[0].items():
        for category, found in categories.items():
            assert peaks[1][phase][category] == pytest.approx(found, abs=20_000), (phase, category)
