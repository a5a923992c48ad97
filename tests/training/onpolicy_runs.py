"""On-policy runs of the tests, with a stand-in for the engine."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jobs
import tiny

ENGINE = Path(__file__).with_name("onpolicy_engine.py")
END = 1
MOST = 8  # onpolicy.max_new_tokens
SCRIPT = tiny.REPOSITORY / "scripts" / "rollout_transformers.py"
# In float32 on a GPU, too, where it would generate in bfloat16: then its log-probabilities are those of the run.
TRANSFORMERS = f"{sys.executable} {SCRIPT} --dtype float32 --model {{model}} --prompts {{prompts}} --output {{output}}"
HTTP = tiny.REPOSITORY / "scripts" / "rollout_http.py"
SERVER = tiny.REPOSITORY / "tests" / "scripts" / "stand_in_server.py"


def command(*arguments):
    words = [sys.executable, ENGINE, "--prompts", "{prompts}", "--output", "{output}", "--vocab", tiny.VOCAB]
    return " ".join(map(str, [*words, *arguments]))


def config_in(folder, models, prompts):
    """config(name, command, **onpolicy): rounds of two steps, four sequences in each, all of them on-policy."""
    student, teacher = models["llama"]
    student = Path(shutil.copytree(student, folder / "student"))
    (student / "generation_config.json").write_text(json.dumps({"eos_token_id": END}))

    def build(name, engine=None, train=None, onpolicy=None, **sections):
        config = tiny.base_config(
            folder / name,
            str(student),
            teacher,
            prompts,
            train={"steps": 6, "global_batch_size": 4, "deterministic": tiny.DEVICE == "cuda"} | (train or {}),
            onpolicy={"prompts": prompts, "command": engine or command(), "every": 2, "max_new_tokens": MOST}
            | (onpolicy or {}),
            scheduler={"warmup_steps": 0},
            **sections,
        )
        if config["onpolicy"].get("fraction", 1) == 1:
            del config["data"]["train"]
        return config

    return build


def round_folder(run, number):
    return run / "onpolicy" / f"round-{number:05d}"


def description(run, number):
    return json.loads((round_folder(run, number) / "round.json").read_text())


def completions(run, number):
    return [json.loads(line) for line in (round_folder(run, number) / "completions.jsonl").read_text().splitlines()]


def judged(run, number):
    return json.loads((round_folder(run, number) / "judged.json").read_text())


def mark_of(tmp_path):
    """A word for the command lines of a test's engines; tests that run side by side may have folders of one name."""
    return "mark" + str(tmp_path).replace("/", "-")


def processes_with(mark):
    listed = subprocess.run(["ps", "-ww", "-eo", "args="], capture_output=True, text=True).stdout.splitlines()
    return [line for line in listed if mark in line]


def killed_at(moments, path, mark):
    """Starts a run, and resumes it, once for each of the moments, conditions at which it is killed, engine and all."""
    for number, moment in enumerate(moments):
        job = tiny.start(path, *(["--resume"] if number else []))
        jobs.until(moment, job)
        job.kill()
        job.wait()
        jobs.until(lambda: not processes_with(mark))


def http_settings(config, name, kind, mark, fault=""):
    """A run whose server distill starts."""
    port = tiny.free_port()
    server = f"{sys.executable} {SERVER} --kind {kind} --port {port} --vocab {tiny.VOCAB} --mark {mark}"
    rollout = f"{sys.executable} {HTTP} --url http://127.0.0.1:{port} --model {{model}} --version {{version}}"
    settings = config(name, f"{rollout} --prompts {{prompts}} --output {{output}} --wait 20 --timeout 20")
    settings["onpolicy"]["server"] = f"{server} --fault {fault}" if fault else server
    return settings
