#!/usr/bin/env python3
"""Does float8 harm training? Trains without float8, with a float8 teacher, and with both models in float8, on several
seeds, and evaluates all trained students alike: without float8, against the teacher without float8. With --limit also
with a float8 teacher whose most sensitive products stay in the compute dtype (`distill quantize`).

  scripts/studies/compare_float8.py --work work/quickstart --out work/float8 --jobs 3
  scripts/studies/compare_float8.py --work work/quickstart --out work/float8 --jobs 3 --minutes 4    # a piece of it
  scripts/studies/compare_float8.py --work work/quickstart --out work/float8 --limit 0.01  # with exceptions, too
  scripts/studies/compare_float8.py --out work/float8 --table                                        # the tables alone

--work is a folder of scripts/quickstart.sh (student, teacher, data). When the time is over, the runs that work save
their state; the same command continues them. --out has a JSON file for each finished run.
"""

import script_path

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from shared.command_line import argument_parser, fail
from shared.gpus import visible_gpus

KINDS = {
    "bf16": [],
    "float8 teacher": ["teacher.dtype=float8"],
    "both": ["teacher.dtype=float8", "student.dtype=float8"],
}
LIMITED = "float8 teacher with exceptions"  # the kind that --limit adds
STOPPED = 3  # exit code of a run that a signal has stopped; its state is saved
GATE = re.compile(r"float8 teacher against.*mean KL ([0-9.e-]+) nats")
METRICS = {"KL": "forward_kl", "cross-entropy": "hard", "agreement": "agreement"}


def parse_arguments():
    parser = argument_parser(__doc__)
    parser.add_argument("--work", type=Path, default=Path("work/quickstart"), help="folder with student, teacher, data")
    parser.add_argument("--out", type=Path, default=Path("work/float8"), help="folder of the runs and their results")
    parser.add_argument("--program", default="build/release/apps/distill/distill", help="the distill program")
    parser.add_argument("--kinds", default="", metavar="KIND,...", help="these alone (default: all)")
    parser.add_argument("--seeds", default="1,2,3", metavar="SEED,...", help="(default: 1,2,3)")
    parser.add_argument("--steps", type=int, default=2000, help="of each run (default: 2000)")
    parser.add_argument("--seq-len", type=int, default=512, help="tokens of a sequence (default: 512)")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step (default: 8)")
    parser.add_argument("--gate-tokens", type=int, help="tokens of the float8 teacher's check (default: distill's)")
    parser.add_argument("--limit", type=float, help=f"adds {LIMITED!r} of this mean KL, which `distill quantize` finds")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time on each GPU, or on the CPU (default: 1)")
    parser.add_argument("--minutes", type=float, help="stops after this time (default: when all is done)")
    parser.add_argument("--table", action="store_true", help="prints what is there, and starts nothing")
    return parser.parse_args()


class Runs:
    """The runs, in the order of their seeds, so that what is there after a while compares all kinds."""

    def __init__(self, args):
        self.args = args
        self.lock = threading.Lock()
        self.kinds = dict(KINDS)
        if args.limit:
            self.kinds[LIMITED] = ["teacher.dtype=float8"]
        chosen = args.kinds.split(",") if args.kinds else list(self.kinds)
        for name in chosen:
            if name not in self.kinds:
                fail(f"--kinds: expected some of {', '.join(self.kinds)}, found {name!r}")
        self.kinds = {name: self.kinds[name] for name in chosen}
        self.left = [(kind, seed) for seed in args.seeds.split(",") for kind in self.kinds]
        self.working = set()
        self.over = False
        self.failed = []

    def name(self, kind, seed):
        return f"{kind.replace(' ', '-')}-{seed}"

    def result(self, kind, seed):
        return self.args.out / f"{self.name(kind, seed)}.json"

    def call(self, command, log, device):
        """Runs the program; (exit code, standard output). Its standard error is appended to `log`."""
        variables = os.environ | {"OMP_WAIT_POLICY": "passive"}
        if device is not None:
            variables["CUDA_VISIBLE_DEVICES"] = device
        with open(log, "a") as errors:
            with self.lock:
                if self.over:
                    return STOPPED, ""
                process = subprocess.Popen(
                    list(map(str, command)), stdout=subprocess.PIPE, stderr=errors, text=True, env=variables
                )
                self.working.add(process)
            output, _ = process.communicate()
        with self.lock:
            self.working.discard(process)
        stopped = self.over and process.returncode != 0  # or the signal came before the program could handle it
        return STOPPED if stopped else process.returncode, output

    def common(self):
        args = self.args
        return [
            *(f"{model}.path={args.work / model}" for model in ("student", "teacher")),
            *(f"data.{name}={args.work / 'data' / name}" for name in ("train", "eval")),
            f"data.seq_len={args.seq_len}",
            f"train.micro_batch_size={args.batch}",
            f"train.global_batch_size={args.batch}",
            f"train.steps={args.steps}",
            "eval.batches=0",
        ]

    def find_exceptions(self):
        """Completes the settings of the kind that --limit adds; the search's report is kept in --out."""
        report = self.args.out / "exceptions" / f"{self.args.limit:g}.json"
        if not report.exists():
            report.parent.mkdir(parents=True, exist_ok=True)
            command = [self.args.program, "quantize", "--config", "configs/quickstart.yaml", "--json"]
            command += ["--limit", self.args.limit, "--set", *self.common(), *self.gate_tokens()]
            log = report.with_suffix(".log")
            code, output = self.call(command, log, None)
            if code == STOPPED:
                return
            if code != 0:
                fail(f"quantize: exit code {code}\n{log.read_text()[-1500:]}{output[-500:]}")
            report.write_text(output[output.index("{") :])
        found = json.loads(report.read_text())
        exceptions = found["float8_exceptions"]
        back = sum(not product["float8"] for product in found["products"])
        print(
            f"mean KL {found['before']['mean_kl']:.4f}, {found['after']['mean_kl']:.4f} with {back} of "
            f"{len(found['products'])} products in the compute dtype: {', '.join(exceptions)}",
            flush=True,
        )
        self.kinds[LIMITED].append(f"teacher.float8_exceptions=[{', '.join(exceptions)}]")

    def gate_tokens(self):
        return [f"float8.gate_tokens={self.args.gate_tokens}"] if self.args.gate_tokens else []

    def train(self, kind, seed, folder, device):
        """The run's evaluations, the last of them after the last step; None where it was stopped."""
        args, log = self.args, folder.with_suffix(".log")
        began = time.monotonic()
        mode = "--resume" if any(folder.glob("checkpoints/step-*")) else "--overwrite"
        settings = [
            *self.common(),
            *self.kinds[kind],
            f"data.seed={seed}",
            f"train.seed={seed}",
            f"scheduler.warmup_steps={max(1, args.steps // 40)}",
            f"eval.every={max(1, args.steps // 8)}",
            "eval.at_start=false",
            f"run.dir={folder}",
            "run.progress=none",
        ]
        if kind != "bf16":  # the check is part of the result: it says how far this teacher is, and refuses nothing
            settings += ["float8.max_mean_kl=100", *self.gate_tokens()]
        command = [args.program, "--config", "configs/quickstart.yaml", mode, "--set", *settings]
        code, output = self.call(command, log, device)
        if code == STOPPED:
            return None
        if code != 0:
            raise RuntimeError(f"{self.name(kind, seed)}: exit code {code}\n{log.read_text()[-1500:]}{output[-500:]}")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        gate = GATE.search((folder / "log.txt").read_text())
        return {
            "gate": float(gate.group(1)) if gate else None,
            "evaluations": {line["step"]: line["eval"]["forward_kl"] for line in lines if "eval" in line},
            "seconds": time.monotonic() - began,
        }

    def evaluate(self, folder, device):
        """The trained student and the teacher, both without float8."""
        command = [self.args.program, "eval", "--config", "configs/quickstart.yaml", "--json", "--set", *self.common()]
        command += [f"student.path={folder / 'model'}", "student.dtype=auto", "teacher.dtype=auto"]
        log = folder.with_suffix(".log")
        code, output = self.call(command, log, device)
        if code not in (0, STOPPED):
            raise RuntimeError(f"{folder.name}: eval: exit code {code}\n{log.read_text()[-1500:]}")
        return json.loads(output[output.index("{") :]) if code == 0 else None

    def do(self, kind, seed, device):
        folder = self.args.out / "runs" / self.name(kind, seed)
        folder.parent.mkdir(parents=True, exist_ok=True)
        trained_path = folder.with_suffix(".trained.json")
        if not trained_path.exists():
            trained = self.train(kind, seed, folder, device)
            if trained is None:
                return
            trained_path.write_text(json.dumps(trained))
        measured = self.evaluate(folder, device)
        if measured is None:
            return
        result = {"kind": kind, "seed": seed, "steps": self.args.steps, "alike": measured}
        partial = self.result(kind, seed).with_suffix(".partial")
        partial.write_text(json.dumps(result | json.loads(trained_path.read_text()), indent=1) + "\n")
        os.replace(partial, self.result(kind, seed))
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        print(f"{folder.name}: KL {measured['forward_kl']:.4f} without float8", flush=True)

    def work(self, device):
        while True:
            with self.lock:
                left = [run for run in self.left if not self.result(*run).exists()]
                if self.over or not left:
                    return
                self.left.remove(left[0])
            try:
                self.do(*left[0], device)
            except (RuntimeError, OSError, ValueError, KeyError) as error:
                self.failed.append(str(error))

    def stop(self, *_):
        """Lets the runs that work save their state."""
        self.over = True
        for process in list(self.working):
            process.send_signal(signal.SIGTERM)

    def all(self):
        timer = threading.Timer((self.args.minutes or 0) * 60, self.stop)
        timer.daemon = True
        if self.args.minutes:
            timer.start()
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)
        if LIMITED in self.kinds:
            self.find_exceptions()
        places = [device for _ in range(self.args.jobs) for device in visible_gpus() or [None]]
        threads = [threading.Thread(target=self.work, args=(device,)) for device in places]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        timer.cancel()


def spread(values):
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4f}{deviation}"


def print_tables(runs):
    found = {}
    for kind, seed in ((kind, seed) for kind in runs.kinds for seed in runs.args.seeds.split(",")):
        if runs.result(kind, seed).exists():
            found[kind, seed] = json.loads(runs.result(kind, seed).read_text())
    if not found:
        print(f"{runs.args.out}: no run is finished yet")
        return
    last = {run: list(result["evaluations"].values())[-1] for run, result in found.items()}
    print("\nTrained students, all evaluated without float8 (mean and standard deviation of the seeds):\n")
    print("| trained with | seeds | " + " | ".join(METRICS) + " | KL minus bf16's, same seed | KL as it trained |")
    print("| --- |" + " ---: |" * (len(METRICS) + 3))
    for kind in runs.kinds:
        mine = {seed: result["alike"] for (name, seed), result in found.items() if name == kind}
        if not mine:
            continue
        cells = [spread([result[metric] for result in mine.values()]) for metric in METRICS.values()]
        pairs = [
            mine[seed]["forward_kl"] - found["bf16", seed]["alike"]["forward_kl"]
            for seed in mine
            if ("bf16", seed) in found
        ]
        cells += [spread(pairs) if pairs and kind != "bf16" else "", spread([last[kind, seed] for seed in mine])]
        print(f"| {kind} | {len(mine)} | " + " | ".join(cells) + " |")
    print(
        "\nKL of each seed:",
        {f"{kind} {seed}": round(r["alike"]["forward_kl"], 4) for (kind, seed), r in found.items()},
    )
    gates = sorted({result["gate"] for result in found.values() if result["gate"] is not None})
    print(f"mean KL that the teacher's check measured: {gates}")
    print("\nHeld-out KL as it trains, mean of the seeds:\n")
    steps = list(next(iter(found.values()))["evaluations"])
    print("| step | " + " | ".join(steps) + " |\n| --- |" + " ---: |" * len(steps))
    for kind in runs.kinds:
        mine = [result["evaluations"] for (name, _), result in found.items() if name == kind]
        if mine:
            print(f"| {kind} | " + " | ".join(f"{statistics.mean(each[s] for each in mine):.4f}" for s in steps) + " |")


def main():
    args = parse_arguments()
    runs = Runs(args)
    if not args.table:
        for path in (args.work / "student", args.work / "teacher", args.work / "data" / "train"):
            if not path.is_dir():
                fail(f"{path}: no such folder; scripts/quickstart.sh makes it")
        began = time.monotonic()
        runs.all()
        print(f"{time.monotonic() - began:.0f} s")
    for error in runs.failed:
        print(f"FAILED: {error}", file=sys.stderr)
    print_tables(runs)
    sys.exit(1 if runs.failed else 0)


if __name__ == "__main__":
    main()
