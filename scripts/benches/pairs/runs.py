"""Runs the trainer and the peer on one pair of shapes, and reads what they measured."""

import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
from pathlib import Path

from .table import GIB

REPOSITORY = Path(__file__).resolve().parents[3]
BATCH = 2  # sequences of each GPU, as in bench_trainer.sh
DOES_NOT_FIT = 4  # exit code of a run that the plan refuses
# The peer keeps activations, and where that does not fit it computes them again.
PEER_FORMS = (("without checkpointing", ("--no-checkpointing",)), ("with checkpointing", ()))
ON_CPU = ("--device=cpu", "--dtype=float32", "--head=plain", "--no-compile")


class Runs:
    """The commands for a pair under the options of bench_pairs.py, and their results.

    `options`: out, gpus (values of CUDA_VISIBLE_DEVICES; empty on a CPU), device, steps, peer_steps, sequence, vocab
    (None: the family's), limit (seconds of one run).
    """

    def __init__(self, options):
        self.options = options
        self.python = os.environ.get("PYTHON", sys.executable)

    def ranks(self, pair):
        return 1 if self.options.device == "cpu" else pair.gpus

    def trainer_command(self, pair):
        """The command of the trainer as a reader would type it."""
        ranks = self.ranks(pair)
        settings = [f"train.global_batch_size={BATCH * ranks}"]
        settings += [f"parallel.processes={ranks}"] if ranks > 1 else []
        settings += ["train.device=cpu"] if self.options.device == "cpu" else pair.settings
        script = "scripts/benches/bench_trainer.sh"
        return [script, pair.student, pair.teacher, str(self.options.steps), "--set", *settings]

    def peer_command(self, pair, form):
        ranks = self.ranks(pair)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        sizes = [f"--sequence={self.options.sequence}", f"--batch={BATCH}", f"--steps={self.options.peer_steps}"]
        sizes += [f"--vocab={self.options.vocab}"] if self.options.vocab else []
        more = ON_CPU if self.options.device == "cpu" else pair.peer_options
        models = [f"--student={pair.student}", f"--teacher={pair.teacher}"]
        return [self.python, *torchrun, "scripts/benches/bench_trainer_peer.py", *models, *sizes, *more, *form]

    def environment(self, pair):
        """The variables that bench_trainer.sh reads, and the GPUs of the pair."""
        found = {"SEQ_LEN": str(self.options.sequence), "PYTHON": self.python}
        if self.options.vocab:
            found["VOCAB"] = str(self.options.vocab)
        if self.options.gpus:
            found["CUDA_VISIBLE_DEVICES"] = ",".join(self.options.gpus[: pair.gpus])
        return found

    def dry_lines(self, pair):
        """The commands of a pair, ready for a shell."""
        variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in self.environment(pair).items())
        yield f"{variables} {shlex.join(self.trainer_command(pair))}"
        for _, form in PEER_FORMS:
            yield f"{variables} {shlex.join(self.peer_command(pair, form))}"

    def run(self, command, pair, log):
        """Runs a command from the repository's root; returns its exit code, 124 after the limit.

        The command is in a session of its own, and ends with this function.
        """
        environment = {**os.environ, **self.environment(pair)}
        with open(log, "w") as stream:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                return process.wait(timeout=self.options.limit)
            except subprocess.TimeoutExpired:
                return 124
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # the ranks end with it
                    process.wait()

    def trainer(self, pair):
        """What the trainer measured: speed, the plan's figures and memory; or the reason why not."""
        folder = self.options.out / f"{pair.name}-run"
        log = self.options.out / f"{pair.name}-trainer.log"
        code = self.run([*self.trainer_command(pair), f"run.dir={folder.resolve()}"], pair, log)
        if code == DOES_NOT_FIT:
            return {"failed": "does not fit"}
        if code != 0:
            return {"failed": failure(code, log)}
        return trainer_figures(folder, self.ranks(pair))

    def peer(self, pair):
        """What the peer measured in the first of its forms that fits; or the last form's reason why not."""
        found = {}
        for name, form in PEER_FORMS:
            out = self.options.out / f"{pair.name}-peer.json"
            log = self.options.out / f"{pair.name}-peer-{name.split()[0]}.log"
            out.unlink(missing_ok=True)
            code = self.run([*self.peer_command(pair, form), f"--json={out.resolve()}"], pair, log)
            if code == 0 and out.exists():
                report = json.loads(out.read_text())
                return report["summary"] | {"form": name, "versions": report["versions"]}
            memory = "out of memory" in log.read_text(errors="replace").lower()
            found = {"failed": "does not fit" if memory else failure(code, log)}
            if not memory:
                break
        return found

    def measure(self, pair, peer=True):
        """The row of a pair for table.line_of."""
        found = {
            "pair": pair.name,
            "models": pair.models,
            "gpus": self.ranks(pair),
            "command": shlex.join(self.trainer_command(pair)),
            "ours": None,
            "peer": None,
        }
        if self.options.gpus and len(self.options.gpus) < pair.gpus:
            return found | {"ours": {"failed": f"needs {pair.gpus} GPUs, found {len(self.options.gpus)}"}}
        found["ours"] = self.trainer(pair)
        if peer:
            found["peer"] = self.peer(pair)
        return found


def failure(code, log):
    """One short line about a command that failed."""
    if code == 124:
        return "not done within the limit"
    lines = [line.strip() for line in Path(log).read_text(errors="replace").splitlines() if line.strip()]
    return f"exit code {code}: {lines[-1][:120] if lines else 'no output'}".replace("|", "/")


def trainer_figures(folder, ranks):
    """Speed and memory of the last half of a run's steps, and what its plan expected."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    steps = [line for line in lines if "tokens_per_second" in line and "eval" not in line]
    last = steps[len(steps) // 2 :]
    start = json.loads((folder / "sessions.jsonl").read_text().splitlines()[0])
    plan = start["plan"]
    return {
        "tokens_per_second_per_gpu": statistics.median(step["tokens_per_second"] for step in last) / ranks,
        "measured_gib": max(step["peak_memory_bytes"] for step in last) / GIB,
        "planned_gib": plan["bytes"]["peak"] / GIB,
        "planned_tokens_per_second_per_gpu": plan["tokens_per_second"] / ranks,
        "activation": plan["activation"],
        "host_gib": sum(plan["bytes"][key] for key in ("host_activations", "host_optimizer")) / GIB,
    }
