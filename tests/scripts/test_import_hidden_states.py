"""scripts/teacher_cache/hidden_states.py: how often the dumps are read, and what is stored of them."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

import multimodal_models
from teacher_cache import folder, hidden_states, reading
from teacher_cache.documents import Document

VOCAB, HIDDEN, LAYERS = 40, 16, 3


class CountedFile:
    """A safetensors file that counts the tensors that are read in full."""

    reads = Counter()

    def __init__(self, path, framework):
        self.path, self.file = path, safe_open(path, framework)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __getattr__(self, name):
        return getattr(self.file, name)

    def get_tensor(self, name):
        self.reads[self.path.name, name] += 1
        return self.file.get_tensor(name)


class OneEach:
    """Documents of which each has the tokens that it is asked for."""

    def beginning_with(self, tokens):
        return [Document(0, int(tokens[0]), tokens, None)]


@pytest.fixture
def importer(tmp_path):
    """Makes an import of dumps in these dtypes."""
    torch.manual_seed(3)
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    (teacher / "config.json").write_text(json.dumps({"model_type": "llama"}))
    weights = {"lm_head.weight": torch.randn(VOCAB, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    save_file(weights, teacher / "model.safetensors")

    def build(*dtypes):
        files = [tmp_path / f"{index}.safetensors" for index in range(len(dtypes))]
        for index, (path, dtype) in enumerate(zip(files, dtypes, strict=True)):
            tokens = torch.tensor([index, *range(10 + index)])
            states = torch.randn(len(tokens), LAYERS, HIDDEN)
            states /= states.square().mean(-1, keepdim=True).sqrt()  # as after the final norm
            save_file({"token_ids": tokens, "hidden_states": states.to(dtype)}, path)
        arguments = SimpleNamespace(teacher=teacher, layer=-1, dtype=None)
        return hidden_states.HiddenStates(arguments, OneEach(), files), files

    return build


def test_the_head_of_a_folder_is_the_one_that_transformers_takes(tmp_path):
    embedding, head = torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN)
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(HIDDEN)}

    def read(tied, weights):
        (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
        save_file(weights, tmp_path / "model.safetensors")
        return folder.read_head(tmp_path)[0]

    assert torch.equal(read(True, weights), embedding)
    with pytest.raises(ValueError, match="expected lm_head.weight, found none"):
        read(False, weights)
    for tied in (True, False):
        assert torch.equal(read(tied, weights | {"lm_head.weight": head}), head)
    # Files that are not the model's are not read.
    save_file({"lm_head.weight": embedding}, tmp_path / "z-adapter.safetensors")
    assert torch.equal(read(True, weights | {"lm_head.weight": head}), head)


@pytest.mark.parametrize("spelling", multimodal_models.SPELLINGS)
@pytest.mark.parametrize("tied", [True, False])
def test_the_head_of_a_multimodal_folder_is_that_of_its_text(tmp_path, spelling, tied):
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    text = transformers.MistralConfig(vocab_size=VOCAB, num_key_value_heads=2, **sizes)
    config = multimodal_models.mistral3(text, tie_word_embeddings=tied)
    multimodal_models.save(tmp_path, config, 1, spelling=spelling)
    model, _ = multimodal_models.load(tmp_path)
    head, norm = folder.read_head(tmp_path)
    assert torch.equal(head, model.lm_head.weight) and torch.equal(norm, model.get_decoder().norm.weight)


def test_only_what_is_measured_is_read_twice(monkeypatch, importer):
    monkeypatch.setattr(reading, "safe_open", CountedFile)
    monkeypatch.setattr(hidden_states, "SAMPLE", 12)  # the first two dumps have as many tokens
    CountedFile.reads.clear()
    made, files = importer(*[torch.float32] * 5)
    assert made.longest == 15
    assert sum(len(list(made.stretches_of(path))) for path in files) == 5
    found = [CountedFile.reads[path.name, "hidden_states"] for path in files]
    assert found == [2, 2, 1, 1, 1]


@pytest.mark.parametrize(
    "dtypes, encoding",
    [
        ((torch.bfloat16, torch.bfloat16), "bfloat16"),
        ((torch.bfloat16, torch.float32), "float32"),
        ((torch.float16, torch.float16), "float32"),
    ],
)
def test_no_dump_is_rounded_unless_it_is_asked_for(importer, dtypes, encoding):
    made, files = importer(*dtypes)
    assert made.encoding == encoding
    assert made.after_norm
    (stretch,) = made.stretches_of(files[-1])
    stored = torch.frombuffer(bytearray(stretch.rows), dtype=getattr(torch, encoding)).view(-1, HIDDEN)
    with safe_open(files[-1], "pt") as file:
        assert torch.equal(stored.double(), file.get_tensor("hidden_states")[:-1, -1].double())
