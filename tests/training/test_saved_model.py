"""What a run writes is an ordinary Hugging Face folder."""

import json
import logging
import warnings

import pytest
import torch
import transformers

import reference_training
import tiny


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_saved_folder_loads_in_transformers_without_a_warning_and_is_the_trained_model(
    tmp_path, models, ragged_shard, family, monkeypatch
):
    student, teacher = models[family]
    config = tiny.base_config(
        tmp_path,
        student,
        teacher,
        ragged_shard,
        train={"steps": 6},
        data={"eval": [{"path": ragged_shard}]},
        eval={"every": 6},
    )
    run = tiny.train(tmp_path, config)

    messages = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = transformers.utils.logging.get_logger("transformers")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                run / "model", dtype=torch.float32, output_loading_info=True
            )
    finally:
        logger.removeHandler(handler)
    assert not messages
    assert not any(report.values()), report

    # The program's own last evaluation, from the weights in its memory, against transformers on the saved folder.
    during = tiny.read_metrics(run)[1][-1]
    assert during["step"] == 6
    rows = list(zip(*(part.split(8) for part in reference_training.concat_rows(ragged_shard, 32))))
    expected = reference_training.evaluate(model, reference_training.load(teacher), rows, config["loss"])
    before = reference_training.evaluate(
        reference_training.load(student), reference_training.load(teacher), rows, config["loss"]
    )
    assert expected["loss"] < before["loss"] - 0.01, "six steps changed the model"
    for name in ("loss", "hard", "soft", "forward_kl", "reverse_kl", "valid_tokens"):
        assert during["eval"][name] == pytest.approx(expected[name], rel=2e-5), name


def test_the_saved_config_is_the_students(tmp_path, models, ragged_shard):
    student, teacher = models["qwen3"]
    config = tiny.base_config(
        tmp_path, student, teacher, ragged_shard, train={"steps": 1}, scheduler={"warmup_steps": 0}
    )
    run = tiny.train(tmp_path, config)
    fields = [transformers.AutoConfig.from_pretrained(folder).to_dict() for folder in (student, run / "model")]
    for values in fields:
        values.pop("_name_or_path", None)
    assert fields[0] == fields[1]
    names = {path.name for path in (run / "model").iterdir()}
    assert {"config.json", "model.safetensors", "generation_config.json"} <= names
    assert json.loads((run / "model" / "config.json").read_text())["tie_word_embeddings"] is True
    assert "lm_head.weight" not in tiny.load_weights(run / "model")
