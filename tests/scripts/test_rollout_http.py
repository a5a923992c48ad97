"""scripts/rollout_http.py with servers that answer as vLLM and SGLang do, and with broken ones."""

import json

import pytest
from stand_in_server import END, StandIn

VERSION = "step-4-0123456789abcdef"


def requests(folder, count=20):
    lines = [
        {
            "id": index,
            "prompt_ids": [5, 6 + index],
            "seed": 1000 + index,
            "max_new_tokens": 6,
            "temperature": 1.0,
            "top_p": 1.0,
            "stop": [],
            "stop_token_ids": [END],
            "weight_version": VERSION,
        }
        for index in range(count)
    ]
    path = folder / "requests.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path, lines


@pytest.fixture
def rollout(tmp_path, script):
    def run(server, *more, code=0):
        prompts, _ = requests(tmp_path)
        return script(
            "rollout_http.py", "--url", server.url, "--model", "/dev/shm/student", "--version", VERSION,
            "--prompts", prompts, "--output", tmp_path / "output.jsonl", "--wait", "5", *more, code=code,
        )  # fmt: skip

    return run


def written(folder):
    return [json.loads(line) for line in (folder / "output.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_weights_are_loaded_and_every_request_is_answered(tmp_path, rollout, kind):
    with StandIn(kind) as server:
        assert f"{kind} has loaded {VERSION}" in rollout(server)
        lines = sorted(written(tmp_path), key=lambda line: line["id"])
        assert [line["id"] for line in lines] == list(range(20))
        for line, request in zip(lines, requests(tmp_path)[1]):
            ids, reason = server.completion(request["seed"], 6)
            assert line["prompt_ids"] == request["prompt_ids"] and line["completion_ids"] == ids
            assert line["finish_reason"] == reason and line["logprobs"] == [-0.5] * len(ids)
            assert line["weight_version"] == (VERSION if kind == "sglang" else None)
        assert server.loaded == ["/dev/shm/student"]
        loading = [path for path in server.calls if path not in ("/health", "/v1/completions", "/generate")]
        expected = {
            "vllm": ["/version", "/v1/models", "/is_sleeping", "/collective_rpc", "/reset_prefix_cache"],
            "sglang": ["/version", "/model_info", "/model_info", "/model_info", "/update_weights_from_disk"],
        }
        assert loading == expected[kind]


CALLS = {
    "vllm": (
        ["/collective_rpc", "/reset_prefix_cache", "/sleep?level=2"],
        ["/wake_up?tags=weights", "/collective_rpc", "/reset_prefix_cache", "/wake_up?tags=kv_cache", "/sleep?level=2"],
    ),
    "sglang": (
        ["/update_weights_from_disk", "/release_memory_occupation", "/update_weight_version"],
        ["/resume_memory_occupation", "/update_weights_from_disk", "/resume_memory_occupation",
         "/release_memory_occupation", "/update_weight_version"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CALLS)
def test_a_server_that_shares_gpus_sleeps_between_rounds(tmp_path, rollout, kind):
    """The first round finds a server that is awake, and the second one wakes it: the stand-in for SGLang ends where the
    real one does, when memory is taken again that was not released, and when it is to write a token without memory."""
    asked = {path for calls in CALLS[kind] for path in calls}
    with StandIn(kind) as server:
        for expected in CALLS[kind]:
            server.calls.clear()
            rollout(server, "--sleep", "--kind", kind)
            assert [path for path in server.calls if path in asked] == expected
        assert len(server.loaded) == 2 and len(written(tmp_path)) == 40


def test_an_older_sglang_is_recognised_by_its_own_names(rollout):
    with StandIn("sglang", "old names") as server:
        assert "sglang has loaded" in rollout(server)


@pytest.mark.parametrize(
    "kind, fault, says",
    [
        ("vllm", "500", ["prompt ", "3 times", "expected status 200, found 500", "CUDA out of memory"]),
        ("sglang", "500", ["POST /generate: expected status 200, found 500"]),
        ("vllm", "garbage", ["expected JSON, found '<html>'"]),
        ("vllm", "hang", ["no whole answer within 1 s"]),
        ("vllm", "drip", ["no whole answer within 1 s"]),
        ("vllm", "crash", ["POST http://127.0.0.1:"]),
        ("vllm", "old", ["expected choices[0].token_ids, which return_token_ids asks for"]),
        ("vllm", "template", ["the server read 3 ids in place of [5, "]),
        ("vllm", "no dev mode", ["POST /collective_rpc: expected status 200, found 404", "VLLM_SERVER_DEV_MODE=1"]),
        ("sglang", "refused", ["POST /update_weights_from_disk: expected status 200, found 400", "shape of lm_head"]),
        ("sglang", "no memory saver", ["enable_memory_saver is false", "start SGLang with --enable-memory-saver"]),
    ],
)
def test_a_broken_server_is_named(rollout, kind, fault, says):
    with StandIn(kind, fault) as server:
        sleeps = ["--sleep"] if fault == "no memory saver" else []
        error = rollout(server, "--timeout", "1", *sleeps, code=1)
        for text in says:
            assert text in error, error


def test_requests_that_fail_once_are_tried_again(tmp_path, rollout):
    with StandIn("vllm", "once") as server:
        rollout(server, "--concurrency", "4")
        assert len(written(tmp_path)) == 20 and server.failures == 3


def test_a_server_with_other_weights_says_so_in_every_line(tmp_path, rollout):
    """distill refuses these lines: their weight_version is not the round's."""
    with StandIn("sglang", "stale") as server:
        rollout(server)
        assert {line["weight_version"] for line in written(tmp_path)} == {"default"}


def test_a_server_that_is_not_there_is_named(rollout):
    with StandIn("vllm") as server:
        pass
    assert "the server was not ready within 1 s" in rollout(server, "--wait", "1", code=1)
