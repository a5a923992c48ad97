"""scripts/serve_transformers.py, through scripts/rollout_http.py and by requests that it must refuse."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from word_models import save_random_model

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
WORDS = ["<eos>", *(f"w{index}" for index in range(30))]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return [save_random_model(tmp_path_factory.mktemp(f"model{seed}"), WORDS, seed) for seed in (3, 4)]


@pytest.fixture(scope="module")
def url(models):
    command = [sys.executable, SCRIPTS / "serve_transformers.py", "--model", models[0], "--port", "0",
               "--device", "cpu", "--batch-size", "5"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().split()[0]
        process.kill()


def requests(**more):
    sampling = {"max_new_tokens": 8, "temperature": 1.0, "top_p": 0.9, "stop": [], "stop_token_ids": [0]} | more
    prompts = [[5, 9], [7], [1, 2, 3, 4, 5, 6], [8, 8, 8]] * 3
    return [
        {"id": index, "prompt_ids": prompt, "seed": 77 + index, "weight_version": "step-1-ab"} | sampling
        for index, prompt in enumerate(prompts)
    ]


def lines_of(path):
    return sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda line: line["id"])


@pytest.fixture
def written(tmp_path, script):
    """The lines of a round: written(model, requests, url=None), without a server where there is no url."""

    def run(model, requests, url=None, *more):
        prompts, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        prompts.write_text("".join(json.dumps(one) + "\n" for one in requests))
        output.unlink(missing_ok=True)
        files = ["--model", model, "--prompts", prompts, "--output", output]
        if url is None:
            script("rollout_transformers.py", *files, "--device", "cpu")
        else:
            script("rollout_http.py", *files, "--url", url, "--version", "step-1-ab", *more)
        return lines_of(output)

    return run


def call(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, data)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_rounds_of_a_server_are_those_of_the_command(models, url, written):
    """Two rounds with other weights: the server loads each."""
    for model in models:
        served, alone = written(model, requests(), url), written(model, requests())
        assert [line["completion_ids"] for line in served] == [line["completion_ids"] for line in alone]
        for one, other in zip(served, alone):
            assert one["logprobs"] == pytest.approx(other["logprobs"], abs=1e-5)
            assert (one["finish_reason"], one["prompt_ids"]) == (other["finish_reason"], other["prompt_ids"])


def test_it_sleeps_and_is_woken_by_the_next_round(models, url, written):
    first = written(models[0], requests(), url, "--sleep")
    assert json.loads(call(url, "/is_sleeping")[1]) == {"is_sleeping": True}
    body = {"prompt": [1], "max_tokens": 1, "temperature": 1, "top_p": 1, "seed": 1}
    status, text = call(url, "/v1/completions", body)
    assert status == 500 and "sleeps" in text
    second = written(models[0], requests(), url)
    assert [line["completion_ids"] for line in second] == [line["completion_ids"] for line in first]
    assert json.loads(call(url, "/is_sleeping")[1]) == {"is_sleeping": False}


def test_texts_end_a_completion(models, url, written):
    whole = written(models[0], requests(stop_token_ids=[], temperature=0), url)[0]["completion_ids"]
    cut = written(models[0], requests(stop_token_ids=[], temperature=0, stop=[WORDS[whole[2]]]), url)[0]
    assert cut["finish_reason"] == "stop" and cut["completion_ids"] == whole[: len(cut["completion_ids"])]
    assert len(cut["completion_ids"]) <= 3


@pytest.mark.parametrize(
    "path, body, status, says",
    [
        ("/v1/completions", {"prompt": [1]}, 400, "found none named max_tokens, temperature, top_p, seed"),
        ("/v1/completions", {"prompt": "text", "max_tokens": 1, "temperature": 1, "top_p": 1, "seed": 1}, 400,
         "expected a list of token ids"),
        ("/v1/completions", {"prompt": [31], "max_tokens": 1, "temperature": 1, "top_p": 1, "seed": 1}, 400,
         "expected ids below 31, found 31"),
        ("/collective_rpc", {"method": "other"}, 400, "expected the method reload_weights"),
        ("/generate", {}, 404, "no address /generate"),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/no/such"}}, 500, "/no/such"),
    ],
)  # fmt: skip
def test_requests_that_it_cannot_answer(models, url, path, body, status, says):
    found, text = call(url, path, body)
    assert found == status and says in text, text
    assert (
        call(url, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(models[0])}})[0] == 200
    )


def test_a_folder_that_is_no_model_is_named(tmp_path, script):
    assert str(tmp_path) in script("serve_transformers.py", "--model", tmp_path, "--port", "0", code=1)
