"""The same training by distill, by a plain PyTorch loop with Liger's fused JSD, and by TRL's GKDTrainer.

For each student, the first learning rate and seed of `peers` in study.yaml is run with the device for itself, and
timed; the others say how far the result of one program is from itself on another part of the text.
"""

import importlib.util
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from token_shards import shard_file

from . import training

# name: (command of scripts/studies/quality.py or None for distill, package that it needs, device that it needs)
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


@dataclass(frozen=True)
class Job:
    student: str
    program: str  # of LOOPS
    lr: float
    seed: int

    @property
    def name(self):
        return f"peer-{self.student}-{self.program}-lr{self.lr:g}-s{self.seed}"


def text_of(study, folders, seed):
    """The first token shard, its documents rotated: the second of three seeds begins after a third of them."""
    place, places = study.peers["seeds"].index(seed), len(study.peers["seeds"])
    path = folders.scratch / "peers" / f"{place}-of-{places}.dtok"
    if not path.exists():
        header, documents, _ = shard_file.read(training.token_shards(folders, 1)[0])
        spec = shard_file.ShardSpec(*(header[key] for key in ("vocab_size", "tokenizer_hash", "bos_id", "eos_id")))
        shard = shard_file.Shard(spec)
        begin = place * len(documents) // places
        for tokens in documents[begin:] + documents[:begin]:
            shard.add(tokens, None)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}-{time.monotonic_ns()}")
        shard.write(partial)
        os.replace(partial, path)
    return path


def job_config(study, folders, job):
    """One configuration for all loops: JSD with beta 0.5, one stream of tokens in order."""
    peers = study.peers
    return training.merged(
        study.config,
        {
            "student.path": str(folders.student(job.student)),
            "teacher.path": str(folders.teacher),
            "data.train": [str(text_of(study, folders, job.seed))],
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
            "optimizer.lr": job.lr,
            "scheduler.warmup_steps": max(1, peers["steps"] // 20),
            "run.dir": str(folders.run(job.name)),
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


def jobs(study, timed):
    """Those of the programs that can run here: the timed ones, or the others."""
    first = (study.peers["lrs"][0], study.peers["seeds"][0])
    return [
        Job(student, program, lr, seed)
        for student in study.peers["students"]
        for lr in study.peers["lrs"]
        for seed in study.peers["seeds"]
        for program in LOOPS
        if ((lr, seed) == first) == timed and not why_left_out(study, program)
    ]


def run(study, folders, program, job, device, threads):
    """Trains with one of the programs, and evaluates the model with distill."""
    folder = folders.run(job.name)
    shutil.rmtree(folder, ignore_errors=True)
    config = training.write_config(folder, job_config(study, folders, job))
    arguments = LOOPS[job.program][0]
    if arguments is None:
        command = [program, "--config", config, "--overwrite"]
    else:
        script = Path(__file__).resolve().parents[1] / "quality.py"
        command = [sys.executable, script, *arguments, "--config", config]
    began = time.monotonic()
    training.call(command, device, threads)
    seconds = time.monotonic() - began
    steps = steps_of(folder)
    values = training.evaluate(program, study, folders, folder / "model", "validation", device, threads)
    shutil.rmtree(folder)
    return {
        "peer": job.program,
        "student": job.student,
        "title": TITLES[job.program],
        "lr": job.lr,
        "seed": job.seed,
        "alone": job in jobs(study, timed=True),
        "steps": len(steps),
        "batch_tokens": study.step_tokens,
        "process_seconds": training.short(seconds),
        "tokens_per_second": training.short(study.step_tokens / median_seconds(steps)),
        "losses": [training.short(step["loss"]) for step in steps],
        "validation": [{"tokens": len(steps) * study.step_tokens, "ce": values["hard"], "kl": values["forward_kl"]}],
    }
