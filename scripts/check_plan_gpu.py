#!/usr/bin/env python3
"""Compares the memory plan with what this machine's GPUs measure, row by row, and tries what docs/memory.md claims.

  scripts/check_plan_gpu.py OUT plan bits flat        groups: their rows for as many GPUs as are here
  scripts/check_plan_gpu.py OUT 1g-1b-8b-keep         rows by name; any that fit the GPUs
  scripts/check_plan_gpu.py OUT plan --smaller-too    rows for fewer GPUs as well, several side by side
  scripts/check_plan_gpu.py OUT plan --estimate --gpus 2     how long it would take on two GPUs; needs none
  scripts/check_plan_gpu.py OUT --list

Groups: plan    predicted against measured peak, and tokens per second
        speeds  uniform policies at one shape: what offloading costs
        auto    memory.activation: auto against the uniform policies, under four budgets
        long    one long sequence; the longest that fits a limit of device memory, by the plan
        bits    losses under every policy equal keep's bit for bit, in deterministic mode
        flat    2000 steps with offload: memory of the first and of the last step
        calibrate   this machine's speeds, for memory.machine

A row that fails says so and the next one runs. OUT receives summary.md (a line of a table for each row), details.jsonl
(every phase and category), log.txt (what failed), machine-N.json. DISTILL names another program than the build's.
Random weights are made on the GPU; a row is a few steps in a process of its own.
"""

import os
import sys

# This folder holds a tokenize.py, which must not take the place of the standard library's.
_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [os.path.join(_HERE, "plan_check")] + [p for p in sys.path if os.path.abspath(p) != _HERE]

import argparse  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from concurrent.futures import ThreadPoolExecutor  # noqa: E402
from pathlib import Path  # noqa: E402

from rows import GIB, POLICIES, Row, rows  # noqa: E402

REPOSITORY = Path(__file__).resolve().parent.parent


class Machine:
    """Runs rows, several at a time where they need fewer GPUs than are here."""

    def __init__(self, options):
        self.options = options
        self.out = Path(options.out)
        self.work = REPOSITORY / "work" / "check-plan"
        self.distill = os.environ.get("DISTILL", str(REPOSITORY / "build/release/apps/distill/distill"))
        self.gpus = options.gpus or visible_gpus()
        self.lock = threading.RLock()
        self.failed = []
        self.began = time.monotonic()
        self.out.mkdir(parents=True, exist_ok=True)

    def say(self, text, file="summary.md"):
        with self.lock:
            print(text, flush=True)
            with open(self.out / file, "a") as stream:
                stream.write(text + "\n")

    def run(self, arguments, log, devices, limit_s):
        """The exit code; 124 where the time ran out."""
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES=devices)
        with open(log, "w") as stream:
            process = subprocess.Popen(
                [self.distill, *map(str, arguments)],
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
            try:
                return process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its ranks end with it
                process.wait()
                return 124

    def fail(self, name, log, code):
        text = Path(log).read_text(errors="replace").splitlines() if Path(log).exists() else []
        with self.lock:
            self.failed.append(name)
            with open(self.out / "log.txt", "a") as stream:
                stream.write("\n".join([f"== {name}: exit code {code}", *text[-40:], ""]))
        self.say(f"| {name} | FAILED with {code}: {text[-1][:160] if text else 'no output'} |")

    def side_by_side(self, jobs, gpus):
        """Calls each of the jobs with the text of its `gpus` devices, in order, as many at a time as there are GPUs for."""
        queue = list(reversed(jobs))

        def worker(devices):
            while True:
                with self.lock:
                    job = queue.pop() if queue else None
                if job is None:
                    return
                job(devices)

        slots = 1 if self.options.one_by_one else max(1, self.gpus // gpus)
        threads = [
            threading.Thread(target=worker, args=(",".join(str(slot * gpus + i) for i in range(gpus)),))
            for slot in range(slots)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def inputs(self, row):
        """The configuration's path; models' shapes and random tokens beside it."""
        folder = self.work / f"v{row.vocab}-s{row.seq_len}-{row.name}"
        shapes = [row.student] + ([row.teacher] if row.teacher != "none" else [])
        count = max(4, row.gpus * row.batch * row.micro_batches * 2)
        subprocess.run(
            [
                sys.executable,
                str(REPOSITORY / "scripts/bench_inputs.py"),
                "--out",
                str(folder),
                "--shapes",
                ",".join(shapes),
                "--vocab",
                str(row.vocab),
                "--seq-len",
                str(max(row.seq_len, 64)),
                "--rows",
                str(count),
            ],
            check=True,
        )
        teacher = f"teacher: {{path: {folder}/{row.teacher}, init: random}}\n" if row.teacher != "none" else ""
        loss = "{divergence: jsd, beta: 0.5}" if row.teacher != "none" else "{divergence: none, hard_weight: 1}"
        config = folder / "config.yaml"
        config.write_text(
            f"student: {{path: {folder}/{row.student}, init: random}}\n{teacher}"
            f"data: {{train: {folder}/tokens.dtok, seq_len: {row.seq_len or 4096}, packing: concat, shuffle: false}}\n"
            f"loss: {loss}\n"
            f"train: {{steps: {row.steps}, micro_batch_size: {row.batch}, "
            f"global_batch_size: {row.gpus * row.batch * row.micro_batches}}}\n"
            f"parallel: {{processes: {row.gpus}}}\n"
            "scheduler: {type: constant}\ncheckpoint: {at_end: false}\n"
            f"run: {{dir: {folder}/run}}\n"
        )
        return config

    def make_plan(self, row):
        """What the program says beforehand, without a GPU; for the longest rows the length too."""
        arguments = ["plan", "--config", self.inputs(row), "--ranks", row.gpus, "--json"]
        arguments += [part for setting in row.settings for part in ("--set", setting)]
        if row.seq_len == 0:
            found = self.plan_json([*arguments, "--longest"])
            row.seq_len = found.get("longest_seq_len", 0)
            row.plan = found.get("plan", {})
        else:
            row.plan = self.plan_json(arguments)

    def plan_json(self, arguments):
        done = subprocess.run(
            [self.distill, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            env=dict(os.environ, CUDA_VISIBLE_DEVICES=""),
        )
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError:
            return {"overflows": [(done.stderr.strip() or "no plan").splitlines()[-1]]}

    def profile(self, row, devices):
        name = row.name
        try:
            config = self.inputs(row)
            folder = config.parent / "profile"
            shutil.rmtree(folder, ignore_errors=True)
            arguments = ["profile-memory", "--config", config, "--steps", row.steps, "--out", folder]
            arguments += [part for setting in row.settings for part in ("--set", setting)]
            began = time.monotonic()
            log = config.parent / "run.log"
            code = self.run(arguments, log, devices, row.limit_s)
            if code != 0:
                self.fail(name, log, code)
                return
            row.report = json.loads((folder / "report.json").read_text())
            self.record(row, time.monotonic() - began, log)
            shutil.rmtree(config.parent, ignore_errors=True)
        except Exception as error:  # the next row runs all the same
            self.failed.append(name)
            self.say(f"| {name} | FAILED: {error} |")

    def record(self, row, seconds, log):
        plan, measured = row.report["plan"], row.report["measured"]
        phases = {}
        for phase, found in measured["phases"].items():
            predicted = plan["phases"][phase]
            phases[phase] = {"peak": [round(predicted["peak"] / GIB, 3), round(found["peak"] / GIB, 3)]} | {
                key: [round(predicted["highest"][key] / GIB, 3), round(value / GIB, 3)]
                for key, value in found["highest"].items()
                if value or predicted["highest"][key]
            }
        outside = [
            line.split("] ", 1)[-1]
            for line in Path(log).read_text(errors="replace").splitlines()
            if "beside the allocator" in line
        ]
        with self.lock, open(self.out / "details.jsonl", "a") as stream:
            stream.write(
                json.dumps(
                    {
                        "name": row.name,
                        "activation": plan["activation"],
                        "phases": phases,
                        "seconds": plan["seconds"],
                        "measured_seconds": measured["phase_seconds"],
                        "plan_bytes": plan["bytes"],
                        "reserved_peak": measured["reserved_peak"],
                        "outside_allocator": measured["outside_allocator"],
                        "outside_of_ranks": outside,
                        "wall_s": round(seconds, 1),
                    }
                )
                + "\n"
            )
        b = plan["bytes"]
        self.say(
            f"| {row.name} | {row.model_text()} | {row.gpus} | {row.vocab} | "
            f"{row.micro_batches} x {row.batch} x {row.seq_len} | "
            f"{' '.join([plan['activation'], *(s for s in row.settings if s[:17] != 'memory.activation')])} | "
            f"{b['peak'] / GIB:.2f} / {measured['peak'] / GIB:.2f} ({100 * row.report['peak_error']:+.2f} %) | "
            f"{(b['peak'] + b['allocator_slack']) / GIB:.2f} / {measured['reserved_peak'] / GIB:.2f} | "
            f"{(b['communicators'] + b['context']) / GIB:.2f} / {measured['outside_allocator']['end'] / GIB:.2f} | "
            f"{plan['tokens_per_second']:.0f} / {measured['tokens_per_second']:.0f} "
            f"({100 * row.report['speed_error']:+.1f} %) | {seconds:.0f} s |"
        )

    def compare(self, chosen):
        """What groups are for, once their rows have run."""
        done = {row.name: row.report for row in chosen if row.report}
        speed = {name: report["measured"]["tokens_per_second"] for name, report in done.items()}
        peak = {name: report["measured"]["peak"] / GIB for name, report in done.items()}
        for gpus in (1, 2, 4):
            inputs, recompute = f"{gpus}g-speed-offload_input", f"{gpus}g-speed-recompute"
            if inputs in done and recompute in done:
                self.say(
                    f"\n{gpus} GPU(s): offload_input runs at {100 * speed[inputs] / speed[recompute]:.1f} % of "
                    f"recompute's speed, {peak[inputs]:.2f} GiB against {peak[recompute]:.2f}"
                )
            uniform = [f"{gpus}g-uniform-{policy}" for policy in POLICIES if f"{gpus}g-uniform-{policy}" in done]
            for gib in (45, 55, 70, 100):
                auto = f"{gpus}g-auto{gib}"
                fitting = [name for name in uniform if peak[name] <= gib]
                if auto in done and fitting:
                    best = max(fitting, key=lambda name: speed[name])
                    self.say(
                        f"\n{gpus} GPU(s), {gib} GiB: auto {speed[auto]:.0f} tok/s at {peak[auto]:.2f} GiB, the best "
                        f"uniform policy {best} {speed[best]:.0f}: {100 * speed[auto] / speed[best]:.1f} %"
                    )

    def train(self, row, devices, arguments, limit_s=240):
        """Step records of an ordinary run; None where it failed."""
        config = self.inputs(row)
        log = config.parent / "run.log"
        code = self.run(["--config", config, "--overwrite", *arguments], log, devices, limit_s)
        if code != 0:
            self.fail(row.name, log, code)
            return None
        lines = (config.parent / "run" / "metrics.jsonl").read_text().splitlines()
        return [step for step in map(json.loads, lines) if "loss" in step and "eval" not in step]

    def bits_jobs(self):
        """Every policy, and the optimizer's state on the host, beside keep: small models that share the GPUs."""
        settings = {policy: [f"memory.activation={policy}"] for policy in POLICIES}
        settings["mix"] = ["memory.activation=recompute,offload,offload_input,keep"]
        settings["host"] = ["memory.optimizer=host"]
        settings["mix-host"] = [*settings["mix"], *settings["host"]]
        results = {}

        def run(gpus, name, devices):
            row = Row(
                f"{gpus}g-bits-{name}",
                "bits",
                gpus,
                "tiny",
                "tiny",
                vocab=32000,
                seq_len=1024,
                batch=2,
                micro_batches=2,
            )
            arguments = [
                part
                for setting in (*settings[name], "train.deterministic=true", "optimizer.lr=1e-4", "train.steps=8")
                for part in ("--set", setting)
            ]
            steps = self.train(row, devices, arguments)
            results[gpus, name] = steps and [(step["loss"], step["grad_norm"]) for step in steps]

        def report():
            for (gpus, name), found in sorted(results.items()):
                same = found is not None and found == results[gpus, "keep"]
                if not same:
                    self.failed.append(f"{gpus}g-bits-{name}")
                self.say(
                    f"| {gpus}g-bits-{name} | {len(found or [])} steps: {'equal to keep' if same else 'DIFFERENT'} |"
                )
                if found and not same:
                    self.say(f"{name}: {found}\nkeep: {results[gpus, 'keep']}", file="log.txt")

        every = ",".join(map(str, range(self.gpus)))
        jobs = [(run, 1, name, str(i % self.gpus)) for i, name in enumerate(settings)]
        if self.gpus > 1:
            jobs += [(run, self.gpus, name, every) for name in settings]
        return [threading.Thread(target=run, args=arguments) for run, *arguments in jobs], report

    def flat(self):
        row = Row("1g-flat", "flat", 1, "tiny", "tiny", vocab=32000, seq_len=1024, steps=2000)
        arguments = ["--set", "memory.activation=offload", "--set", "memory.optimizer=host"]
        steps = self.train(row, "0", arguments)
        if steps:
            peaks = [step["peak_memory_bytes"] for step in steps]
            reserved = [step["peak_reserved_bytes"] for step in steps]
            # An epoch's last row holds a token without a target, for which the loss head makes an index: after the first
            # epoch (4 steps here) all sizes have been seen.
            flat = peaks[-1] == peaks[99] and reserved[-1] == reserved[99]
            if not flat:
                self.failed.append(row.name)
            self.say(
                f"| {row.name} | {len(steps)} steps, peak after step 2 {peaks[1]}, after 100 {peaks[99]}, after the last "
                f"{peaks[-1]}; reserved {reserved[1]}, {reserved[99]}, {reserved[-1]}: {'flat' if flat else 'GROWN'} |"
            )

    def calibrate(self):
        path = self.out / f"machine-{self.gpus}.json"
        log = self.work / "calibrate.log"
        self.work.mkdir(parents=True, exist_ok=True)
        code = self.run(
            ["plan", "--calibrate", path, "--ranks", self.gpus], log, ",".join(map(str, range(self.gpus))), 180
        )
        if code != 0:
            self.fail("calibrate", log, code)
        else:
            self.say("\n```\n" + log.read_text() + "```")


def visible_gpus():
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device])
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU ")
    except FileNotFoundError:
        return 0


def available_host_bytes():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def grow_host(need, say):
    """Memory of a virtual machine that comes as it is used does not count as available before: uses it once, a GiB at a
    time, as long as more comes."""
    size = int(1.1 * need / GIB) + 8
    if need < GIB or size * GIB <= available_host_bytes():
        return
    code = f"""
import time, numpy
open("/proc/self/oom_score_adj", "w").write("1000")
def available():
    return next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable:")) >> 20
held = []
while len(held) < {size}:
    patience = 30
    while available() < 6 and patience > 0:
        patience -= 1
        time.sleep(0.1)
    if patience == 0:
        break
    held.append(numpy.ones(2**30, dtype="u1"))
print(len(held))"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    say(
        f"(touched {done.stdout.strip() or 'not all'} of {size} GiB of host memory in {time.monotonic() - began:.0f} s; "
        f"available now {available_host_bytes() / GIB:.0f} GiB)"
    )


def choose(machine, names, smaller_too):
    every = rows()
    groups = {row.group for row in every}
    chosen = []
    for name in names:
        found = [
            row
            for row in every
            if row.name == name
            or (row.group == name and (row.gpus <= machine.gpus if smaller_too else row.gpus == machine.gpus))
        ]
        if not found and name not in groups:
            sys.exit(f"check_plan_gpu.py: no row or group '{name}'; --list shows them")
        chosen += [row for row in found if row.name not in {other.name for other in chosen}]
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("names", nargs="*", default=["plan"])
    parser.add_argument("--gpus", type=int, help="plan for so many; default: those that are visible")
    parser.add_argument("--smaller-too", action="store_true", help="rows of a group for fewer GPUs as well")
    parser.add_argument("--one-by-one", action="store_true", help="nothing side by side")
    parser.add_argument("--estimate", action="store_true", help="say what would run and for how long")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--stop-after", type=float, default=570, help="seconds after which no further row begins")
    options = parser.parse_args()
    if options.list:
        for row in rows():
            print(f"{row.group:8s} {row.name:32s} {row.gpus} GPU(s) {row.model_text():12s} {' '.join(row.settings)}")
        return 0
    machine = Machine(options)
    others = [name for name in options.names if name in ("bits", "flat", "calibrate")]
    chosen = choose(machine, [name for name in options.names if name not in others], options.smaller_too)
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
        list(pool.map(machine.make_plan, chosen))
    usable = []
    for row in chosen:
        if row.gpus > machine.gpus:
            print(f"{row.name}: needs {row.gpus} GPUs")
        elif not row.plan.get("seconds"):
            machine.failed.append(row.name)
            machine.say(f"| {row.name} | FAILED: {'; '.join(row.plan.get('overflows', ['no plan']))} |")
        else:
            usable.append(row)
    # Those that need the host's memory last: it is being made available beside the first ones.
    usable.sort(key=lambda row: (row.host_bytes() > GIB, -row.gpus))
    total = sum(row.estimate_s() * (1 if options.one_by_one else row.gpus / machine.gpus) for row in usable)
    total += (
        {1: 40, 2: 50}.get(machine.gpus, 60) * ("bits" in others)
        + 45 * ("flat" in others)
        + 30 * ("calibrate" in others)
    )
    for row in usable:
        print(
            f"{row.name:32s} {row.estimate_s():4.0f} s  {row.plan['bytes']['peak'] / GIB:6.1f} GiB  "
            f"{row.host_bytes() / GIB:5.1f} GiB on the host  {row.plan['tokens_per_second']:.0f} tok/s  {row.seq_len}"
        )
    print(f"estimated: {total:.0f} s in all on {machine.gpus} GPU(s)", flush=True)
    if options.estimate:
        return 0
    grower = threading.Thread(
        target=grow_host, daemon=True, args=(max([row.host_bytes() for row in usable], default=0), print)
    )
    grower.start()
    if usable:
        machine.say(
            "\n| row | models | GPUs | V | tokens of a rank's step | blocks | peak, GiB: predicted / measured | reserved "
            "| beside the allocator | tok/s: predicted / measured | took |\n|" + " --- |" * 11
        )

    def job(row):
        def work(devices):
            if time.monotonic() - machine.began + row.estimate_s() > options.stop_after:
                machine.failed.append(row.name)
                machine.say(f"| {row.name} | not begun: --stop-after {options.stop_after:.0f} s |")
                return
            if row.host_bytes() > GIB:
                grower.join()
            machine.profile(row, devices)

        return work

    for gpus in sorted({row.gpus for row in usable}, reverse=True):
        machine.side_by_side([job(row) for row in usable if row.gpus == gpus], gpus)
    machine.compare(usable)
    jobs, report = machine.bits_jobs() if "bits" in others else ([], lambda: None)
    jobs += [threading.Thread(target=machine.flat)] if "flat" in others else []
    for thread in jobs:
        thread.start()
    for thread in jobs:
        thread.join()
    report()
    if "calibrate" in others:
        machine.calibrate()
    machine.say(f"\n{time.monotonic() - machine.began:.0f} s; failed: {', '.join(machine.failed) or 'none'}")
    return 1 if machine.failed else 0


if __name__ == "__main__":
    sys.exit(main())
