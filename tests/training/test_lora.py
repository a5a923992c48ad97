"""Adapters: training against peft, folders of both, ranks, resumption, merging, one copy of the base, bad input."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import reference_training
import tiny
from test_resume import files, state_files, timeless

peft = pytest.importorskip("peft", reason="peft (scripts/requirements.txt) is not installed")

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FUSED = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
LORA = {"rank": 4, "alpha": 8}


def targets_of(family):
    return FUSED if family == "phi3" else ALL_LINEAR


def peft_folder(folder, base, **keys):
    """An adapter that peft has made and saved, whose B are not zero, so that A has a gradient from the first step."""
    keys = {"r": 4, "lora_alpha": 8, "target_modules": ALL_LINEAR} | keys
    torch.manual_seed(11)
    model = peft.get_peft_model(reference_training.load(base), peft.LoraConfig(task_type="CAUSAL_LM", **keys))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
            elif parameter.requires_grad and "modules_to_save" in name:
                parameter.add_(0.02 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return str(folder)


def load_peft(base, folder):
    return peft.PeftModel.from_pretrained(reference_training.load(base), folder)


def config_of(folder, models, shard, family="llama", **sections):
    student, teacher = models[family]
    sections.setdefault("train", {"steps": 10})
    return tiny.base_config(folder, student, teacher, shard, **sections)


def logits_of(model, shard):
    with torch.no_grad():
        return model(reference_training.concat_rows(shard, 32)[0][:8]).logits


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
        ("qwen3_moe", {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
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


@pytest.mark.parametrize("family", ["llama", "qwen3", "exaone4", "mistral", "gemma3", "smollm3", "olmo3", "gemma4"])
def test_a_new_adapter_of_every_family_learns_and_peft_loads_it(tmp_path, models, ragged_shard, family):
    student, _ = models[family]
    config = config_of(tmp_path, models, ragged_shard, family, student={"lora": LORA}, train={"steps": 4})
    run = tiny.train(tmp_path, config)
    trained = load_file(run / "model/adapter_model.safetensors")
    assert all(value.abs().max() > 0 for value in trained.values())
    data = {"eval": [{"path": ragged_shard}]}
    config["data"] |= data
    config["student"] = {"path": student, "adapter": str(run / "model")}
    found = tiny.evaluate(tmp_path, config)
    model = load_peft(student, run / "model")
    rows = [part for part in zip(*(t.split(8) for t in reference_training.concat_rows(ragged_shard, 32)))]
    expected = reference_training.evaluate(model, reference_training.load(models[family][1]), rows, config["loss"])
    for name in ("loss", "hard", "soft"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4), name


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
    "parallel, micro, dropout, whole",
    [
        ({"processes": 3}, 1, 0.0, []),
        ({"processes": 3, "gather": "nccl"}, 2, 0.2, ["lm_head", "embed_tokens", "norm"]),
        ({"processes": 4, "shard": 2, "replicate": 2, "debug_checks": True}, 1, 0.2, ["lm_head"]),
        ({"processes": 2, "shard_teacher": False, "accumulate": "keep_full"}, 1, 0.0, []),
        ({"processes": 2, "shard": 1, "replicate": 2}, 3, 0.2, []),
    ],
)
@pytest.mark.parametrize("teaches_itself", [False, True])
def test_ranks_train_as_one_process_does(
    tmp_path, models, ragged_shard, parallel, micro, dropout, whole, teaches_itself
):
    def run(name, parallel, micro):
        config = config_of(
            tmp_path / name,
            models,
            ragged_shard,
            student={"lora": LORA | {"dropout": dropout, "modules_to_save": whole}},
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


@pytest.mark.parametrize("optimizer", ["device", "host"])
def test_two_halves_equal_the_whole_bit_for_bit(tmp_path, models, ragged_shard, optimizer):
    def run(name, steps):
        config = config_of(
            tmp_path / name,
            models,
            ragged_shard,
            student={"lora": LORA | {"dropout": 0.2, "modules_to_save": ["norm"]}},
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


@pytest.fixture(scope="module")
def trained(tmp_path_factory, models, ragged_shard):
    folder = tmp_path_factory.mktemp("lora")
    config = config_of(
        folder, models, ragged_shard, student={"lora": LORA | {"modules_to_save": ["lm_head"]}}, checkpoint={"every": 5}
    )
    return config, tiny.train(folder, config)


def test_the_merged_model_is_the_adapted_one(tmp_path, models, ragged_shard, trained):
    config, run = trained
    tiny.distill("export", "--checkpoint", run, "--out", tmp_path / "merged", "--merge")
    tiny.distill("verify", tmp_path / "merged")
    merged = reference_training.load(tmp_path / "merged")
    unmerged = load_peft(models["llama"][0], run / "model")
    assert torch.allclose(logits_of(merged, ragged_shard), logits_of(unmerged, ragged_shard), atol=1e-4, rtol=1e-4)
    expected = unmerged.merge_and_unload().state_dict()
    assert tiny.relative_difference(merged.state_dict(), expected) < 1e-6
    # The run itself writes the same where it is asked to.
    again = {**config, "run": {**config["run"], "dir": str(tmp_path / "run")}}
    again["student"] = {**config["student"], "lora": config["student"]["lora"] | {"merge": True}}
    assert files(tiny.train(tmp_path / "again", again) / "model") == files(tmp_path / "merged")


def test_the_exported_adapter_is_the_one_that_the_run_wrote(tmp_path, trained):
    _, run = trained
    tiny.distill("export", "--checkpoint", run, "--out", tmp_path / "adapter")
    assert files(tmp_path / "adapter") == files(run / "model")
    tiny.distill("verify", run / "model")


def test_training_goes_on_from_what_a_run_has_written(tmp_path, models, ragged_shard, trained):
    _, run = trained
    sections = {"student": {"adapter": str(run / "model")}, "train": {"steps": 2}, "scheduler": {"warmup_steps": 0}}
    config = config_of(tmp_path, models, ragged_shard, **sections)
    found, _ = tiny.read_metrics(tiny.train(tmp_path, config))
    last = tiny.read_metrics(run)[0][-1]["loss"]
    first = tiny.read_metrics(run)[0][0]["loss"]
    assert abs(found[0]["loss"] - first) > 1e-3  # other than the base alone
    assert found[0]["loss"] < first or last > first


def test_an_adapter_in_any_version_of_pefts_names_is_read(tmp_path, models, ragged_shard, trained):
    config, run = trained
    expected = adapter_loss(tmp_path / "as-written", config, run / "model", ragged_shard)
    for version, rename in {
        "default": lambda name: name.replace(".weight", ".default.weight") if "lora_" in name else name,
        "wrapper": lambda name: name.replace("lm_head.weight", "lm_head.modules_to_save.weight"),
        "adapter-wrapper": lambda name: name.replace("lm_head.weight", "lm_head.modules_to_save.default.weight"),
    }.items():
        copy = copied(run / "model", tmp_path / version)
        tensors = load_file(copy / "adapter_model.safetensors")
        save_file({rename(name): value for name, value in tensors.items()}, copy / "adapter_model.safetensors")
        assert adapter_loss(tmp_path / f"{version}-run", config, copy, ragged_shard) == expected, version


def adapter_loss(folder, config, adapter, shard):
    config = json.loads(json.dumps(config))
    config["student"] = {"path": config["student"]["path"], "adapter": str(adapter)}
    config["data"]["eval"] = [{"path": shard}]
    return tiny.evaluate(folder, config)["loss"]


def copied(folder, to):
    shutil.copytree(folder, to)
    return to


def test_a_float8_base_is_near_the_exact_one(tmp_path, models, ragged_shard):
    student = tiny.make_model(tmp_path / "wide", "llama", seed=1, tied=False, hidden=64)
    losses = {}
    for dtype in ("auto", "float8"):
        config = tiny.base_config(
            tmp_path / dtype,
            student,
            models["llama"][1],
            ragged_shard,
            student={"dtype": dtype, "lora": LORA},
            train={"steps": 5},
        )
        losses[dtype] = [step["loss"] for step in tiny.read_metrics(tiny.train(tmp_path / dtype, config))[0]]
    assert losses["float8"] != losses["auto"]
    assert losses["float8"] == pytest.approx(losses["auto"], rel=0.03)


def test_the_base_of_both_is_in_memory_once_and_the_plan_says_so(tmp_path, models, ragged_shard):
    student, teacher = models["llama"]
    plans = {}
    for name, path in {"same": student, "other": shutil.copytree(student, tmp_path / "copy")}.items():
        config = config_of(tmp_path / name, models, ragged_shard, student={"lora": LORA})
        config["teacher"]["path"] = str(path)
        plans[name] = tiny.distill("--config", tiny.write_config(tmp_path / name, config), "--dry-run").stdout
        run = tiny.train(tmp_path / name, config)
        losses = [step["loss"] for step in tiny.read_metrics(run)[0]]
        plans[f"{name} losses"] = losses
    assert "one copy" in plans["same"] and "one copy" not in plans["other"]
    assert plans["same losses"] == plans["other losses"]


def test_a_teacher_with_an_adapter_teaches_what_the_merged_one_does(tmp_path, models, ragged_shard):
    student, teacher = models["llama"]
    adapter = peft_folder(tmp_path / "adapter", teacher)
    merged = load_peft(teacher, adapter).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    runs = {}
    for name, section in {
        "merged": {"path": str(tmp_path / "merged")},
        "adapted": {"path": teacher, "adapter": adapter},
    }.items():
        config = config_of(tmp_path / name, models, ragged_shard, train={"steps": 4}, parallel={"processes": 2})
        config["teacher"] = section
        runs[name] = [step["loss"] for step in tiny.read_metrics(tiny.train(tmp_path / name, config))[0]]
    assert runs["adapted"] == pytest.approx(runs["merged"], rel=1e-4)
    config["student"] = {"path": teacher, "lora": LORA}  # the base of both, once, and the teacher's adapter beside it
    config["run"]["dir"] = str(tmp_path / "shared-run")
    shared = [step["loss"] for step in tiny.read_metrics(tiny.train(tmp_path / "shared", config))[0]]
    config["teacher"] = {"path": str(tmp_path / "merged")}
    config["run"]["dir"] = str(tmp_path / "apart-run")
    apart = [step["loss"] for step in tiny.read_metrics(tiny.train(tmp_path / "apart", config))[0]]
    assert shared == pytest.approx(apart, rel=1e-4)


def changed(folder, **keys):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_bad_adapters_are_named_before_anything_is_trained(tmp_path, models, ragged_shard, trained):
    student, teacher = models["llama"]
    _, run = trained

    def refused(name, edit, says, base=student):
        copy = copied(run / "model", tmp_path / name)
        edit(copy)
        config = config_of(tmp_path / f"{name}-run", models, ragged_shard)
        config["student"] = {"path": base, "adapter": str(copy)}
        tiny.expect_refused(tmp_path / f"{name}-run", config, [str(copy)] + says)

    def edit_tensors(change):
        def edit(folder):
            tensors = load_file(folder / "adapter_model.safetensors")
            change(tensors)
            save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})

        return edit

    a = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    refused(
        "shape", edit_tensors(lambda t: t.update({a: torch.zeros(4, 40)})), [a, "[4, 48] expected", "[4, 40] found"]
    )
    refused("missing", edit_tensors(lambda t: t.pop(a)), ["missing (1)", a])
    refused("more", edit_tensors(lambda t: t.update({"base_model.model.score.weight": torch.zeros(2)})), ["unexpected"])
    refused("infinite", edit_tensors(lambda t: t[a].fill_(float("inf"))), ["finite", a])
    refused("dora", lambda f: changed(f, use_dora=True), ["use_dora", "found true"])
    refused("none", lambda f: changed(f, target_modules=["c_attn"]), ["would do nothing", "q_proj"])
    refused("rank", lambda f: changed(f, r=6), ["[6, 48] expected", "[4, 48] found"])
    refused(
        "pickle", lambda f: (f / "adapter_model.safetensors").rename(f / "adapter_model.bin"), ["adapter_model.bin"]
    )
    other = tiny.make_model(tmp_path / "other-base", "llama", seed=77, tied=False)
    refused("base", lambda f: None, ["another", "hash"], base=other)
    refused("named", lambda f: edit_tensors(lambda t: None)(f), ["base_model_name_or_path", student], base=other)


def test_keys_that_contradict_each_other_are_errors(tmp_path, models, ragged_shard, trained):
    _, run = trained

    def refused(name, says, **student):
        config = config_of(tmp_path / name, models, ragged_shard, student=student)
        tiny.expect_refused(tmp_path / name, config, says)

    refused("both", ["student.lora.rank", "student.adapter"], lora=LORA, adapter=str(run / "model"))
    refused("off", ["student.lora.alpha", "student.lora.rank"], lora={"alpha": 3})
    refused("typo", ["c_attn", "names that none has"], lora=LORA | {"targets": ["q_proj", "c_attn"]})
    refused("mixed", ["student.lora.targets", "several"], lora=LORA | {"targets": ["q_proj", "all-linear"]})
    refused("unknown", ["student.lora.rnk", "did you mean"], lora={"rnk": 3})
    config = config_of(tmp_path / "path", models, ragged_shard)
    config["student"] = {"path": str(run / "model")}
    tiny.expect_refused(tmp_path / "path", config, ["it is an adapter: set student.adapter"])
    config = config_of(tmp_path / "moe", models, ragged_shard, "qwen3_moe", student={"lora": LORA})
    tiny.expect_refused(tmp_path / "moe", config, ["expert", "attention"])


def test_a_checkpoint_of_another_rank_is_refused(tmp_path, models, ragged_shard, trained):
    config, run = trained
    copy = copied(run, tmp_path / "run")
    config = json.loads(json.dumps(config))
    config["run"]["dir"] = str(copy)
    config["student"]["lora"]["rank"] = 6
    config["train"]["steps"] = 12
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), "--resume", code=(1, 2))
    assert "LoRA of rank 4" in done.stderr and "LoRA of rank 6" in done.stderr
