#!/usr/bin/env python3
"""Disturbs training runs at random instants and checks that nothing is lost.

  scripts/kill_test.py --mode kill --rounds 200     SIGKILL of a random rank, of all, or of the launcher
  scripts/kill_test.py --mode disk --rounds 50      the disk (a small tmpfs) has a few pages left from a random instant on,
                                                    so that a write of any file fails; rounds in which none does do not count
  scripts/kill_test.py --mode flip --rounds 50      SIGKILL, then a byte of the newest checkpoint is flipped or cut off
  scripts/kill_test.py --mode stop --rounds 50      SIGTERM or SIGUSR1 to one random rank

Each disturbance is followed by a resumption. A run that has reached its end must equal one that was never disturbed bit
for bit: the trained model, the last checkpoint's tensors, every line of metrics.jsonl but for the times in it. Then the
next run begins, until there have been so many disturbances. Exits with 1 and says what differs where anything does.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# In the place of this folder, whose tokenize.py is not Python's.
sys.path[:1] = [str(ROOT / "scripts" / "kill_check"), str(ROOT / "tests" / "training")]

import tiny  # noqa: E402
from job import Failure, Job, complete_steps, expect, result_of, timeless, wait_until_gone  # noqa: E402

PAGE = 4096  # what a tmpfs gives at a time
NO_SPACE = "No space left on device"
NOT_COUNTED = "no write failed"
TMPFS_BYTES = 6_000_000  # room for the checkpoints that are kept, the one being written, and the model


class Disturber:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.output = folder / "output.txt"  # what a run says is not to be lost on a full disk
        self.random = random.Random(options.seed)
        self.seen = Counter()
        self.failing_writes = 0
        self.startup = 2.0  # seconds until the first step, measured
        self.cycle = 1.0  # seconds from the first step to the end, measured
        models = folder / "models"
        student = tiny.make_model(models / "student", "llama", seed=1, tied=False)
        teacher = tiny.make_model(models / "teacher", "llama", seed=2, tied=False, hidden=64, layers=3)
        shard = tiny.make_shard(folder / "data.dtok", tiny.random_documents(3, [5, 61, 17, 128, 2, 33, 90, 47] * 5))
        self.sections = dict(
            student=student,
            teacher=teacher,
            shard=shard,
            data={"shuffle": True, "packing": "pack", "seed": 5, "eval": [{"path": shard}]},
            train={"steps": options.steps, "micro_batch_size": 1, "global_batch_size": 8},
            eval={"every": 7, "batches": 2},
            checkpoint={"every": 3, "keep": 3},
            parallel={"processes": options.ranks},
        )

    def config(self, place):
        place.mkdir(parents=True, exist_ok=True)
        return tiny.write_config(place, tiny.base_config(place, **json.loads(json.dumps(self.sections))))

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
        """Goes on where there is something to go on from; a run killed before its first checkpoint starts again."""
        if complete_steps(run):
            return ["--resume"]
        return ["--overwrite"] if run.exists() and any(run.iterdir()) else []

    def wait_for_instant(self, job, run):
        """At any time, or in the middle of a save."""
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
        # The large files, the index and the marker alike.
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
        """After the resumption that follows a flip."""
        damaged, self.damaged = self.damaged, None
        expect(
            "is damaged and not used" in job_text, f"{damaged} was damaged, and nothing was said\n{job_text[-3000:]}"
        )
        expect((damaged.parent / (damaged.name + ".damaged")).exists(), f"{damaged} is damaged and was not set aside")
        shutil.rmtree(damaged.parent / (damaged.name + ".damaged"))

    def pages_left(self, run):
        """How much room to leave: for nothing, for a part of a checkpoint, or for all of it but its last pages."""
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
        """Leaves a few pages free from a random instant on, until a write has failed or for some seconds."""
        when = self.wait_for_instant(job, run)
        before = complete_steps(run) if run.exists() else []
        ballast = run.parent / "ballast"
        keep_free = PAGE * max(0, self.pages_left(run))
        try:
            with open(ballast, "wb", buffering=0) as file:
                file.write(b"\1" * max(0, shutil.disk_usage(run.parent).free - keep_free))
        except OSError:
            pass  # the run was faster
        end = time.monotonic() + 6
        while job.running() and time.monotonic() < end and NO_SPACE not in job.text():
            time.sleep(0.01)
        end = time.monotonic() + 4 * self.random.random()
        while job.running() and time.monotonic() < end:
            time.sleep(0.01)
        if job.running():  # it goes on without saving, or is about to end; ended like any other run
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
        # Every rank's own counter of optimizer steps.
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
        """Disturbs one run up to its end; returns how often."""
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
        """Resumes, and kills the run again once it is under way or has refused."""
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


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["kill", "disk", "flip", "stop"], default="kill")
    parser.add_argument("--rounds", type=int, default=10, help="disturbances")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=40, help="of each run")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--work", type=Path, default=None, help="folder; kept where something differs")
    options = parser.parse_args()
    options.seed = random.randrange(2**31) if options.seed is None else options.seed
    return options


def work_folder(options):
    folder = options.work or Path(tempfile.mkdtemp(prefix="kill_test-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def small_disk(place):
    """Mounts a small tmpfs; as another user than root, in a mount namespace of its own."""
    place.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(place):
        subprocess.run(["umount", str(place)], check=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode == 0:
        return
    if os.environ.get("KILL_TEST_NAMESPACE"):
        sys.exit("kill_test.py: cannot mount a tmpfs")
    os.environ["KILL_TEST_NAMESPACE"] = "1"
    os.execvp("unshare", ["unshare", "--user", "--map-root-user", "--mount", sys.executable, *sys.argv])


def main():
    options = parse_arguments()
    folder = work_folder(options)
    began = time.monotonic()
    print(
        f"kill_test: mode {options.mode}, {options.rounds} rounds, {options.ranks} ranks, seed {options.seed}, "
        f"in {folder}",
        flush=True,
    )
    disturber = Disturber(options, folder)
    done = runs = 0
    place = folder / "disturbed"
    try:
        expected = disturber.reference()
        while done < options.rounds:
            if options.mode == "disk":
                small_disk(place)
            else:
                shutil.rmtree(place, ignore_errors=True)
            done += disturber.one_run(place, expected, options.rounds - done)
            runs += 1
            print(
                f"kill_test: {done} of {options.rounds} disturbances, {runs} runs equal the undisturbed one, "
                f"{time.monotonic() - began:.0f} s",
                flush=True,
            )
    except Failure as failure:
        print(f"kill_test: FAILED after {done} disturbances (seed {options.seed}): {failure}", file=sys.stderr)
        return 1
    finally:
        if os.path.ismount(place):
            subprocess.run(["umount", "-l", str(place)], check=False)
    for what, count in sorted(disturber.seen.items()):
        print(f"  {count:4d}  {what}")
    if options.mode == "disk":
        print(f"kill_test: writes failed in {disturber.failing_writes} rounds")
        if disturber.failing_writes == 0:
            print("kill_test: FAILED: the disk was never full", file=sys.stderr)
            return 1
    print(f"kill_test: passed: {done} disturbances in {runs} runs of {options.steps} steps, no bit differs")
    if options.work is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
