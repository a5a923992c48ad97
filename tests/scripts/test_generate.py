"""scripts/generate.py: the greedy text of each folder."""

import pytest
from word_models import save_constant_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_constant_model(folder, ["<eos>", "the", "cat", "sat", "on", "a", "mat"], "mat")
    return folder


def test_every_model_continues_every_prompt(script, folder):
    text = script(
        "generate.py",
        f"teacher={folder}",
        f"student={folder}",
        "--prompt",
        "the cat",
        "--prompt",
        "a cat",
        "--tokens",
        "3",
        "--device",
        "cpu",
    )
    blocks = text.split("--- prompt ")[1:]
    assert len(blocks) == 2
    for prompt, block in zip(("the cat", "a cat"), blocks):
        assert f"| {prompt}\n" in block
        assert block.index("teacher:") < block.index("student:")
        assert block.count("mat mat mat") == 2


def test_bad_arguments_are_named(tmp_path, script, folder):
    assert "NAME=FOLDER" in script("generate.py", str(folder), code=1)
    assert str(tmp_path) in script("generate.py", f"student={tmp_path}", code=1)
