"""How far a model is from its teacher on what it writes itself: scripts/studies/quality/own_words.py."""

from types import SimpleNamespace

import pytest
import tiny_study
import torch
from word_models import random_model, save_tokenizer

from quality import own_words

WORDS = ["<eos>", *(f"w{index}" for index in range(30))]
KINDS = ("code", "reference", "prose")


def make_model(seed):
    return random_model(WORDS, seed, positions=512).eval()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    save_tokenizer(folder / "tokenizer", WORDS)
    for number, kind in enumerate(KINDS):
        text = folder / f"{kind}.jsonl"
        lengths = range(6 + number, 40, 9)
        lines = [" ".join(f"w{(7 * index + number) % 30}" for index in range(length)) for length in lengths]
        text.write_text("".join(f'{{"text": "{line}"}}\n' for line in lines))
        tiny_study.script(
            "tokenize.py", "--tokenizer", folder / "tokenizer", "--eos-token", "<eos>", "--workers", 1, "--quiet",
            "--output", folder / f"test-{kind}", text,
        )  # fmt: skip
    return folder


def test_prompts_are_first_halves(data):
    prompts, end = own_words.prompts(data / "test-code")
    assert [len(prompt) for prompt in prompts] == [3, 8, 12, 17][: len(prompts)] and end == 0


def test_a_model_is_at_no_distance_from_itself(data):
    model = make_model(1)
    measured = own_words.measure(model, model, SimpleNamespace(data=data))
    assert measured["reverse_kl"] == measured["forward_kl"] == 0 and measured["agreement"] == 1
    assert measured["tokens"] > 100


def test_the_distances_are_those_of_each_completion_alone(data, monkeypatch):
    """Against one forward pass for each completion, without padding, in float64."""
    model, teacher = make_model(1), make_model(2)
    seen = []
    write = own_words.write
    monkeypatch.setattr(own_words, "write", lambda *args: seen.append((args[1], write(*args))) or seen[-1][1])
    measured = own_words.measure(model, teacher, SimpleNamespace(data=data))
    reverse = forward = agreed = tokens = 0
    for prompts, completions in seen:
        for prompt, completion in zip(prompts, completions):
            assert 0 not in completion[:-1], "nothing follows the end of a text"
            ids = torch.tensor([prompt + completion])
            logs = []
            for one in (model.double(), teacher.double()):
                with torch.inference_mode():
                    logs.append(one(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1))
            student, other = logs
            reverse += float((student.exp() * (student - other)).sum())
            forward += float((other.exp() * (other - student)).sum())
            agreed += int((student.argmax(-1) == other.argmax(-1)).sum())
            tokens += len(completion)
    assert measured["tokens"] == tokens
    assert measured["reverse_kl"] == pytest.approx(reverse / tokens, rel=1e-4)
    assert measured["forward_kl"] == pytest.approx(forward / tokens, rel=1e-4)
    assert measured["agreement"] == pytest.approx(agreed / tokens, abs=1e-5)


@pytest.mark.parametrize("ids, expected", [([1, 2, 3], (0, 0)), ([1] * 6, (2, 3)), (list(range(9)), (0, 6))])
def test_repeated_4grams(ids, expected):
    assert own_words.repeated(ids) == expected
