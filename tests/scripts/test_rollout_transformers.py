"""scripts/rollout_transformers.py: what it samples, and the log-probabilities that it gives."""

import json

import numpy as np
import pytest
import torch
import transformers
from word_models import save_random_model

WORDS = ["<eos>", *(f"w{index}" for index in range(30))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_random_model(tmp_path_factory.mktemp("model"), WORDS)


def request(index, prompt, **more):
    base = {"id": index, "prompt_ids": prompt, "seed": 77 + index, "max_new_tokens": 8, "temperature": 1.0}
    return base | {"top_p": 1.0, "stop": [], "stop_token_ids": [0], "weight_version": "step-1-ab"} | more


@pytest.fixture
def rollout(tmp_path, script, model):
    def run(requests, *more):
        (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in requests))
        (tmp_path / "out.jsonl").unlink(missing_ok=True)
        script("rollout_transformers.py", "--model", model, "--prompts", tmp_path / "in.jsonl", "--output",
               tmp_path / "out.jsonl", "--device", "cpu", *more)  # fmt: skip
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        return sorted(lines, key=lambda line: line["id"])

    return run


PROMPTS = [[5, 9], [7], [1, 2, 3, 4, 5, 6], [8, 8, 8]]


def test_greedy_completions_are_those_of_generate(rollout, model):
    lines = rollout([request(index, prompt, temperature=0) for index, prompt in enumerate(PROMPTS)])
    own = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for line, prompt in zip(lines, PROMPTS):
        expected = own.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=0)[0]
        assert line["completion_ids"] == expected[len(prompt) :].tolist()
        assert line["finish_reason"] == ("stop" if line["completion_ids"][-1] == 0 else "length")


def test_log_probabilities_are_the_models_own_whatever_the_sampling(rollout, model):
    lines = rollout([request(index, prompt, temperature=0.7, top_p=0.8) for index, prompt in enumerate(PROMPTS)])
    own = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for line, prompt in zip(lines, PROMPTS):
        ids = torch.tensor([prompt + line["completion_ids"]])
        with torch.inference_mode():
            logprobs = torch.log_softmax(own(ids).logits[0], -1)
        expected = [logprobs[len(prompt) - 1 + i, token].item() for i, token in enumerate(line["completion_ids"])]
        np.testing.assert_allclose(line["logprobs"], expected, atol=1e-4)
        assert line["weight_version"] == "step-1-ab"


def test_a_completion_does_not_depend_on_its_batch(rollout):
    requests = [request(index, PROMPTS[index % 4]) for index in range(12)]
    together = [line["completion_ids"] for line in rollout(requests)]
    assert together == [line["completion_ids"] for line in rollout(requests, "--batch-size", "1")]
    assert together[3:7] == [line["completion_ids"] for line in rollout(requests[3:7], "--batch-size", "2")]
    assert len({tuple(ids) for ids in together}) > 6


def test_samples_have_the_frequencies_of_the_distribution(rollout, model):
    """One token each: counts against probabilities, with temperature and top_p, by chi-square."""
    count, temperature, top_p = 2000, 1.5, 0.9
    requests = [
        request(index, [5, 9], seed=index, max_new_tokens=1, temperature=temperature, top_p=top_p)
        for index in range(count)
    ]
    found = np.bincount([line["completion_ids"][0] for line in rollout(requests, "--batch-size", "500")], minlength=31)
    own = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.inference_mode():
        p = torch.softmax(own(torch.tensor([[5, 9]])).logits[0, -1].double() / temperature, -1).numpy()
    order = np.argsort(-p)
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), top_p) + 1)]
    expected = np.zeros(31)
    expected[kept] = p[kept] / p[kept].sum() * count
    assert found[expected == 0].sum() == 0
    chosen = expected > 0
    chi_square = ((found[chosen] - expected[chosen]) ** 2 / expected[chosen]).sum()
    assert chi_square < chosen.sum() + 6 * np.sqrt(2 * chosen.sum())


def test_texts_and_tokens_end_a_completion(rollout):
    whole = rollout([request(0, [5, 9], temperature=0, stop_token_ids=[])])[0]["completion_ids"]
    word = WORDS[whole[2]]
    by_text, by_token = rollout([
        request(0, [5, 9], temperature=0, stop_token_ids=[], stop=[word]),
        request(1, [5, 9], temperature=0, stop_token_ids=[whole[2]]),
    ])  # fmt: skip
    end = whole.index(whole[2])
    assert by_token["completion_ids"] == whole[: end + 1] and by_token["finish_reason"] == "stop"
    assert by_text["finish_reason"] == "stop" and by_text["completion_ids"] == whole[: len(by_text["completion_ids"])]
    assert len(by_text["completion_ids"]) <= end + 1


def test_a_request_that_is_none_is_named(tmp_path, script, model):
    (tmp_path / "in.jsonl").write_text('{"id": 0}\n')
    said = script("rollout_transformers.py", "--model", model, "--prompts", tmp_path / "in.jsonl", "--output",
                  tmp_path / "out.jsonl", code=1)  # fmt: skip
    assert "in.jsonl:1: not a request" in said
