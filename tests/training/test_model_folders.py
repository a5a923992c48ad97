"""Model folders whose files contradict each other: the run, its checkpoints and what it saves follow one reading."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import reference_training
import tiny
from model_files import change_model


def with_other_head(folder):
    """A model that config.json calls tied, with an lm_head of other values."""

    def change(weights):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].flip(0).contiguous()

    change_model(tiny.make_model(folder, "llama", seed=1, tied=True), change)
    return str(folder)


def untied(folder):
    config = json.loads((folder / "config.json").read_text())
    return not config["tie_word_embeddings"] and "lm_head.weight" in tiny.load_weights(folder)


@pytest.mark.parametrize("ranks", [1, tiny.RANKS])
def test_a_student_with_a_head_of_other_values_is_trained_untied(tmp_path, models, ragged_shard, ranks):
    tiny.need_devices(ranks)
    student = with_other_head(tmp_path / "student")
    sections = {
        "data": {"eval": [{"path": ragged_shard}]},
        "eval": {"every": 3, "at_start": True},
        "checkpoint": {"every": 3},
        "parallel": {"processes": ranks},
        "scheduler": {"warmup_steps": 0},
    }
    config = tiny.base_config(tmp_path, student, models["llama"][1], ragged_shard, train={"steps": 3}, **sections)
    config["train"]["global_batch_size"] = 12
    path = tiny.write_config(tmp_path, config)
    done = tiny.distill("--config", path)
    assert done.stderr.count("the model is untied: its files have an lm_head.weight with other values") >= 1
    run = tmp_path / "run"
    rows = list(zip(*(part.split(8) for part in reference_training.concat_rows(ragged_shard, 32))))
    teacher = reference_training.load(models["llama"][1])
    evaluations = [record["eval"]["hard"] for record in tiny.read_metrics(run)[1]]
    for folder, hard in zip((student, run / "model"), (evaluations[0], evaluations[-1])):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        expected = reference_training.evaluate(model, teacher, rows, config["loss"])
        assert hard == pytest.approx(expected["hard"], rel=2e-5)
    assert untied(run / "model")
    # Resuming and exporting read the folder in the same way.
    tiny.distill("--config", path, "--resume", "--set", "train.steps=4")
    tiny.distill("export", "--checkpoint", run, "--out", tmp_path / "exported")
    assert untied(tmp_path / "exported")
    assert tiny.load_weights(tmp_path / "exported").keys() == tiny.load_weights(run / "model").keys()
    # A plan from the same folder has the same parameters.
    assert "untied" in tiny.distill("inspect", student).stdout


def test_random_weights_have_the_ties_of_config_json(tmp_path, models, ragged_shard):
    student = with_other_head(tmp_path / "student")
    config = tiny.base_config(tmp_path, student, models["llama"][1], ragged_shard, train={"steps": 1})
    config["student"]["init"] = "random"
    config["scheduler"] = {"warmup_steps": 0}
    run = tiny.train(tmp_path, config)
    assert not untied(run / "model")
    tiny.distill("export", "--checkpoint", run, "--out", tmp_path / "exported")
    assert not untied(tmp_path / "exported")


def test_a_teacher_with_a_head_of_other_values_is_captured_with_it(tmp_path, models, ragged_shard):
    teacher = with_other_head(tmp_path / "teacher")
    config = tiny.base_config(tmp_path / "online", models["llama"][0], teacher, ragged_shard, train={"steps": 4})
    config["data"]["packing"] = "pack"
    online = tiny.train(tmp_path, config)
    cache = tmp_path / "cache"
    path = tiny.write_config(tmp_path / "capture", config)
    tiny.distill("capture", "--config", path, "--set", f"teacher.cache={cache}")
    head = load_file(cache / "head" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(head, load_file(tmp_path / "teacher" / "model.safetensors")["lm_head.weight"])
    config["teacher"] = {"source": "cache", "cache": str(cache)}
    config["run"] = {"dir": str(tmp_path / "cached" / "run")}
    cached = tiny.train(tmp_path / "cached", config)
    losses = [[record["loss"] for record in tiny.read_metrics(run)[0]] for run in (online, cached)]
    assert losses[0] == losses[1]


def test_tensors_that_are_left_out_are_named_once(tmp_path, models, ragged_shard):
    tiny.make_model(tmp_path / "student", "llama", seed=1, tied=False)
    path = tmp_path / "student" / "model.safetensors"
    weights = load_file(path)
    save_file(weights | {f"mtp.{i}.weight": torch.zeros(2) for i in range(20)}, path, metadata={"format": "pt"})
    command = ("eval", "--student", tmp_path / "student", "--data", ragged_shard)
    done = tiny.distill(*command, "--set", "train.device=cpu", "data.seq_len=32")
    lines = [line for line in done.stderr.splitlines() if "mtp.0.weight" in line]
    assert len(lines) == 1 and "left out" in lines[0] and "(20)" in lines[0] and "and 14 more" in lines[0]
    save_file(weights | {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}, path, metadata={"format": "pt"})
    refused = tiny.distill(*command, code=tiny.BAD_INPUT)
    assert "unexpected inside the model (1): model.layers.0.self_attn.q_proj.bias" in refused.stderr
