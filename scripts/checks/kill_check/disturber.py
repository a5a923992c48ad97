"""Disturbs one training run after the other, and compares each with a run that nothing disturbed."""

import json
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import tiny

from .job import Failure, Job, complete_steps, expect, result_of, timeless, wait_until_gone

PAGE = 4096  # bytes; a tmpfs allocates its space in pages
NO_SPACE = "No space left on device"
NOT_COUNTED = "no write failed"


class Disturber:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.output = folder / "output.txt"  # outside the small disk, so that a full disk does not lose it
        self.random = random.Random(options.seed)
        self.seen = Counter()
        self.failing_writes = 0
        self.startup = 2.0  # seconds until the first step, measured
        self.cycle = 1.0  # seconds from the first step to the end, measured
        models = folder / "models"
        student = tiny.make_model(models / "student", "llama", seed=1, tied=False)
        teacher = tiny.make_model(models / "teacher", "llama", seed=2, tied=False, hidden=64, layers=3)
        shard = tiny.make_shard(folder / "data.dtok", tiny.random_documents(3, [5, 61, 17, 128, 2, 33, 90, 47] * 5))
        self.inputs = (student, teacher, shard)
        self.teachers = []  # several, in place of the one of the inputs
        self.sections = dict(
            data={"shuffle": True, "packing": "pack", "seed": 5, "eval": [{"path": shard}]},
            train={"steps": options.steps, "micro_batch_size": 1, "global_batch_size": 8},
            eval={"every": 7, "batches": 2},
            checkpoint={"every": 3, "keep": 3},
            parallel={"processes": options.ranks},
            run={"tensorboard": True},
        )
        if options.teachers > 1:
            self.take_several_teachers(folder)

    def take_several_teachers(self, folder):
        """One that runs, and one whose most probable tokens are read from a cache; shares decide whose a row is."""
        student, teacher, shard = self.inputs
        other = tiny.make_model(folder / "models" / "other", "qwen3", seed=3, tied=True)
        dealt = [{"path": shard, "teacher": {"runs": 2, "cached": 1}}]
        self.sections["data"] |= {"train": dealt, "eval": dealt}
        cache = {"path": str(folder / "cache"), "kind": "topk", "topk": 8}
        own = {"name": "cached", "path": other, "cache": cache, "loss": {"divergence": "forward_kl"}}
        self.teachers = [{"name": "runs", "path": teacher}, own]
        tiny.distill("capture", "--config", self.config(folder / "capture"), "--teacher", "cached")
        self.teachers[1] = {**own, "source": "cache"}

    def config(self, place):
        place.mkdir(parents=True, exist_ok=True)
        config = tiny.base_config(place, *self.inputs, **json.loads(json.dumps(self.sections)))
        if self.teachers:
            del config["teacher"]
            config["teachers"] = self.teachers
        return tiny.write_config(place, config)

    def run_to_end(self, place, *flags):
        job = Job(self.config(place), self.output, *flags)
        metrics = place / "run" / "metrics.jsonl"
        while job.running() and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.005)
        first = time.monotonic()
        code = job.wait()
        expect(code == 0, f"exit code {code} of a run that nothing disturbed\n{job.text()[-3000:]}")
        return first - job.began, time.monotonic() - first

    def reference(self):
        place = self.folder / "reference"
        self.startup, self.cycle = self.run_to_end(place)
        return result_of(place / "run", self.options.steps)

    def start_flags(self, run):
        """The flags that continue the run; one killed before its first checkpoint starts again."""
        if complete_steps(run):
            return ["--resume"]
        return ["--overwrite"] if run.exists() and any(run.iterdir()) else []

    def wait_for_instant(self, job, run):
        """Waits until a random time, or until the middle of a save."""
        if self.random.random() < 0.4:
            saves = self.random.randint(1, 3)
            for _ in range(saves):
                before = set((run / "checkpoints").glob("*")) if run.exists() else set()
                while job.running() and not any(
                    path.name.endswith(".partial") and path not in before for path in (run / "checkpoints").glob("*")
                ):
                    time.sleep(0.0005)
            time.sleep(self.random.random() ** 2 * 0.03)
            return "while saving"
        instant = self.random.random() * (self.startup + 0.8 * self.cycle)
        while job.running() and time.monotonic() < job.began + instant:
            time.sleep(0.002)
        return "while starting" if instant < self.startup else "while training"

    def kill(self, job, run):
        when = self.wait_for_instant(job, run)
        ranks = job.ranks()
        pids = [job.launcher.pid, *ranks.values()]
        victim = self.random.choice(["rank", "all", "launcher"])
        if not job.running():
            return "ended before"
        if victim == "rank" and ranks:
            os.kill(self.random.choice(list(ranks.values())), signal.SIGKILL)
            code = job.wait(60)
            expect(code in (0, 1), f"exit code {code} after a rank was killed\n{job.text()[-3000:]}")
        elif victim == "launcher":
            os.kill(job.launcher.pid, signal.SIGKILL)
        else:
            job.kill_all()
        wait_until_gone(pids)
        job.wait()
        return f"{victim} {when}"

    def flip(self, job, run):
        what = self.kill(job, run)
        steps = complete_steps(run)
        if what == "ended before" or not steps:
            return what
        newest = run / "checkpoints" / f"step-{steps[-1]}"
        files = sorted(path for path in newest.iterdir() if path.is_file())
        # The large files, the index and the marker have equal chances.
        victim = self.random.choice([self.random.choice(files), newest / "COMPLETE", newest / "index.json"])
        content = bytearray(victim.read_bytes())
        if self.random.random() < 0.25:
            content = content[: self.random.randrange(len(content))]
        else:
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
        victim.write_bytes(content)
        self.damaged = newest
        return f"damaged {victim.name.split('-')[0]}"

    def check_damage(self, job_text, run):
        """Checks that the resumption after a flip noticed the damage and set the checkpoint aside."""
        damaged, self.damaged = self.damaged, None
        expect(
            "is damaged and is not used" in job_text, f"{damaged} was damaged, and nothing was said\n{job_text[-3000:]}"
        )
        expect((damaged.parent / (damaged.name + ".damaged")).exists(), f"{damaged} is damaged and was not set aside")
        shutil.rmtree(damaged.parent / (damaged.name + ".damaged"))

    def pages_left(self, run):
        """The number of pages to leave free: almost none, a part of a checkpoint, or all but its last pages."""
        steps = complete_steps(run) if run.exists() else []
        newest = run / "checkpoints" / f"step-{steps[-1]}" if steps else None
        pages = sum(-(-path.stat().st_size // PAGE) for path in newest.iterdir()) if newest else 200
        return self.random.choice(
            [
                self.random.randint(0, 2),  # metrics.jsonl, log.txt, config.yaml
                self.random.randint(0, pages + 4),  # a rank's file
                pages + self.random.randint(-6, 3),
            ]
        )  # index.json, COMPLETE

    def disk(self, job, run):
        """Fills the disk up to a few pages at a random time, until a write fails or some seconds have passed."""
        when = self.wait_for_instant(job, run)
        before = complete_steps(run) if run.exists() else []
        ballast = run.parent / "ballast"
        keep_free = PAGE * max(0, self.pages_left(run))
        try:
            with open(ballast, "wb", buffering=0) as file:
                file.write(b"\1" * max(0, shutil.disk_usage(run.parent).free - keep_free))
        except OSError:
            pass  # the run took the space first
        end = time.monotonic() + 6
        while job.running() and time.monotonic() < end and NO_SPACE not in job.text():
            time.sleep(0.01)
        end = time.monotonic() + 4 * self.random.random()
        while job.running() and time.monotonic() < end:
            time.sleep(0.01)
        if job.running():  # it continues without saving, or is about to end
            job.kill_all()
            self.seen["went on"] += 1
        code = job.wait()
        text = job.text()
        expect(code in (0, 1, -9), f"exit code {code} with a full disk\n{text[-3000:]}")
        if code == 1:
            expect(NO_SPACE in text, f"failed for another reason\n{text[-3000:]}")
            self.seen["ended with an error that names the disk"] += 1
        ballast.unlink(missing_ok=True)
        after = complete_steps(run) if run.exists() else []
        expect(not before or (after and after[-1] >= before[-1]), f"complete before: {before}, after: {after}")
        failed = {
            re.sub(r"\d+", "N", Path(path).name) for path in re.findall(rf"(\S+): cannot \w+[^:]*: {NO_SPACE}", text)
        }
        for name in failed:
            self.seen[f"a write failed of {name}"] += 1
        if NO_SPACE not in text:
            return "ended before" if code == 0 else NOT_COUNTED
        self.failing_writes += 1
        return f"full {when}"

    def stop(self, job, run):
        metrics = run / "metrics.jsonl"
        former = metrics.read_text().count("\n") if metrics.exists() else 0
        while job.running() and not (metrics.exists() and metrics.read_text().count("\n") != former):
            time.sleep(0.002)
        time.sleep(self.random.random() * 0.4 * self.cycle)
        ranks = job.ranks()
        if len(ranks) < self.options.ranks:
            job.wait()
            return "ended before"
        number = self.random.choice([signal.SIGTERM, signal.SIGUSR1])
        rank = self.random.choice(list(ranks))
        os.kill(ranks[rank], number)
        code = job.wait(60)
        if code == 0:
            return "ended before"
        expect(code == 3, f"exit code {code} after {number.name} to rank {rank}\n{job.text()[-3000:]}")
        last = timeless(run)[0][-1]["step"]
        steps = complete_steps(run)
        expect(steps and steps[-1] == last, f"the last step is {last}, complete checkpoints are {steps}")
        # Each rank stores its own count of optimizer steps.
        from safetensors import safe_open

        counters = []
        for file in sorted((run / "checkpoints" / f"step-{last}").glob("rank-*")):
            with safe_open(file, "pt") as tensors:
                counters.append(int(tensors.get_tensor("step_count").item()))
        expect(
            counters == [last] * self.options.ranks, f"stopped after step {last}, but the ranks have done {counters}"
        )
        return f"{number.name} to rank {'0' if rank == 0 else 'n'}"

    def one_run(self, place, expected, rounds):
        """Disturbs one run until its last step; returns the number of disturbances."""
        run = place / "run"
        disturb = {"kill": self.kill, "flip": self.flip, "disk": self.disk, "stop": self.stop}[self.options.mode]
        done = 0
        self.damaged = None
        while done < rounds:
            if (run / "model").exists() and complete_steps(run) and complete_steps(run)[-1] == self.options.steps:
                break
            flags = self.start_flags(run)
            if self.options.mode == "disk" and self.random.random() < 0.5:
                flags += ["--set", "checkpoint.on_error=continue"]
            job = Job(self.config(place), self.output, *flags)
            what = disturb(job, run)
            self.seen[what] += 1
            done += what not in ("ended before", NOT_COUNTED)
            if self.damaged is not None:
                self.resume_after_damage(place, run)
        if done >= rounds or not (run / "model").exists():
            self.run_to_end(place, *self.start_flags(run))
        found = result_of(run, self.options.steps)
        for part, value in expected.items():
            if found[part] != value:
                raise Failure(f"{part}: a disturbed run differs from the undisturbed one; see {place}")
        return done

    def resume_after_damage(self, place, run):
        """Resumes the run, and kills it once it trains again or has refused to."""
        others = [
            path
            for path in (run / "checkpoints").glob("step-*/COMPLETE")
            if path.parent != self.damaged and path.parent.name.removeprefix("step-").isdigit()
        ]
        job = Job(self.config(place), self.output, "--resume")
        aside = self.damaged.parent / (self.damaged.name + ".damaged")
        while job.running() and not (aside.exists() and "resumed from" in job.text()):
            time.sleep(0.005)
        pids = job.kill_all()
        wait_until_gone(pids)
        job.wait()
        self.check_damage(job.text(), run)
        if others:
            expect("resumed from" in job.text(), f"no other checkpoint was used\n{job.text()[-3000:]}")
