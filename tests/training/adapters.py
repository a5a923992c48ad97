"""Adapters as peft makes and loads them, for tests."""

import pytest
import torch

import reference_training
import tiny

peft = pytest.importorskip("peft", reason="peft (scripts/requirements.txt) is not installed")

ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
LORA = {"rank": 4, "alpha": 8}
LORA_ON_EXPERTS = LORA | {"targets": ["q_proj", "o_proj"], "target_parameters": EXPERTS}


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
    sections.setdefault("train", {"steps": 10})
    return tiny.base_config(folder, *models[family], shard, **sections)


def logits_of(model, shard):
    with torch.no_grad():
        return model(reference_training.concat_rows(shard, 32)[0][:8]).logits


def expect_pefts_evaluation(folder, config, adapter, shard):
    """`distill eval` of the student with this adapter has the losses of the model that peft loads."""
    student, teacher = config["student"]["path"], config["teacher"]["path"]
    config = config | {"student": {"path": student, "adapter": str(adapter)}}
    config["data"] = config["data"] | {"eval": [{"path": shard}]}
    found = tiny.evaluate(folder, config)
    rows = [part for part in zip(*(t.split(8) for t in reference_training.concat_rows(shard, 32)))]
    expected = reference_training.evaluate(
        load_peft(student, adapter), reference_training.load(teacher), rows, config["loss"]
    )
    for name in ("loss", "hard", "soft"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4), name
