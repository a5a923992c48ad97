"""Adapters: training against peft, ranks, resumption, float8, one copy of the base, teachers with adapters."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

import reference_training
import tiny
from adapters import (
    EXPERTS,
    LORA,
    LORA_ON_EXPERTS,
    config_of,
    expect_pefts_evaluation,
    load_peft,
    logits_of,
    peft_folder,
)
from run_results import files, state_files, timeless

peft = pytest.importorskip("peft", reason="peft (scripts/requirements.txt) is not installed")

FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]


def compare_steps(found, expected):
    for step, reference in zip(found, expected, strict=True):
        for name in ("loss", "hard", "soft", "grad_norm"):
            assert step[name] == pytest.approx(reference[name], rel=1e-4), f"step {step['step']}: {name}"


@pytest.mark.parametrize(
    "family, keys",
    [
        ("llama", {}),
        ("llama", {"modules_to_save": ["lm_head", "embed_tokens", "norm"]}),
        ("llama", {"use_rslora": True, "rank_pattern": {"layers.1.mlp.up_proj": 2}, "alpha_pattern": {"q_proj": 3}}),
        ("llama", {"target_modules": r".*layers\.1\.self_attn\.(q|v)_proj"}),
        ("qwen2", {"target_modules": ["q_proj", "v_proj"]}),
        ("qwen3", {"target_modules": "all-linear"}),
        ("gemma2", {}),
        ("olmo2", {}),
        ("phi3", {"target_modules": FUSED}),
        ("qwen3_5", {"target_modules": "all-linear"}),
        ("qwen3_moe", {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
        ("qwen3_moe", {"target_modules": [], "target_parameters": EXPERTS}),
        ("qwen3_moe", {"target_modules": ["q_proj"], "target_parameters": ["down_proj"], "r": 3}),
        ("qwen3_moe", {"target_modules": "all-linear"}),
        ("qwen3_5_moe", {"target_modules": ["q_proj", "out_proj"], "target_parameters": [*EXPERTS, "mlp.gate.weight"]}),
        ("qwen3_5_moe", {"target_modules": "all-linear"}),
    ],
)
def test_ten_steps_from_an_adapter_of_peft_follow_peft(tmp_path, models, ragged_shard, family, keys):
    student, _ = models[family]
    start = peft_folder(tmp_path / "start", student, **keys)
    config = config_of(tmp_path, models, ragged_shard, family, student={"adapter": start})
    expected, model = reference_training.train(
        config, adapt=lambda base: peft.PeftModel.from_pretrained(base, start, is_trainable=True)
    )
    run = tiny.train(tmp_path, config)
    found, _ = tiny.read_metrics(run)
    compare_steps(found, expected)

    reference = peft.get_peft_model_state_dict(model)
    trained, initial = (
        load_file(run / "model/adapter_model.safetensors"),
        load_file(f"{start}/adapter_model.safetensors"),
    )
    assert set(trained) == set(reference) == set(initial)
    update = {name: reference[name] - initial[name] for name in reference}
    assert all(value.norm() > 0 for value in update.values())
    assert tiny.relative_difference({name: trained[name] - initial[name] for name in reference}, update) < 1e-3

    # peft loads what was written, and has the logits of the model that was trained.
    assert torch.allclose(
        logits_of(load_peft(student, run / "model"), ragged_shard), logits_of(model, ragged_shard), atol=2e-3, rtol=1e-3
    )


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "qwen3",
        "exaone4",
        "mistral",
        "ministral3",
        "gemma3",
        "smollm3",
        "olmo3",
        "gemma4",
        "qwen3_5",
        "qwen3_moe",
        "qwen3_5_moe",
    ],
)
def test_a_new_adapter_of_every_family_learns_and_peft_loads_it(tmp_path, models, ragged_shard, family):
    student, _ = models[family]
    config = config_of(tmp_path, models, ragged_shard, family, student={"lora": LORA}, train={"steps": 4})
    run = tiny.train(tmp_path, config)
    trained = load_file(run / "model/adapter_model.safetensors")
    assert all(value.abs().max() > 0 for value in trained.values())
    expect_pefts_evaluation(tmp_path, config, run / "model", ragged_shard)


def test_the_first_values_are_pefts_and_follow_from_the_seed(tmp_path, models, ragged_shard):
    """B is zero, A uniform in +-1/sqrt(inputs); with a learning rate of next to nothing they are what is written."""

    def first_values(name, seed, ranks):
        config = config_of(
            tmp_path / name,
            models,
            ragged_shard,
            student={"lora": LORA},
            train={"steps": 1, "seed": seed, "micro_batch_size": 1, "global_batch_size": 6},
            optimizer={"lr": 1e-20, "weight_decay": 0},
            scheduler={"warmup_steps": 0},
            parallel={"processes": ranks},
        )
        return load_file(tiny.train(tmp_path / name, config) / "model/adapter_model.safetensors")

    first = first_values("a", 3, 1)
    for name, value in first.items():
        if "lora_B" in name:
            assert value.abs().max() < 1e-15, name
        else:
            bound = value.shape[1] ** -0.5
            assert 0.9 * bound < value.abs().max() <= bound
            assert value.std() == pytest.approx(bound / 3**0.5, rel=0.25)
    again, other = first_values("b", 3, 2), first_values("c", 4, 1)
    a_names = [name for name in first if "lora_A" in name]
    assert all(torch.equal(first[name], again[name]) for name in a_names)
    assert not any(torch.equal(first[name], other[name]) for name in a_names)
    assert not torch.equal(first[a_names[0]], first[a_names[1]])


@pytest.mark.parametrize(
    "family, parallel, micro, lora",
    [
        ("llama", {"processes": 3}, 1, LORA),
        (
            "llama",
            {"processes": 3, "gather": "nccl"},
            2,
            LORA | {"dropout": 0.2, "modules_to_save": ["lm_head", "embed_tokens", "norm"]},
        ),
        (
            "llama",
            {"processes": 4, "shard": 2, "replicate": 2, "debug_checks": True},
            1,
            LORA | {"dropout": 0.2, "modules_to_save": ["lm_head"]},
        ),
        ("llama", {"processes": 2, "shard_teacher": False, "accumulate": "keep_full"}, 1, LORA),
        ("llama", {"processes": 2, "shard": 1, "replicate": 2}, 3, LORA | {"dropout": 0.2}),
        ("qwen3_5_moe", {"processes": 4, "shard": 2, "replicate": 2}, 1, LORA_ON_EXPERTS),
        ("qwen3_moe", {"processes": 3}, 2, LORA),  # the routers' loss is that of the micro-batches
    ],
)
@pytest.mark.parametrize("teaches_itself", [False, True])
def test_ranks_train_as_one_process_does(tmp_path, models, ragged_shard, family, parallel, micro, lora, teaches_itself):
    def run(name, parallel, micro):
        config = config_of(
            tmp_path / name,
            models,
            ragged_shard,
            family,
            student={"lora": lora},
            train={"steps": 6, "micro_batch_size": micro, "global_batch_size": 12},
            parallel=parallel,
        )
        if teaches_itself:
            config["teacher"]["path"] = config["student"]["path"]
        folder = tiny.train(tmp_path / name, config)
        return tiny.read_metrics(folder)[0], load_file(folder / "model/adapter_model.safetensors")

    steps, weights = run("one", {"processes": 1}, 2)
    found, trained = run("many", parallel, micro)
    for one, many in zip(steps, found, strict=True):
        assert many["loss"] == pytest.approx(one["loss"], rel=1e-4, abs=1e-6)
        assert many["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)
    assert tiny.relative_difference(trained, weights) < 1e-3


@pytest.mark.parametrize(
    "family, optimizer, lora",
    [
        ("llama", "device", LORA | {"dropout": 0.2, "modules_to_save": ["norm"]}),
        ("llama", "host", LORA | {"dropout": 0.2, "modules_to_save": ["norm"]}),
        ("qwen3_5_moe", "device", LORA_ON_EXPERTS),
    ],
)
def test_two_halves_equal_the_whole_bit_for_bit(tmp_path, models, ragged_shard, family, optimizer, lora):
    def run(name, steps):
        config = config_of(
            tmp_path / name,
            models,
            ragged_shard,
            family,
            student={"lora": lora},
            train={"steps": 8, "micro_batch_size": 1, "deterministic": tiny.DEVICE == "cuda"},
            checkpoint={"every": 4},
            memory={"optimizer": optimizer, "activation": "recompute"},
            parallel={"processes": 2},
        )
        folder = tiny.train(tmp_path / name, config)
        return config, folder

    _, whole = run("whole", 8)
    config, half = run("half", 8)
    state = state_files(whole, 8)
    assert sum(map(len, state.values())) < 300_000  # the base is in none of them
    shutil.rmtree(half / "checkpoints/step-8")
    shutil.rmtree(half / "model")
    tiny.distill("--config", tiny.write_config(tmp_path / "half", config), "--resume")
    assert state_files(half, 8) == state
    assert files(half / "model") == files(whole / "model")
    assert timeless(tiny.read_metrics(half)[0]) == timeless(tiny.read_metrics(whole)[0])


@pytest.mark.parametrize("family, lora", [("llama", LORA), ("qwen3_moe", LORA), ("qwen3_5_moe", LORA_ON_EXPERTS)])
def test_a_float8_base_is_near_the_exact_one(tmp_path, models, ragged_shard, family, lora):
    student = tiny.make_model(tmp_path / "wide", family, seed=1, tied=False, hidden=64)
    losses = {}
    for dtype in ("auto", "float8"):
        config = tiny.base_config(
            tmp_path / dtype,
            student,
            models["llama"][1],
            ragged_shard,
            student={"dtype": dtype, "lora": lora},
            train={"steps": 5},
        )
        losses[dtype] = [step["loss"] for step in tiny.read_metrics(tiny.train(tmp_path / dtype, config))[0]]
    assert losses["float8"] != losses["auto"]
    assert losses["float8"] == pytest.approx(losses["auto"], rel=0.03)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_the_base_of_both_is_in_memory_once_and_the_plan_says_so(tmp_path, models, ragged_shard, family):
    student, teacher = models[family]
    plans = {}
    for name, path in {"same": student, "other": shutil.copytree(student, tmp_path / "copy")}.items():
        config = config_of(tmp_path / name, models, ragged_shard, family, student={"lora": LORA})
        config["teacher"]["path"] = str(path)
        plans[name] = tiny.distill("--config", tiny.write_config(tmp_path / name, config), "--dry-run").stdout
        run = tiny.train(tmp_path / name, config)
        losses = [step["loss"] for step in tiny.read_metrics(run)[0]]
        plans[f"{name} losses"] = losses
    assert "one copy" in plans["same"] and "one copy" not in plans["other"]
    assert plans["same losses"] == plans["other losses"]


@pytest.mark.parametrize(
    "family, keys, lora",
    [
        ("llama", {}, LORA),
        ("qwen3_5_moe", {"target_modules": ["q_proj"], "target_parameters": EXPERTS}, LORA_ON_EXPERTS),
    ],
)
def test_a_teacher_with_an_adapter_teaches_what_the_merged_one_does(tmp_path, models, ragged_shard, family, keys, lora):
    student, teacher = models[family]
    adapter = peft_folder(tmp_path / "adapter", teacher, **keys)
    merged = load_peft(teacher, adapter).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    runs = {}
    for name, section in {
        "merged": {"path": str(tmp_path / "merged")},
        "adapted": {"path": teacher, "adapter": adapter},
    }.items():
        config = config_of(tmp_path / name, models, ragged_shard, family, train={"steps": 4}, parallel={"processes": 2})
        config["teacher"] = section
        runs[name] = [step["loss"] for step in tiny.read_metrics(tiny.train(tmp_path / name, config))[0]]
    assert runs["adapted"] == pytest.approx(runs["merged"], rel=1e-4)
    config["student"] = {"path": teacher, "lora": lora}  # the base of both, once, and the teacher's adapter beside it
    config["run"]["dir"] = str(tmp_path / "shared-run")
    shared = [step["loss"] for step in tiny.read_metrics(tiny.train(tmp_path / "shared", config))[0]]
    config["teacher"] = {"path": str(tmp_path / "merged")}
    config["run"]["dir"] = str(tmp_path / "apart-run")
    apart = [step["loss"] for step in tiny.read_metrics(tiny.train(tmp_path / "apart", config))[0]]
    assert shared == pytest.approx(apart, rel=1e-4)
