"""Starts two jobs on one run folder at random instants: at any time one of them has the folder."""

import shutil
import time

from .job import Job, complete_steps, expect, result_of, wait_until_gone

# What a job that is refused may say. The first one is checked for in most rounds; the others are right where the other
# job has ended, or has written nothing yet.
IN_USE = "is in use by process"
REFUSALS = (IN_USE, "already exists and is not empty", "is empty", "does not exist", "no complete checkpoint")


class Rivals:
    def __init__(self, disturber):
        self.disturber = disturber
        self.random = disturber.random
        self.seen = disturber.seen
        self.refused_in_use = 0

    def prepare(self, place, output):
        """What the folder holds when the two start: nothing, a whole run, or what a killed job left, lock included."""
        kind = self.random.choice(["no folder", "a whole run", "a killed run", "a killed run"])
        run = place / "run"
        if kind == "no folder":
            shutil.rmtree(place, ignore_errors=True)
        elif kind == "a killed run":
            job = Job(self.disturber.config(place), output, "--overwrite")
            time.sleep(self.random.random() * (self.disturber.startup + self.disturber.cycle))
            pids = job.kill_all()
            wait_until_gone(pids)
            job.wait()
        return kind if run.exists() and any(run.iterdir()) else "no folder"

    def flags(self, kind):
        return self.random.choice([[], ["--overwrite"]] if kind == "no folder" else [["--overwrite"], ["--resume"], []])

    def round(self, place, expected):
        outputs = [place.parent / f"rival-{number}.txt" for number in range(2)]
        kind = self.prepare(place, outputs[0])
        run = place / "run"
        file = self.disturber.config(place)
        delay = self.random.random() ** 3 * (self.disturber.startup + self.disturber.cycle)
        flags = [self.flags(kind), self.flags(kind)]
        if self.refused_in_use == 0:  # until two jobs have met, both want the folder, and the first one has it for long
            delay = self.random.random() * self.disturber.cycle / 2
            flags = [["--overwrite"], ["--overwrite"]]
        first = Job(file, outputs[0], *flags[0])
        time.sleep(delay)
        jobs = [first, Job(file, outputs[1], *flags[1])]
        codes = [job.wait() for job in jobs]
        for code, job in zip(codes, jobs, strict=True):
            expect(code in (0, 2), f"exit code {code} of one of two jobs\n{job.text()[-3000:]}")
            if code == 2:
                found = [text for text in REFUSALS if text in job.text()]
                expect(found, f"refused for another reason\n{job.text()[-3000:]}")
                self.refused_in_use += found[0] == IN_USE
        self.seen[f"{kind}: {codes.count(0)} ran, {codes.count(2)} refused"] += 1
        if 0 not in codes or not (run / "model").exists():
            self.disturber.run_to_end(place, *self.disturber.start_flags(run))
        expect(not (run / ".lock").exists(), f"a lock is left in {run}")
        expect(complete_steps(run), f"{run} has no complete checkpoint")
        found = result_of(run, self.disturber.options.steps)
        for part, value in expected.items():
            expect(found[part] == value, f"{part}: the run differs from an undisturbed one; see {place}")
        return 1
