"""Folders of adapters: peft's, those of every expert's modules, merging, export, names, bad input."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import reference_training
import tiny
from adapters import EXPERTS, LORA, LORA_ON_EXPERTS, config_of, expect_pefts_evaluation, load_peft, logits_of
from model_files import change_model, change_tensors
from run_results import files

peft = pytest.importorskip("peft", reason="peft (scripts/requirements.txt) is not installed")


def folder_of_transformers_4(folder, base):
    """An adapter as peft made it when each expert was three modules, for the second layer of a tiny qwen3_moe."""
    random, tensors = torch.Generator().manual_seed(3), {}
    shapes = {"gate_proj": (48, 32), "up_proj": (48, 32), "down_proj": (32, 48)}
    for expert in range(5):
        for module, (inputs, outputs) in shapes.items():
            name = f"base_model.model.model.layers.1.mlp.experts.{expert}.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(4, inputs, generator=random)
            tensors[f"{name}.lora_B.weight"] = 0.1 * torch.randn(outputs, 4, generator=random)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": 4, "lora_alpha": 8}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": list(shapes)}))
    return folder


def test_an_adapter_of_every_experts_modules_is_read_as_peft_reads_it(tmp_path, models, ragged_shard):
    student, _ = models["qwen3_moe"]
    adapter = folder_of_transformers_4(tmp_path / "old", student)
    config = config_of(tmp_path, models, ragged_shard, "qwen3_moe")
    expect_pefts_evaluation(tmp_path, config, adapter, ragged_shard)
    # What is written after a step of next to nothing is what peft makes of it.
    config |= {"student": {"path": student, "adapter": str(adapter)}, "optimizer": {"lr": 1e-20, "weight_decay": 0}}
    config |= {"train": config["train"] | {"steps": 1}, "scheduler": {"warmup_steps": 0}}
    written = load_file(tiny.train(tmp_path, config) / "model/adapter_model.safetensors")
    expected = peft.get_peft_model_state_dict(load_peft(student, adapter))
    assert set(written) == set(expected)
    assert all(torch.allclose(written[name], expected[name], atol=1e-15, rtol=0) for name in expected)

    def damage(tensors):
        tensors.pop("base_model.model.model.layers.1.mlp.experts.3.up_proj.lora_B.weight")
        tensors["base_model.model.model.layers.1.mlp.experts.0.down_proj.lora_A.weight"] = torch.zeros(3, 32)

    change_tensors(adapter / "adapter_model.safetensors", damage)
    says = ["missing (1)", "experts.3.up_proj.lora_B.weight", "experts.0.down_proj.lora_A.weight ([4, 32] expected"]
    tiny.expect_refused(tmp_path / "bad", config | {"run": {"dir": str(tmp_path / "bad/run")}}, says)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, models, ragged_shard):
    folder = tmp_path_factory.mktemp("lora")
    config = config_of(
        folder, models, ragged_shard, student={"lora": LORA | {"modules_to_save": ["lm_head"]}}, checkpoint={"every": 5}
    )
    return config, tiny.train(folder, config)


@pytest.fixture(scope="module")
def trained_experts(tmp_path_factory, models, ragged_shard):
    """Their folder has the experts one by one. The routers have adapters, too."""
    folder = tmp_path_factory.mktemp("experts")
    config = config_of(folder, models, ragged_shard, "qwen3_moe", student={"lora": LORA}, checkpoint={"every": 5})
    return config, tiny.train(folder, config)


BOTH = pytest.mark.parametrize("which", ["trained", "trained_experts"])


@BOTH
def test_the_merged_model_is_the_adapted_one(tmp_path, ragged_shard, request, which):
    config, run = request.getfixturevalue(which)
    tiny.distill("export", "--checkpoint", run, "--out", tmp_path / "merged", "--merge")
    tiny.distill("verify", tmp_path / "merged")
    merged = reference_training.load(tmp_path / "merged")
    unmerged = load_peft(config["student"]["path"], run / "model")
    assert torch.allclose(logits_of(merged, ragged_shard), logits_of(unmerged, ragged_shard), atol=1e-4, rtol=1e-4)
    expected = unmerged.merge_and_unload().state_dict()
    assert tiny.relative_difference(merged.state_dict(), expected) < 1e-6
    # The run itself writes the same where it is asked to.
    again = {**config, "run": {**config["run"], "dir": str(tmp_path / "run")}}
    again["student"] = {**config["student"], "lora": config["student"]["lora"] | {"merge": True}}
    assert files(tiny.train(tmp_path / "again", again) / "model") == files(tmp_path / "merged")


@BOTH
def test_the_exported_adapter_is_the_one_that_the_run_wrote(tmp_path, request, which):
    _, run = request.getfixturevalue(which)
    tiny.distill("export", "--checkpoint", run, "--out", tmp_path / "adapter")
    assert files(tmp_path / "adapter") == files(run / "model")
    tiny.distill("verify", run / "model")


@BOTH
def test_training_goes_on_from_what_a_run_has_written(tmp_path, models, ragged_shard, request, which):
    _, run = request.getfixturevalue(which)
    family = "llama" if which == "trained" else "qwen3_moe"
    sections = {"student": {"adapter": str(run / "model")}, "train": {"steps": 2}, "scheduler": {"warmup_steps": 0}}
    config = config_of(tmp_path, models, ragged_shard, family, **sections)
    found, _ = tiny.read_metrics(tiny.train(tmp_path, config))
    last = tiny.read_metrics(run)[0][-1]["loss"]
    first = tiny.read_metrics(run)[0][0]["loss"]
    assert abs(found[0]["loss"] - first) > 1e-3  # other than the base alone
    assert found[0]["loss"] < first or last > first


def test_an_adapter_whose_dropout_is_another_one_is_warned_of(tmp_path, models, ragged_shard, trained):
    adapter = copied(trained[1] / "model", tmp_path / "adapter")
    changed(adapter, lora_dropout=0.25)
    for dropout, warned in ((0.125, True), (0.25, False)):
        student = {"adapter": str(adapter), "lora": {"dropout": dropout}}
        config = config_of(tmp_path, models, ragged_shard, student=student)
        done = tiny.distill("--config", tiny.write_config(tmp_path, config), "--dry-run")
        assert ("0.25, is not used: student.lora.dropout is 0.125" in done.stderr) == warned, done.stderr


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
        return lambda folder: change_tensors(folder / "adapter_model.safetensors", change)

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


def test_adapters_of_experts_that_peft_does_not_have_are_errors(tmp_path, models, ragged_shard, trained_experts):
    _, run = trained_experts

    def refused(name, says, family="qwen3_moe", **student):
        config = config_of(tmp_path / name, models, ragged_shard, family, student=student)
        tiny.expect_refused(tmp_path / name, config, says)

    nothing = LORA | {"target_parameters": ["mlp.experts.up_proj"]}
    refused("nothing", ["student.lora", "names that none has: mlp.experts.up_proj", EXPERTS[0]], lora=nothing)
    refused("dense", ["has no experts"], "qwen3", lora=LORA | {"target_parameters": EXPERTS})
    refused("dropout", ["dropout: expected 0 with target_parameters"], lora=LORA_ON_EXPERTS | {"dropout": 0.1})
    refused("half", ["gate_proj and up_proj"], lora=LORA | {"targets": ["gate_proj"]})
    copy = copied(run / "model", tmp_path / "rank")
    changed(copy, r=6, rank_pattern={}, alpha_pattern={})
    name = "experts.base_layer.lora_A.weight"
    refused("other", [str(copy), name, "[30, 48] expected", "[40, 48] found"], adapter=str(copy))


def test_a_checkpoint_of_another_rank_is_refused(tmp_path, models, ragged_shard, trained):
    config, run = trained
    copy = copied(run, tmp_path / "run")
    config = json.loads(json.dumps(config))
    config["run"]["dir"] = str(copy)
    config["student"]["lora"]["rank"] = 6
    config["train"]["steps"] = 12
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), "--resume", code=(1, 2))
    assert "LoRA of rank 4" in done.stderr and "LoRA of rank 6" in done.stderr


def test_a_checkpoint_is_neither_continued_nor_exported_with_another_base(tmp_path, trained):
    config, run = trained
    config, copy, base = json.loads(json.dumps(config)), copied(run, tmp_path / "run"), tmp_path / "base"
    shutil.copytree(config["student"]["path"], base)
    config["student"]["path"], config["run"]["dir"], config["train"]["steps"] = str(base), str(copy), 12
    moved = tiny.write_config(tmp_path, config)
    tiny.distill("--config", moved, "--resume", "--dry-run")
    change_model(base, lambda weights: weights["model.norm.weight"].add_(1))
    refused = tiny.distill("--config", moved, "--resume", code=tiny.BAD_INPUT).stderr
    assert "the files of student.path, the base of its adapters" in refused
    for merge in ([], ["--merge"]):
        arguments = ["--checkpoint", copy, "--model", base, "--out", tmp_path / "out", *merge]
        assert "its adapters belong to other weights" in tiny.distill("export", *arguments, code=tiny.BAD_INPUT).stderr
    assert not (tmp_path / "out").exists()
