"""scripts/generate.py: the greedy text of each folder."""

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    words = ["<eos>", "the", "cat", "sat", "on", "a", "mat"]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():  # whatever came before, "mat" follows
        model.lm_head.weight.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight[words.index("mat")] = 1.0
    model.save_pretrained(folder)
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
