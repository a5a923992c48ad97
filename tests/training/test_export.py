"""`distill export` and `distill verify`."""

import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file

import tiny
from test_import_teacher import tokenized, write_tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory, models, ragged_shard):
    """A run of three ranks with two checkpoints and a model."""
    folder = tmp_path_factory.mktemp("export")
    config = tiny.base_config(
        folder,
        *models["qwen3"],
        ragged_shard,
        parallel={"processes": 3},
        checkpoint={"every": 2, "keep": 3},
        train={"steps": 4, "micro_batch_size": 1, "global_batch_size": 6},
    )
    return tiny.train(folder, config)


def test_an_exported_checkpoint_is_the_model_that_the_run_wrote(tmp_path, run):
    tiny.distill("export", "--checkpoint", run / "checkpoints" / "step-4", "--out", tmp_path / "model")
    found = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    assert found == {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    tiny.distill("verify", tmp_path / "model")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_dtypes_are_the_master_weights_rounded_once(tmp_path, run, dtype):
    tiny.distill("export", "--checkpoint", run, "--out", tmp_path / "model", "--dtype", dtype)  # the newest one
    found = load_file(tmp_path / "model" / "model.safetensors")
    for name, weight in tiny.load_weights(run / "model").items():
        assert torch.equal(found[name], weight.to(getattr(torch, dtype))), name


def test_an_earlier_checkpoint_gives_an_earlier_model(tmp_path, run):
    tiny.distill("export", "--checkpoint", run / "checkpoints" / "step-2", "--out", tmp_path / "model")
    assert tiny.relative_difference(tiny.load_weights(tmp_path / "model"), tiny.load_weights(run / "model")) > 1e-4


def test_what_cannot_be_exported_says_why(tmp_path, run, models):
    def refused(*arguments):
        return tiny.distill(
            "export", "--checkpoint", run, "--out", tmp_path / "model", *arguments, code=tiny.BAD_INPUT
        ).stderr

    assert "its units are not those of" in refused("--model", models["llama"][0])
    assert "--model" in refused("--model", tmp_path / "gone")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("mine")
    assert "exists already" in refused()
    assert (
        "step-9"
        in tiny.distill(
            "export", "--checkpoint", run / "checkpoints" / "step-9", "--out", tmp_path / "x", code=tiny.BAD_INPUT
        ).stderr
    )
    assert not (tmp_path / "x").exists()


def test_verify_finds_a_flipped_bit_in_any_file(tmp_path, run):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    done = tiny.distill("verify", copy)
    assert done.stdout.count("every checksum fits") == 3
    files = [
        path for folder in ("checkpoints", "model") for path in sorted((copy / folder).rglob("*")) if path.is_file()
    ]
    assert len(files) == 2 * 5 + len(list((run / "model").iterdir()))
    for path in files:
        content = path.read_bytes()
        changed = bytearray(content)
        changed[len(changed) // 3] ^= 4
        path.write_bytes(changed)
        assert path.name in tiny.distill("verify", copy, code=tiny.BAD_INPUT).stderr, path
        path.write_bytes(content)
    tiny.distill("verify", copy)


def test_an_export_from_a_damaged_checkpoint_writes_nothing(tmp_path, run):
    copy = tmp_path / "step-4"
    shutil.copytree(run / "checkpoints" / "step-4", copy)
    shard = copy / "rank-00002.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    errors = tiny.distill("export", "--checkpoint", copy, "--out", tmp_path / "model", code=tiny.BAD_INPUT).stderr
    assert "rank-00002.safetensors" in errors and "damaged" in errors
    assert not (tmp_path / "model").exists()


def test_verify_refuses_what_it_knows_nothing_about(tmp_path, models):
    assert "checksums.xxh3" in tiny.distill("verify", models["llama"][0], code=tiny.BAD_INPUT).stderr
    assert "found none of these" in tiny.distill("verify", tmp_path, code=tiny.BAD_INPUT).stderr


def test_a_list_of_checksums_cannot_reach_out_of_its_folder(tmp_path):
    (tmp_path / "secret").write_text("x")
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("../secret", "a/../../secret", "/etc/passwd", "a//b", "./a", "a/"):
        (folder / "checksums.xxh3").write_text(f"XXH3 ({name}) = 0000000000000000\n")
        errors = tiny.distill("verify", folder, code=tiny.BAD_INPUT).stderr
        assert "expected XXH3 (<file>) = <16 digits>" in errors, name


def test_every_chat_template_of_the_student_is_saved_with_the_model(tmp_path, run, models):
    student = tmp_path / "student"
    shutil.copytree(models["qwen3"][0], student)
    shutil.copyfile(tiny.REPOSITORY / "tests" / "data" / "golden" / "tokenizer.json", student / "tokenizer.json")
    (student / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    named = {"tool_use": "{{ tools }}", "rag": "{{ documents }}"}
    (student / "chat_template.jinja").write_text("{{ messages }}")
    (student / "additional_chat_templates").mkdir()
    for name, text in {**named, "notes.txt": "mine"}.items():
        (student / "additional_chat_templates" / (name if "." in name else f"{name}.jinja")).write_text(text)
    model = tmp_path / "model"
    tiny.distill("export", "--checkpoint", run, "--out", model, "--model", student)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    assert tokenizer.chat_template == {"default": "{{ messages }}", **named}
    assert not (model / "additional_chat_templates" / "notes.txt").exists()

    done = tiny.distill("verify", model)
    assert f"{len([path for path in model.rglob('*') if path.is_file()]) - 1} files" in done.stdout, done.stdout
    file = model / "additional_chat_templates" / "rag.jinja"
    file.write_text("{{ document }}")
    assert f"{file}: is damaged" in tiny.distill("verify", model, code=tiny.BAD_INPUT).stderr


def test_a_tokenizer_that_is_named_as_a_file_is_saved_with_the_templates_beside_it(tmp_path, models):
    file, digest = write_tokenizer(tmp_path / "tokenizer" / "mine.json", "t")
    (file.parent / "chat_template.jinja").write_text("{{ messages }}")
    (file.parent / "additional_chat_templates").mkdir()
    (file.parent / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    config = tiny.base_config(
        tmp_path,
        *models["llama"],
        str(tokenized(tmp_path / "data.dtok", digest)),
        train={"steps": 1, "micro_batch_size": 1, "global_batch_size": 1},
        scheduler={"warmup_steps": 0},
        checkpoint={"every": 1},
    )
    for section in ("student", "teacher"):
        config[section]["tokenizer"] = str(file)
    run = tiny.train(tmp_path, config)
    tiny.distill("export", "--checkpoint", run, "--out", tmp_path / "exported")
    for model in (run / "model", tmp_path / "exported"):
        assert (model / "tokenizer.json").read_text() == file.read_text()
        assert not (model / "mine.json").exists()
        assert (model / "chat_template.jinja").read_text() == "{{ messages }}"
        assert (model / "additional_chat_templates" / "tool_use.jinja").read_text() == "{{ tools }}"
