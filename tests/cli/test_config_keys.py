"""What a model's config.json may hold: every key that transformers writes, and keys that the user allows."""

import json

import pytest

import tiny_job


@pytest.mark.parametrize("name", ["LlamaConfig", "MistralConfig", "Qwen2Config", "Qwen3Config"])
def test_every_key_of_transformers_is_read_or_ignored(distill, tmp_path, name):
    import transformers

    shape = {key: value for key, value in tiny_job.MODEL.items() if key not in ("architectures", "torch_dtype")}
    del shape["model_type"], shape["rope_theta"]
    config = getattr(transformers, name)(**shape, dtype="float32")
    # What files of transformers 4 hold as well: parameters of generation, whatever their values.
    generation = {key: "x" for key in transformers.GenerationConfig().to_dict() if not hasattr(config, key)}
    for key in ("transformers_version", "_from_model_config"):
        generation.pop(key, None)
    config_json = {**json.loads(config.to_json_string(use_diff=False)), **generation, "sliding_window": None}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config_json))
    done = distill(tmp_path, "inspect", "model")
    assert done.returncode == 0, done.stderr


def test_an_unknown_key_is_refused_until_it_is_allowed(distill, place):
    config = json.loads((place / "student" / "config.json").read_text())
    (place / "student" / "config.json").write_text(json.dumps({**config, "my_note": 1, "other": [2]}))
    refused = distill(place, "--config", "config.yaml", "--dry-run")
    assert refused.returncode == 2
    assert "student.ignore_config_keys" in refused.stderr and "my_note" in refused.stderr
    allowed = "student.ignore_config_keys=[my_note, other]"
    done = distill(place, "--config", "config.yaml", "--set", allowed)
    assert done.returncode == 0, done.stderr
    # The key goes on into the trained model, and the run says so where it is read again.
    assert json.loads((place / "run" / "model" / "config.json").read_text())["my_note"] == 1
    assert distill(place, "--config", "run/config.yaml", "--resume", "--set", "train.steps=3").returncode == 0
    assert distill(place, "export", "--checkpoint", "run", "--out", "exported").returncode == 0
    args = ["plan", "--config", "config.yaml", "--set", "memory.on_overflow=warn"]
    assert distill(place, *args).returncode == 2
    assert distill(place, *args, allowed).returncode == 0
