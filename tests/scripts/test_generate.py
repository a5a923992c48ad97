"""scripts/generate.py: the greedy text of each folder."""

import pytest
import torch
import transformers
from word_models import save_constant_model, save_tokenizer

import multimodal_models

WORDS = ["<eos>", "the", "cat", "sat", "on", "a", "mat", "dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_constant_model(folder, WORDS, "mat")
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


def test_the_text_model_of_a_multimodal_folder_continues_a_prompt(tmp_path, script, folder):
    text = transformers.AutoConfig.from_pretrained(folder)
    save_tokenizer(multimodal_models.save(tmp_path, multimodal_models.llava(text), 1), WORDS)
    shown = script("generate.py", f"student={tmp_path}", "--prompt", "the cat", "--tokens", "3", "--device", "cpu")
    model, _ = multimodal_models.load(tmp_path)
    ids = torch.tensor([[WORDS.index("the"), WORDS.index("cat")]])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)
    assert " ".join(WORDS[index] for index in expected[0, 2:] if index) in shown


def test_bad_arguments_are_named(tmp_path, script, folder):
    assert "NAME=FOLDER" in script("generate.py", str(folder), code=1)
    assert str(tmp_path) in script("generate.py", f"student={tmp_path}", code=1)
