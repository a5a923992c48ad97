"""The same training by distill, by a plain PyTorch loop with Liger's fused JSD, and by TRL's GKDTrainer."""

import importlib.util
import json
import shutil
import sys
import time
from pathlib import Path

from . import training

# name: (command of scripts/quality.py or None for distill, package that it needs, device that it needs)
LOOPS = {
    "distill": (None, None, None),
    "liger": (("plain", "--head", "liger"), "liger_kernel", "cuda"),
    "plain": (("plain", "--head", "plain"), None, None),
    "trl": (("trl",), "trl", None),
}
TITLES = {
    "distill": "distill",
    "liger": "plain PyTorch loop, Liger's fused JSD",
    "plain": "plain PyTorch loop, whole logits",
    "trl": "TRL's GKDTrainer",
}


def job_config(study, folders, name):
    """One configuration for all loops: JSD with beta 0.5, one stream of tokens in order."""
    peers = study.peers
    shard = min(folders.data("train").glob("*.dtok"))
    return training.merged(
        study.config,
        {
            "student.path": str(folders.student(peers["student"])),
            "teacher.path": str(folders.teacher),
            "data.train": [str(shard)],
            "data.seq_len": study.seq_len,
            "data.packing": "concat",
            "data.shuffle": False,
            "loss.divergence": "jsd",
            "loss.beta": 0.5,
            "train.steps": peers["steps"],
            "train.micro_batch_size": study.batch,
            "train.global_batch_size": study.batch,
            "train.device": study.device,
            "train.dtype": study.dtype,
            "optimizer.lr": peers["lr"],
            "scheduler.warmup_steps": max(1, peers["steps"] // 20),
            "run.dir": str(folders.run(f"peer-{name}")),
        },
    )


def steps_of(folder):
    """[{loss, seconds}] of a finished job, whichever program ran it."""
    if (folder / "steps.json").exists():
        return json.loads((folder / "steps.json").read_text())["steps"]
    return training.read_metrics(folder)[0]


def median_seconds(steps):
    """Of a step, after the first ones."""
    seconds = sorted(step["seconds"] for step in steps[min(8, len(steps) // 2) :])
    return seconds[len(seconds) // 2]


def why_left_out(study, name):
    """Why a program cannot run here; empty if it can."""
    _, module, device = LOOPS[name]
    if module and importlib.util.find_spec(module) is None:
        return f"the package {module} is not installed"
    if device and device != study.device:
        return f"its kernels need {device}"
    return ""


def tasks(study, folders, program, threads):
    """[(name of the result, function of the device)] of the programs that can run here."""
    found = []
    for name in LOOPS:
        if why_left_out(study, name):
            continue
        found.append((f"peer-{name}", lambda device, name=name: run(study, folders, program, name, device, threads)))
    return found


def run(study, folders, program, name, device, threads):
    """Trains with one of the programs, and evaluates the model with distill."""
    folder = folders.run(f"peer-{name}")
    shutil.rmtree(folder, ignore_errors=True)
    config = training.write_config(folder, job_config(study, folders, name))
    if LOOPS[name][0] is None:
        command = [program, "--config", config, "--overwrite"]
    else:
        script = Path(__file__).resolve().parents[1] / "quality.py"
        command = [sys.executable, script, *LOOPS[name][0], "--config", config]
    began = time.monotonic()
    training.call(command, device, threads)
    seconds = time.monotonic() - began
    steps = steps_of(folder)
    values = training.evaluate(program, study, folders, folder / "model", "validation", device, threads)
    shutil.rmtree(folder)
    return {
        "peer": name,
        "title": TITLES[name],
        "steps": len(steps),
        "batch_tokens": study.step_tokens,
        "process_seconds": training.short(seconds),
        "tokens_per_second": training.short(study.step_tokens / median_seconds(steps)),
        "losses": [training.short(step["loss"]) for step in steps[:100]],
        "validation": [{"tokens": len(steps) * study.step_tokens, "ce": values["hard"], "kl": values["forward_kl"]}],
    }
