"""Runs the rows of the plan check on this machine's GPUs and writes what they measured."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from shared.gpus import visible_gpus

from .rows import GIB, MIX_PAIRS, POLICIES, Row, flat_rows

DOES_NOT_FIT = 4  # exit code of a run that the plan refuses
REPOSITORY = Path(__file__).resolve().parents[3]


class Machine:
    """Runs rows, several at the same time if they need fewer GPUs than there are."""

    def __init__(self, options):
        self.options = options
        self.out = Path(options.out)
        self.work = REPOSITORY / "work" / "check-plan"
        self.distill = os.environ.get("DISTILL", str(REPOSITORY / "build/release/apps/distill/distill"))
        self.visible = visible_gpus()
        self.gpus = options.gpus or len(self.visible)
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
        """Runs distill on `devices`, numbers of visible GPUs; returns its exit code, 124 after a timeout."""
        ids = ",".join(self.visible[int(device)] for device in devices.split(","))
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES=ids)
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
                os.killpg(process.pid, signal.SIGKILL)  # the launcher's ranks end with it
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
        """Calls each job with the ids of its `gpus` devices, as many jobs at a time as the GPUs allow."""
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
        """Writes the row's models, random tokens and configuration; returns the configuration's path."""
        folder = self.work / f"v{row.vocab}-s{row.seq_len}-{row.name}"
        shapes = [row.student] + ([row.teacher] if row.teacher != "none" else [])
        count = row.documents or max(4, row.gpus * row.batch * row.micro_batches * 2)
        subprocess.run(
            [
                sys.executable,
                str(REPOSITORY / "scripts/benches/bench_inputs.py"),
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
                *(["--varied"] if row.varied else []),
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
        """Asks the program for the row's plan for this machine; for seq_len 0 also for the longest length that fits."""
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
            if code == DOES_NOT_FIT and row.pair:
                self.say(f"| {name} | {' '.join(row.settings)} | does not fit |")
                return
            if code != 0:
                self.fail(name, log, code)
                return
            row.report = json.loads((folder / "report.json").read_text())
            self.record(row, time.monotonic() - began, log)
            shutil.rmtree(config.parent, ignore_errors=True)
        except Exception as error:  # the other rows still run
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
            if " the allocator: " in line
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
        reserved = b["peak"] + b["allocator_slack"]
        if abs(reserved - measured["reserved_peak"]) > GIB / 2:
            self.failed.append(f"{row.name} (reserved)")
        self.say(
            f"| {row.name} | {row.model_text()} | {row.gpus} | {row.vocab} | "
            f"{row.micro_batches} x {row.batch} x {row.seq_len} | "
            f"{' '.join([plan['activation'], *(s for s in row.settings if s[:17] != 'memory.activation')])} | "
            f"{b['peak'] / GIB:.2f} / {measured['peak'] / GIB:.2f} ({100 * row.report['peak_error']:+.2f} %) | "
            f"{reserved / GIB:.2f} / {measured['reserved_peak'] / GIB:.2f} | "
            f"{(b['communicators'] + b['context']) / GIB:.2f} / "
            + " ".join(f"{measured['outside_allocator'][name] / GIB:.2f}" for name in ("start", "joined", "end"))
            + " | "
            f"{plan['tokens_per_second']:.0f} / {measured['tokens_per_second']:.0f} "
            f"({100 * row.report['speed_error']:+.1f} %) | {seconds:.0f} s |"
        )

        if row.group.startswith("long"):
            parts = [f"{part} {plan['seconds'][part]:.2f} / {s:.2f}" for part, s in measured["phase_seconds"].items()]
            self.say(f"\n{row.name}: seconds of a step by part, predicted / measured: {', '.join(parts)}\n")

    def compare(self, chosen):
        """Compares the finished rows of a group with each other."""
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

        for pair in MIX_PAIRS:
            auto, *by_hand = [row for row in chosen if row.pair == pair and row.report] or [None]
            if by_hand and auto.setting("memory.activation") == "auto":
                best = max(by_hand, key=lambda row: speed[row.name])
                self.say(
                    f"\n{pair}: auto {speed[auto.name]:.0f} tok/s ({auto.report['plan']['activation']}), the best of "
                    f"{len(by_hand)} mixes by hand {speed[best.name]:.0f} ({' '.join(best.settings)}): "
                    f"{100 * speed[auto.name] / speed[best.name]:.1f} %"
                )

    def train(self, row, devices, arguments, limit_s=240):
        """Trains, and returns the step records; None if the run failed."""
        config = self.inputs(row)
        log = config.parent / "run.log"
        code = self.run(["--config", config, "--overwrite", *arguments], log, devices, limit_s)
        if code != 0:
            self.fail(row.name, log, code)
            return None
        lines = (config.parent / "run" / "metrics.jsonl").read_text().splitlines()
        return [step for step in map(json.loads, lines) if "loss" in step and "eval" not in step]

    def bits_jobs(self):
        """Threads that train small models under every policy, and a function that compares their losses.

        They have to be those of keep bit for bit, and in tiles those of keep in the same tiles, which may differ from
        keep's by rounding.
        """
        settings = {policy: [f"memory.activation={policy}"] for policy in POLICIES}
        settings["mix"] = ["memory.activation=recompute,offload,offload_input,keep"]
        settings["host"] = ["memory.optimizer=host"]
        settings["mix-host"] = [*settings["mix"], *settings["host"]]
        settings["attention"] = [*settings["recompute"], "memory.recompute=all_but_attention"]
        for name in ("keep", "recompute", "mix", "attention"):
            settings[f"tiles-{name}"] = [*settings[name], "memory.tile_tokens=512"]
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
                base = "tiles-keep" if name.startswith("tiles-") else "keep"
                expected = results[gpus, base]
                same = found is not None and found == expected
                text = f"equal to {base}" if same else "DIFFERENT"
                if name == "tiles-keep" and found and results[gpus, "keep"]:
                    whole = results[gpus, "keep"]
                    apart = max(abs(a - b) / abs(b) for f, w in zip(found, whole, strict=True) for a, b in zip(f, w))
                    same = same and apart < 1e-2
                    text = f"losses and gradient norms within {apart:.1e} of keep's"
                if not same:
                    self.failed.append(f"{gpus}g-bits-{name}")
                self.say(f"| {gpus}g-bits-{name} | {len(found or [])} steps: {text} |")
                if found and not same:
                    self.say(f"{name}: {found}\n{base}: {expected}", file="log.txt")

        every = ",".join(map(str, range(self.gpus)))
        jobs = [(run, 1, name, str(i % self.gpus)) for i, name in enumerate(settings)]
        if self.gpus > 1:
            jobs += [(run, self.gpus, name, every) for name in settings]
        return [threading.Thread(target=run, args=arguments) for run, *arguments in jobs], report

    def flat(self):
        for row, settled in flat_rows(self.gpus):
            devices = ",".join(map(str, range(row.gpus)))
            arguments = [part for setting in row.settings for part in ("--set", setting)]
            steps = self.train(row, devices, arguments, limit_s=600)
            if not steps:
                continue
            texts = []
            flat = True
            for name in ("peak_memory_bytes", "peak_reserved_bytes"):
                values = [step[name] for step in steps]
                texts.append(
                    f"{name} {values[1]} after 2 steps, {values[settled - 1]} after {settled}, {values[-1]} at the end"
                )
                # A longer document than all before it may move a peak by the bytes of a few tokens.
                flat = flat and values[-1] - values[settled - 1] <= (64 << 20 if row.varied else 0)
            if not flat:
                self.failed.append(row.name)
            speed = sorted(step["tokens_per_second"] for step in steps)[len(steps) // 2]
            self.say(
                f"| {row.name} | {len(steps)} steps, {'; '.join(texts)}: {'flat' if flat else 'GROWN'}; "
                f"{speed:.0f} tok/s |"
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
