"""Students and teachers that are the text models of multimodal folders."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

import cache_kinds
import multimodal_models as multimodal
import reference_training
import run_results
import tiny
from model_files import change_tensors
from model_shapes import shape

TEXT = shape(tiny.VOCAB, 48, 96, 2, 4, 2, head_dim=16, max_position_embeddings=256, initializer_range=0.15)
TEACHER = TEXT | {"num_hidden_layers": 3, "vocab_size": tiny.TEACHER_VOCAB}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
YARN |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(student, teacher): folders of two kinds and two namings, tied and untied, in shards and in one file."""
    root = tmp_path_factory.mktemp("multimodal")
    mistral = transformers.MistralConfig(**TEXT, sliding_window=None, tie_word_embeddings=True)
    return (
        multimodal.save(root / "student", multimodal.mistral3(mistral), seed=1, shard_size="60KB"),
        multimodal.save(
            root / "teacher", multimodal.llava(transformers.LlamaConfig(**TEACHER)), seed=2, spelling="transformers 5"
        ),
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, folders):
    """Those folders, and a student of Gemma 3 with a teacher of Ministral 3."""
    root = tmp_path_factory.mktemp("pairs")
    gemma = transformers.Gemma3TextConfig(**TEXT, sliding_window=12, query_pre_attn_scalar=16, pad_token_id=None)
    ministral = transformers.Ministral3Config(**TEACHER, rope_parameters=YARN)
    wide = {"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "pad_token_id": 0}
    wide |= {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}
    dense = transformers.Gemma4TextConfig(**TEXT, **wide, hidden_size_per_layer_input=0)
    unified = transformers.Gemma4UnifiedTextConfig(**TEXT | wide | {"vocab_size": tiny.TEACHER_VOCAB})
    return {
        "mistral3 from llava": folders,
        "gemma3 from ministral3": (
            multimodal.save(root / "student", multimodal.gemma3(gemma), seed=3, spelling="transformers 5"),
            multimodal.save(root / "teacher", multimodal.mistral3(ministral, tie_word_embeddings=False), seed=4),
        ),
        "gemma4 from gemma4_unified": (
            multimodal.save(root / "gemma4", multimodal.gemma4(dense), seed=5),
            multimodal.save(root / "unified", multimodal.gemma4_unified(unified), seed=6),
        ),
    }


@pytest.fixture(scope="module")
def text_shard(tmp_path_factory):
    """Documents without tokens for which transformers computes something else in a text: that of an image in Gemma 4,
    whose embedding is that of padding, and that of padding, which is not trained."""
    documents = [
        (tokens + (tokens == 0) + (tokens == multimodal.IMAGE_TOKEN), in_loss)
        for tokens, in_loss in tiny.random_documents(3, [5, 61, 17, 128, 2, 33, 90, 47] * 5)
    ]
    return tiny.make_shard(tmp_path_factory.mktemp("text") / "text.dtok", documents)


def other_parts(folder):
    return {name: values for name, values in multimodal.all_tensors(folder).items() if not multimodal.is_text(name)}


def expect_other_parts(folder, source):
    expected, found = other_parts(source), other_parts(folder)
    assert len(expected) > 10 and found.keys() == expected.keys()
    for name, values in expected.items():
        assert multimodal.same_bytes(found[name], values), name


@pytest.mark.parametrize("pair", ["mistral3 from llava", "gemma3 from ministral3", "gemma4 from gemma4_unified"])
def test_twenty_steps_follow_the_reference_and_the_saved_folder_is_the_model_with_other_text(
    tmp_path, pairs, text_shard, pair
):
    student, teacher = pairs[pair]
    config = tiny.base_config(tmp_path, student, teacher, text_shard)
    expected, trained = reference_training.train(config)
    run = tiny.train(tmp_path, config)
    found, _ = tiny.read_metrics(run)
    assert len(found) == 20
    for step, reference in zip(found, expected, strict=True):
        for name in ("loss", "hard", "soft", "forward_kl", "teacher_ce", "grad_norm"):
            assert step[name] == pytest.approx(reference[name], rel=1e-4), f"step {step['step']}: {name}"

    saved, info = multimodal.load(run / "model")
    assert not any(info.values()), info
    assert type(saved) is type(trained)
    expect_other_parts(run / "model", student)
    weights = {name: values for name, values in saved.state_dict().items() if multimodal.is_text(name)}
    reference = {name: values for name, values in trained.state_dict().items() if name in weights}
    assert tiny.relative_difference(weights, reference) < 1e-4
    original, _ = multimodal.load(student)
    before = multimodal.with_image(original)
    original.load_state_dict(weights, strict=False)
    assert torch.equal(multimodal.with_image(saved), multimodal.with_image(original))
    assert not torch.allclose(multimodal.with_image(saved), before, rtol=0.1)

    names = {path.name for path in (run / "model").iterdir()}
    assert {"preprocessor_config.json", "processor_config.json", "generation_config.json"} <= names
    fields = [json.loads((folder / "config.json").read_text()) for folder in (Path(student), run / "model")]
    assert fields[0] == fields[1]
    tiny.distill("verify", run / "model")


def test_ranks_resumption_and_export_write_the_same_folder(tmp_path, folders, ragged_shard):
    def config(name, **sections):
        train = {"steps": 6, "micro_batch_size": 1, "global_batch_size": 6}
        sections.setdefault("checkpoint", {"every": 3})
        return tiny.base_config(tmp_path / name, *folders, ragged_shard, train=train, **sections)

    whole = tiny.train(tmp_path / "whole", config("whole"))
    stopped = config("stopped")
    tiny.train(tmp_path / "stopped", stopped)
    shutil.rmtree(tmp_path / "stopped" / "run" / "checkpoints" / "step-6")
    shutil.rmtree(tmp_path / "stopped" / "run" / "model")
    tiny.train(tmp_path / "stopped", stopped, "--resume")
    assert run_results.files(tmp_path / "stopped" / "run" / "model") == run_results.files(whole / "model")
    tiny.distill("export", "--checkpoint", whole / "checkpoints" / "step-6", "--out", tmp_path / "exported")
    assert run_results.files(tmp_path / "exported") == run_results.files(whole / "model")

    ranked = tiny.train(tmp_path / "ranked", config("ranked", parallel={"processes": tiny.RANKS}))
    expect_other_parts(ranked / "model", folders[0])
    ours, theirs = (multimodal.all_tensors(run / "model") for run in (whole, ranked))
    assert tiny.relative_difference(theirs, ours) < 1e-5


def test_a_model_in_another_dtype_leaves_the_other_parts_as_they_are(tmp_path, folders, ragged_shard):
    config = tiny.base_config(
        tmp_path,
        *folders,
        ragged_shard,
        train={"steps": 1},
        scheduler={"warmup_steps": 0},
        checkpoint={"model_dtype": "bfloat16"},
    )
    model = tiny.train(tmp_path, config) / "model"
    expect_other_parts(model, folders[0])
    text = {values.dtype for name, values in multimodal.all_tensors(model).items() if multimodal.is_text(name)}
    assert text == {torch.bfloat16}
    assert json.loads((model / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_captured_teacher_and_an_evaluation_equal_the_running_one(tmp_path, folders, ragged_shard):
    data = {"packing": "pack", "eval": [{"path": ragged_shard}]}
    train = {"steps": 4}
    online = tiny.base_config(tmp_path / "online", *folders, ragged_shard, data=data, train=train, eval={"every": 4})
    cache_kinds.capture(online, tmp_path / "cache")
    cached = tiny.base_config(tmp_path / "cached", *folders, ragged_shard, data=data, train=train, eval={"every": 4})
    cached["teacher"] = {"source": "cache", "cache": str(tmp_path / "cache")}
    runs = [tiny.train(tmp_path / name, config) for name, config in (("online", online), ("cached", cached))]
    records = [[run_results.timeless(part) for part in tiny.read_metrics(run)] for run in runs]
    for mine, theirs in zip(*(part[0] for part in records), strict=True):
        assert mine["loss"] == theirs["loss"]
    files = [run_results.files(run / "model") for run in runs]
    assert files[0] == files[1]
    evaluated = tiny.evaluate(tmp_path, online, student_path=runs[0] / "model")
    assert evaluated["loss"] == pytest.approx(tiny.read_metrics(runs[0])[1][-1]["eval"]["loss"], rel=1e-6)


def test_plan_and_inspect_describe_the_text_model(tmp_path, folders, ragged_shard):
    config = tiny.base_config(tmp_path, *folders, ragged_shard)
    tiny.distill("plan", "--config", tiny.write_config(tmp_path, config))
    shown = tiny.distill("inspect", folders[0]).stdout
    count = sum(
        values.numel() for name, values in multimodal.all_tensors(folders[0]).items() if multimodal.is_text(name)
    )
    assert f"{count:,} parameters" in shown
    assert "of this mistral3 model, the text model is read" in shown
    assert "tensors that are not of the text model, and that saved models keep" in shown


def edited_config(change):
    def edit(folder):
        path = folder / "config.json"
        fields = json.loads(path.read_text())
        change(fields)
        path.write_text(json.dumps(fields))

    return edit


def edited_tensors(change):
    return lambda folder: change_tensors(folder / "model.safetensors", change)


def without_text(tensors):
    for name in [name for name in tensors if multimodal.is_text(name)]:
        del tensors[name]


NORM = "model.language_model.norm.weight"
BAD = {
    "text_config of another width": (
        edited_config(lambda fields: fields["text_config"].update(intermediate_size=80)),
        ["model.language_model.layers.0.mlp.gate_proj.weight ([80, 48] expected, [96, 48] found)"],
    ),
    "text_config without a tensor": (
        edited_tensors(lambda tensors: tensors.pop(NORM)),
        [f"missing (1): {NORM}"],
    ),
    "no text at all": (
        edited_tensors(without_text),
        ["no tensor of its text model (llama)", "model.language_model.", "found ("],
    ),
    "two text models": (
        edited_tensors(lambda tensors: tensors.update({"language_model.model.norm.weight": tensors[NORM].clone()})),
        [
            "one decoder of a text model is expected, found two",
            "model.language_model.",
            "language_model.model.norm.weight",
        ],
    ),
    "an unknown text model": (
        edited_config(lambda fields: fields["text_config"].update(model_type="mamba")),
        ['config.json: text_config: model_type: "mamba" is not supported; llama, mistral'],
    ),
    "no text_config": (
        edited_config(lambda fields: fields.update(text_config=None)),
        ["config.json: text_config: an object with the keys of the text model is expected, found none"],
    ),
    "quantised": (
        edited_config(lambda fields: fields.update(quantization_config={"quant_method": "fp8"})),
        ["config.json: quantization_config: quantised weights are not supported"],
    ),
}


@pytest.mark.parametrize("role", ["student", "teacher"])
@pytest.mark.parametrize("case", BAD)
def test_a_bad_folder_is_refused_before_the_first_step(tmp_path, folders, ragged_shard, case, role):
    edit, says = BAD[case]
    folder = shutil.copytree(folders[1], tmp_path / "bad")
    edit(folder)
    config = tiny.base_config(tmp_path, *folders, ragged_shard)
    config[role]["path"] = str(folder)
    tiny.expect_refused(tmp_path, config, [str(folder), *says])
