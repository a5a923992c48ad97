"""The teacher and its students: each is trained and measured once, several at a time, for a limited time."""

import json
import queue
import signal
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from shared.runs import (
    Stopped,
    call,
    end_children,
    evaluate,
    interrupted,
    read_metrics,
    write_config,
    write_json,
)
from token_shards import shard_file

from . import data
from .profiles import PROFILES, losses

DEV = ("dev-published", "dev-others")


class Study:
    """Folders below `work`: models without weights, runs, and results/NAME.json of what is done."""

    def __init__(self, args, devices):
        """devices: values of CUDA_VISIBLE_DEVICES that show one GPU each, or [""] for the CPU."""
        profile = PROFILES[args.profile]
        if args.batch:
            scale = args.batch / profile.student.batch
            student = replace(profile.student, batch=args.batch, lr=profile.student.lr * scale**0.5)
            profile = replace(profile, student=student)
        self.args, self.profile, self.devices = args, profile, devices
        self.work, self.inputs, self.program = args.work, args.inputs, args.program.resolve()
        self.losses = losses(profile.seq_len)
        self.deadline = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
        self.failed = threading.Event()
        self.free = queue.Queue()
        for device in list(devices) * args.jobs:
            self.free.put(device)

    # One program

    def where(self, devices):
        """How a program is started."""
        device = ",".join(devices) if any(devices) else None
        return {"device": device, "threads": self.args.threads, "deadline": self.deadline}

    def result(self, name):
        return self.work / "results" / f"{name}.json"

    def model(self, kind):
        return self.work / "models" / kind

    def make_models(self):
        for kind in ("teacher", "student"):
            shape = getattr(self.profile, kind).shape
            data.make_model(self.model(kind), self.inputs / "tokenizer", shape, self.profile.seq_len)

    def train(self, name, kind, seed, loss, devices, teacher=None):
        """Trains one model and measures it on the development sets, unless that is done; returns the result."""
        path = self.result(name)
        if path.exists():
            return json.loads(path.read_text())
        if self.failed.is_set() or time.monotonic() > self.deadline:
            raise Stopped
        profile, training, run = self.profile, getattr(self.profile, kind), self.work / "runs" / name
        ranks = max(1, len(devices))
        epoch = max(1, self.sequences() // training.batch)
        config = {
            "student": {"path": str(self.model(kind)), "init": "random"},
            "data": {"train": [str(self.inputs / "train")], "seq_len": profile.seq_len, "packing": "concat"},
            "loss": dict(loss) | {"metrics": "loss"},
            "train": {
                "epochs": training.epochs,
                "global_batch_size": training.batch,
                "micro_batch_size": training.batch // ranks,
                "device": profile.device,
                "dtype": profile.dtype,
                "seed": seed,
            },
            "optimizer": {
                "lr": training.lr,
                "beta1": 0.9,
                "beta2": 0.999,
                "weight_decay": training.weight_decay,
                "max_grad_norm": 1.0,
            },
            "scheduler": {"type": "cosine", "warmup_steps": training.warmup, "min_lr_ratio": 0},
            "checkpoint": {"every": epoch, "keep": 1},
            "parallel": {"processes": ranks, "replicate": ranks},
            "run": {"dir": str(run), "progress": "none"},
        }
        config["data"]["seed"] = seed
        if teacher:
            config["teacher"] = {"path": str(teacher)}
        else:  # where it costs little: is the last epoch the best?
            config["data"]["eval"] = [str(self.inputs / one) for one in DEV]
            config["eval"] = {"every": epoch}
        command = [self.program, "--config", write_config(run, config)]
        call([*command, "--resume" if interrupted(run) else "--overwrite"], **self.where(devices))
        steps, evaluations = read_metrics(run)
        speeds = [step["tokens_per_second"] for step in steps if step.get("tokens_per_second")]
        record = {
            "name": name,
            "kind": kind,
            "seed": seed,
            "steps": steps[-1]["step"],
            "batch": training.batch,
            "lr": training.lr,
            "gpus": len([device for device in devices if device]),
            "tokens_per_second": statistics.median(speeds),
            "last": {key: steps[-1].get(key) for key in ("loss", "hard", "soft", "grad_norm")},
            "dev": {one: self.measure(run / "model", one, teacher, devices[:1]) for one in DEV},
            "epochs": [[line["step"], line["eval"]["hard"]] for line in evaluations],
            "seconds": sum(step["seconds"] for step in steps if step.get("seconds")),
        }
        write_json(path, record)
        found = ", ".join(f"{one} {values['hard']:.4f}" for one, values in record["dev"].items())
        print(f"{name}: {found}, {record['seconds']:.0f} s", flush=True)
        return record

    def sequences(self):
        """Of the training text."""
        shards = sorted((self.inputs / "train").glob("*.dtok"))
        return sum(shard_file.read(shard)[0]["token_count"] for shard in shards) // self.profile.seq_len

    def measure(self, model, name, teacher, devices):
        """Means over the tokens of a development set, of the model and against the teacher where there is one."""
        how = {"keys": ["data.packing=concat"], "batch": 64} | self.where(devices)
        values = evaluate(self.program, self.profile, model, self.inputs / name, teacher, **how)
        names = ("hard", "teacher_ce", "forward_kl", "agreement", "accuracy", "valid_tokens")
        return {key: values[key] for key in names if values.get(key) is not None}

    # All

    def student(self, row, seed):
        device = self.free.get()
        try:
            teacher = None if row == "labels" else self.work / "runs" / "teacher" / "model"
            return self.train(f"{row}-s{seed}", "student", seed, self.losses[row][1], [device], teacher)
        finally:
            self.free.put(device)

    def run(self):
        """Trains what is missing, the teacher first, then the first seed of all rows. True when all is done."""
        self.make_models()
        try:
            self.train("teacher", "teacher", 1, {"divergence": "none", "hard_weight": 1}, self.devices)
        except Stopped:
            return False
        cells = [(row, seed) for seed in self.profile.seeds for row in self.losses]
        stopped = False
        with ThreadPoolExecutor(len(self.devices) * self.args.jobs) as pool:
            futures = [pool.submit(self.student, *cell) for cell in cells]
            for future in futures:
                try:
                    future.result()
                except Stopped:
                    stopped = True
                except KeyboardInterrupt:
                    self.failed.set()
                    end_children(signal.SIGTERM)  # a training saves
                    raise
                except BaseException:
                    self.failed.set()
                    raise
        return not stopped
