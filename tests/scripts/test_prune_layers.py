"""scripts/prune_layers.py against transformers: the student is the teacher with layers taken out."""

import json
import shutil
import struct

import pytest
import torch
import transformers

import multimodal_models
from model_files import changed_copy
from model_shapes import shape

LAYERS = 6
FAMILIES = {
    "llama": (transformers.LlamaConfig, {}),
    "mistral": (transformers.MistralConfig, {"sliding_window": None}),
    "qwen2": (transformers.Qwen2Config, {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}),
    "qwen3": (transformers.Qwen3Config, {}),
    "gemma3": (transformers.Gemma3TextConfig, {"sliding_window": 8, "sliding_window_pattern": 3, "pad_token_id": None}),
    "smollm3": (transformers.SmolLM3Config, {"pad_token_id": None}),
    "phi3": (transformers.Phi3Config, {"pad_token_id": None, "sliding_window": 8}),
    "olmo2": (transformers.Olmo2Config, {"pad_token_id": None}),
    "olmo3": (transformers.Olmo3Config, {"pad_token_id": None, "sliding_window": 8}),
    "exaone4": (transformers.Exaone4Config, {"sliding_window": 8, "sliding_window_pattern": 2}),
    "ministral3": (transformers.Ministral3Config, {"pad_token_id": None}),
    "gemma2": (transformers.Gemma2Config, {"pad_token_id": None, "sliding_window": 8}),
    # Heads of the second half of the layers have another size.
    "gemma4": (
        transformers.Gemma4TextConfig,
        {
            "pad_token_id": None,
            "sliding_window": 8,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 3,
            "global_head_dim": 16,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
        },
    ),
    # Full attention in layer 3.
    "qwen3_5": (
        transformers.Qwen3_5TextConfig,
        {
            "pad_token_id": None,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 12,
        },
    ),
    # Experts in layers 1, 3 and 5.
    "qwen3_moe": (
        transformers.Qwen3MoeConfig,
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 2},
    ),
}


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    """A folder for each family; Qwen's have tied embeddings, and every second one is in shards."""
    folders = {}
    for index, (family, (kind, extra)) in enumerate(FAMILIES.items()):
        torch.manual_seed(index)
        keys = shape(64, 32, 48, LAYERS, 4, 2, head_dim=8, max_position_embeddings=64, initializer_range=0.3)
        config = kind(**keys, tie_word_embeddings=family.startswith("qwen"), **extra)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if index == 1 else torch.float32
        )
        folder = tmp_path_factory.mktemp(family) / "teacher"
        model.save_pretrained(folder, max_shard_size="20KB" if index % 2 else "1GB")
        (folder / "tokenizer.json").write_text('{"a": 1}')
        (folder / "tokenizer_config.json").write_text("{}")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
        (folder / "additional_chat_templates" / "notes.txt").write_text("stays")
        (folder / "notes.txt").write_text("stays")
        folders[family] = folder
    return folders


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)


def logits(model):
    tokens = torch.arange(40).reshape(2, 20)  # longer than Qwen2's window
    with torch.no_grad():
        return model.float()(tokens, use_cache=False).logits  # not every CPU that claims bf16 products has them


def keep(decoder, layers):
    """Takes the other layers out of a model of transformers."""
    decoder.layers = torch.nn.ModuleList(decoder.layers[layer] for layer in layers)
    for index, layer in enumerate(decoder.layers):
        getattr(layer, "self_attn", getattr(layer, "linear_attn", None)).layer_idx = index
    decoder.config.num_hidden_layers = len(layers)


ONE, OTHERS = ("--layers", "0,2,5"), [("--every", "3"), ("--layers", "4")]


@pytest.mark.parametrize(
    "family, choice",
    [(family, ONE) for family in FAMILIES]
    + [(family, choice) for family in ("llama", "qwen2", "gemma3", "gemma4", "qwen3_moe") for choice in OTHERS],
)
def test_the_student_is_the_teacher_without_the_other_layers(tmp_path, teachers, script, family, choice):
    script("prune_layers.py", "--teacher", teachers[family], "--out", tmp_path / "student", *choice)
    layers = list(range(0, LAYERS, 3)) if choice[0] == "--every" else [int(layer) for layer in choice[1].split(",")]
    teacher, _ = load(teachers[family])
    student, report = load(tmp_path / "student")
    assert not any(report.values()), report
    assert student.config.num_hidden_layers == len(layers) == len(student.model.layers)
    keep(teacher.model, layers)
    if getattr(teacher.config, "layer_types", None):
        kinds = [teacher.config.layer_types[layer] for layer in layers]
        assert student.config.layer_types == kinds
        teacher.config.layer_types = kinds
    assert torch.equal(logits(student), logits(teacher))


def test_the_last_layer_of_gemma4_has_full_attention(tmp_path, teachers, script):
    arguments = ("--teacher", teachers["gemma4"], "--out", tmp_path / "student")
    message = script("prune_layers.py", *arguments, "--layers", "0,1", code=1)
    assert "--layers: expected a last layer with full attention" in message and "layers 3, 4, 5" in message
    assert not (tmp_path / "student").exists()


@pytest.mark.parametrize(
    "family, key", [("gemma3", "layer_types"), ("smollm3", "no_rope_layers"), ("qwen3_5", "layer_types")]
)
def test_what_the_class_derives_of_the_layers_numbers_is_written_out(tmp_path, teachers, script, family, key):
    shutil.copytree(teachers[family], tmp_path / "teacher")
    config = json.loads((teachers[family] / "config.json").read_text())
    entries = config.pop(key)
    (tmp_path / "teacher" / "config.json").write_text(json.dumps(config | {"sliding_window_pattern": 3}))
    script("prune_layers.py", "--teacher", tmp_path / "teacher", "--out", tmp_path / "student", "--layers", "2,3,5")
    assert json.loads((tmp_path / "student" / "config.json").read_text())[key] == [entries[i] for i in (2, 3, 5)]
    assert len(set(entries)) == 2


@pytest.mark.parametrize("spelling", multimodal_models.SPELLINGS)
def test_of_a_multimodal_teacher_the_text_loses_layers_and_the_other_parts_stay(tmp_path, script, spelling):
    windows = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
    text = transformers.Qwen3Config(**shape(64, 32, 48, 4, 4, 2, head_dim=8, initializer_range=0.3), **windows)
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    multimodal_models.save(teacher, multimodal_models.mistral3(text, tie_word_embeddings=False), 1, spelling=spelling)
    script("prune_layers.py", "--teacher", teacher, "--out", student, "--layers", "0,3")
    pruned, report = multimodal_models.load(student)
    assert not any(report.values()), report
    expected, _ = multimodal_models.load(teacher)
    decoder = expected.get_decoder()
    keep(decoder, (0, 3))
    kinds = decoder.config.layer_types = [decoder.config.layer_types[layer] for layer in (0, 3)]
    assert kinds == ["full_attention", "sliding_attention"] == pruned.get_decoder().config.layer_types
    assert torch.equal(multimodal_models.with_image(pruned), multimodal_models.with_image(expected))
    before, after = (multimodal_models.all_tensors(folder) for folder in (teacher, student))
    for name, values in before.items():
        if not multimodal_models.is_text(name):
            assert multimodal_models.same_bytes(values, after[name]), name
    assert (student / "preprocessor_config.json").is_file() and (student / "processor_config.json").is_file()


def test_a_teacher_whose_files_say_more_than_its_config(tmp_path, teachers, script):
    """A tied model with a head of other values, as transformers reads it; a layer beyond; an index that is not read."""

    def change(weights):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].flip(0).contiguous()
        weights[f"model.layers.{LAYERS}.mlp.up_proj.weight"] = torch.zeros(3)

    folder = tmp_path / "teacher"
    changed_copy(teachers["llama"], folder, change, tie_word_embeddings=True)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    said = script("prune_layers.py", "--teacher", folder, "--out", tmp_path / "student", "--layers", "0,3")
    assert f"left out, since config.json says {LAYERS} layers (1): model.layers.{LAYERS}.mlp.up_proj.weight" in said
    expected, _ = load(folder)
    keep(expected.model, (0, 3))
    assert torch.equal(logits(load(tmp_path / "student")[0]), logits(expected))


def test_tokenizer_and_generation_files_come_along_and_nothing_else(tmp_path, teachers, script):
    script("prune_layers.py", "--teacher", teachers["llama"], "--out", tmp_path / "student", "--every", "2")
    student = tmp_path / "student"
    names = {str(file.relative_to(student)) for file in student.rglob("*") if file.is_file()}
    assert names == {
        "additional_chat_templates/tool_use.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert not list(tmp_path.glob(".student-*")), "no temporary folder is left"


def test_large_students_are_written_in_shards(tmp_path, teachers, script):
    arguments = ("--teacher", teachers["mistral"], "--out", tmp_path / "student", "--every", "2")
    script("prune_layers.py", *arguments, "--max-shard-gb", "0.00001")
    files = sorted((tmp_path / "student").glob("*.safetensors"))
    assert len(files) > 2 and all(file.stat().st_size < 20_000 for file in files)
    _, report = load(tmp_path / "student")
    assert not any(report.values()), report
    index = json.loads((tmp_path / "student" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {file.name for file in files}


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--every", "0"], "--every: expected a number from 1 to 6"),
        (["--every", "7"], "found 7"),
        (["--layers", "0,6"], "expected layers from 0 to 5, found 6"),
        (["--layers", "2,1"], "expected increasing numbers"),
        (["--layers", "1,1"], "expected increasing numbers"),
        (["--layers", "a"], "expected numbers separated by commas, found 'a'"),
        (["--every", "2", "--max-shard-gb", "0"], "--max-shard-gb"),
    ],
)
def test_a_bad_choice_is_refused(tmp_path, teachers, script, arguments, expected):
    error = script("prune_layers.py", "--teacher", teachers["llama"], "--out", tmp_path / "student", *arguments, code=1)
    assert expected in error
    assert not list(tmp_path.iterdir())


def test_an_existing_folder_is_replaced_only_when_asked(tmp_path, teachers, script):
    arguments = ["--teacher", teachers["llama"], "--out", tmp_path / "student"]
    script("prune_layers.py", *arguments, "--every", "2")
    before = (tmp_path / "student" / "config.json").read_bytes()
    assert "--force" in script("prune_layers.py", *arguments, "--every", "3", code=1)
    assert (tmp_path / "student" / "config.json").read_bytes() == before
    script("prune_layers.py", *arguments, "--every", "3", "--force")
    assert json.loads((tmp_path / "student" / "config.json").read_text())["num_hidden_layers"] == 2
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    elsewhere = ("--teacher", teachers["llama"], "--every", "2", "--force", "--out")
    error = script("prune_layers.py", *elsewhere, tmp_path / "precious", code=1)
    assert "no model folder" in error and (tmp_path / "precious" / "thesis.txt").exists()
    assert "teacher's folder" in script("prune_layers.py", *elsewhere, teachers["llama"], code=1)


def header_of(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def huge_header(folder):
    path = folder / "model.safetensors"
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])


def no_json(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[8] = ord("x")
    path.write_bytes(data)


def missing_layer(folder):
    header, data = header_of(folder / "model.safetensors")
    write(folder / "model.safetensors", {k: v for k, v in header.items() if "layers.4." not in k}, data)


def bad_config(folder):
    (folder / "config.json").write_text('{"num_hidden_layers": "six"}')


def broken_config(folder):
    (folder / "config.json").write_text('{"num_hidden_layers": ')


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def missing_shard(folder):
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    weight_map = {name: "a.safetensors" for name in header_of(folder / "a.safetensors")[0] if name != "__metadata__"}
    weight_map["extra"] = "b.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def not_in_its_shard(folder):
    missing_shard(folder)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["extra"] = "a.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "damage, expected",
    [
        (truncate, "bytes of data"),
        (huge_header, "no safetensors file"),
        (no_json, "bad safetensors header"),
        (missing_layer, "lack layers [4]"),
        (bad_config, "num_hidden_layers: expected a positive number, found six"),
        (broken_config, "not valid JSON"),
        (no_weights, "no model.safetensors"),
        (missing_shard, "b.safetensors: no such file"),
        (not_in_its_shard, "no tensor extra"),
    ],
)
def test_a_damaged_teacher_is_an_error_that_leaves_nothing_behind(tmp_path, teachers, script, damage, expected):
    shutil.copytree(teachers["llama"], tmp_path / "teacher")
    damage(tmp_path / "teacher")
    error = script(
        "prune_layers.py", "--teacher", tmp_path / "teacher", "--out", tmp_path / "student", "--every", "2", code=1
    )
    assert expected in error
    assert [path.name for path in tmp_path.iterdir()] == ["teacher"]
