#!/usr/bin/env python3
"""Runs the targets of the fuzz program, several at the same time, until each has had enough inputs or processor time.

    fuzz_run.py --program fuzz_readers --corpus CORPUS --out OUT [--seconds S] [--jobs N] [TARGET...]

The work is cut into slices of up to two minutes; the target that is furthest behind gets the next slice. A target is
done after --runs inputs or --hours of processor time. OUT receives new inputs (corpus/), findings, logs, progress.json
and summary.txt, the table of results. A later call with the same OUT continues. The exit code is 1 if there are
findings.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

SLICE_S = 120
SANITIZERS = {
    "ASAN_OPTIONS": "malloc_context_size=6:quarantine_size_mb=32:detect_leaks=1:allocator_may_return_null=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
# A reader may allocate 64 bytes per byte of input, which has at most 64 KiB. The rss limit includes libtorch and
# finds leaks.
LIMITS = ["-max_len=65536", "-malloc_limit_mb=256", "-rss_limit_mb=3000", "-timeout=10"]
MAX_FINDINGS = 5  # a target with this number of findings gets no further slices


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True, help="a folder of inputs for each target")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--seconds", type=float, default=None, help="duration of this call; default: until all targets are done"
    )
    parser.add_argument("--jobs", type=int, default=1, help="number of processes at the same time")
    parser.add_argument("--runs", type=int, default=10_000_000, help="number of inputs of each target")
    parser.add_argument(
        "--hours", type=float, default=1.0, help="processor time after which a target is done with fewer inputs"
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    return parser.parse_args()


def prefix():
    """Low priority, and a fixed address space: older sanitizers fail if 32 bits of it are random."""
    command = ["nice", "-n", "19"]
    fixed = ["setarch", platform.machine(), "-R"]
    if shutil.which("setarch") and subprocess.run([*fixed, "true"], capture_output=True).returncode == 0:
        command += fixed
    return command


class Progress:
    """The inputs and processor time of each target, summed over all calls."""

    def __init__(self, out, targets, runs, hours):
        self.file = out / "progress.json"
        self.targets = targets
        self.runs, self.seconds = runs, 3600 * hours
        self.lock = threading.Lock()
        known = json.loads(self.file.read_text()) if self.file.exists() else {}
        empty = {"inputs": 0, "seconds": 0.0, "findings": [], "features": 0}
        self.of = {target: empty | known.get(target, {}) | {"running": 0} for target in targets}

    def share(self, target, expected=True):
        state = self.of[target]
        seconds = state["seconds"] + (SLICE_S * state["running"] if expected else 0)
        rate = state["inputs"] / max(state["seconds"], 1)
        inputs = state["inputs"] + (rate * SLICE_S * state["running"] if expected else 0)
        return max(inputs / self.runs, seconds / self.seconds)

    def take(self):
        """The target that is furthest behind; None if the slices in progress are expected to complete all targets."""
        with self.lock:
            open_targets = [
                target
                for target in self.targets
                if self.share(target) < 1 and len(self.of[target]["findings"]) < MAX_FINDINGS
            ]
            if not open_targets:
                return None
            target = min(open_targets, key=self.share)
            self.of[target]["running"] += 1
            return target

    def give(self, target, inputs, seconds, findings, features):
        with self.lock:
            state = self.of[target]
            state["running"] -= 1
            state["inputs"] += inputs
            state["seconds"] += seconds
            state["findings"] = sorted({*state["findings"], *findings})
            state["features"] = max(state["features"], features)
            self.file.write_text(json.dumps(self.of, indent=1))

    def done(self):
        with self.lock:
            return all(self.share(target, expected=False) >= 1 for target in self.targets)

    def text(self):
        lines = [f"{'target':20} {'inputs':>12} {'hours':>7} {'per second':>11} {'features':>9}  findings"]
        for target, state in self.of.items():
            rate = state["inputs"] / max(state["seconds"], 1)
            findings = ", ".join(state["findings"]) or "none"
            lines.append(
                f"{target:20} {state['inputs']:12,} {state['seconds'] / 3600:7.2f} {rate:11.0f} "
                f"{state['features']:9}  {findings}"
            )
        return "\n".join(lines) + "\n"


def run_slice(options, command, target, seconds, runs, number):
    """Returns the number of inputs, the seconds, the names of new findings, and the number of covered features."""
    corpus, findings = options.out / "corpus" / target, options.out / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    log = options.out / "logs" / f"{target}-{number}.log"
    environment = os.environ | SANITIZERS | {"FUZZ_TARGET": target, "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    with open(log, "w") as output:
        code = subprocess.run(
            [
                *command,
                str(options.program),
                f"-max_total_time={max(1, int(seconds))}",
                f"-runs={runs}",
                *LIMITS,
                f"-seed={number + 1}",
                "-print_final_stats=1",
                f"-artifact_prefix={findings}/{target}-",
                str(corpus),
                str(options.corpus / target),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        ).returncode
    text = log.read_text(errors="replace")
    executed = re.findall(r"stat::number_of_executed_units: (\d+)", text)
    features = re.findall(r" ft: (\d+) ", text)
    found = re.findall(r"Test unit written to (\S+)", text)
    if code == 0:
        log.unlink()
    elif not found:
        found = [str(log)]  # the program ended without writing the input
    return (
        int(executed[-1]) if executed else 0,
        time.monotonic() - began,
        [Path(path).name for path in found],
        int(features[-1]) if features else 0,
    )


def main():
    options = parse_arguments()
    options.program, options.corpus, options.out = (
        path.resolve() for path in (options.program, options.corpus, options.out)
    )
    targets = options.targets or sorted(path.name for path in options.corpus.iterdir())
    for folder in ("corpus", "findings", "logs"):
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    progress = Progress(options.out, targets, options.runs, options.hours)
    command = prefix()
    end = time.monotonic() + (options.seconds or float("inf"))
    numbers = iter(range(int(time.time()), 2**31))
    lock = threading.Lock()

    def work():
        while end - time.monotonic() > 2:
            target = progress.take()
            if target is None:
                return
            with lock:
                number = next(numbers)
            state = progress.of[target]
            seconds = min(SLICE_S, end - time.monotonic(), max(1, progress.seconds - state["seconds"]))
            runs = max(1, progress.runs - state["inputs"])
            progress.give(target, *run_slice(options, command, target, seconds, runs, number))

    workers = [threading.Thread(target=work) for _ in range(options.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    text = progress.text()
    (options.out / "summary.txt").write_text(text)
    print(text, end="")
    if any(state["findings"] for state in progress.of.values()):
        print(f"fuzz_run.py: findings; see {options.out}/findings and {options.out}/logs", file=sys.stderr)
        return 1
    print("all done" if progress.done() else "not done yet: call again with the same --out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
