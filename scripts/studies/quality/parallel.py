"""Tasks of a small study, several at a time on one device; each result is a JSON file, and is not made again."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shared.command_line import fail

from . import training
from .folders import Folders
from .schedule import visible_devices
from .study import TABLE, Study


def add_arguments(parser):
    parser.add_argument("--profile", default="gpu", help="of study.yaml (default: gpu)")
    parser.add_argument("--study", type=Path, default=TABLE, help="another study.yaml")
    parser.add_argument("--program", default="build/release/apps/distill/distill", help="the distill program")
    parser.add_argument("--work", type=Path, default=Path("work/quality"), help="folder of the inputs")
    parser.add_argument("--scratch", type=Path, help="for run folders (default: in --work)")
    parser.add_argument("--results", type=Path, required=True, help="folder for one JSON file of each task")
    parser.add_argument("--jobs", type=int, default=1, help="tasks at a time")
    parser.add_argument("--threads", type=int, default=1, help="processor threads of a task")


class Runner:
    """The programs of a study's tasks, on the first visible device."""

    def __init__(self, args):
        try:
            self.study = Study(args.profile, table=args.study)
        except (ValueError, OSError) as error:
            fail(error)
        self.folders = Folders(args.work, args.scratch or args.work, args.results)
        self.program, self.jobs, self.threads = args.program, args.jobs, args.threads
        self.device = visible_devices(self.study, 1)[0]

    def config(self, name, steps, keys):
        """The nested configuration of a run: the study's, with these keys merged over it."""
        study = self.study
        own = {
            "data.seq_len": study.seq_len,
            "train.steps": steps,
            "train.micro_batch_size": study.batch,
            "train.global_batch_size": study.batch,
            "train.device": study.device,
            "train.dtype": study.dtype,
            "scheduler.warmup_steps": max(1, steps // 20),
            "run.dir": str(self.folders.run(name)),
            "run.progress": "none",
        }
        return training.merged(study.config, own | keys)

    def train(self, name, config, keep=False):
        """Trains and returns the number of steps and seconds. `keep`: leaves the model in the run folder."""
        folder, began = self.folders.run(name), time.monotonic()
        path = training.write_config(folder, config)
        training.call([self.program, "--config", path, "--overwrite"], self.device, self.threads)
        steps, evaluations = training.read_metrics(folder)
        result = {"steps": len(steps), "seconds": training.short(time.monotonic() - began)}
        result["evaluations"] = [
            {"step": line["step"], **{key: training.short(line["eval"][key]) for key in training.METRICS}}
            for line in evaluations
        ]
        if not keep:
            training.forget(self.folders, name)
        return result

    def evaluate(self, student, teacher, data):
        """The metrics of a model folder on token shards, against a teacher's folder."""
        study = self.study
        arguments = ["--student", student, "--teacher", teacher, "--data", data, "--json"]
        sets = [f"data.seq_len={study.seq_len}", f"train.micro_batch_size={study.batch}"]
        sets += [f"train.device={study.device}", f"train.dtype={study.dtype}", "loss.divergence=forward_kl"]
        sets += [f"eval.batches={study.eval_batches}"]
        output = training.call([self.program, "eval", *arguments, "--set", *sets], self.device, self.threads)
        values = json.loads(output[output.index("{") :])
        return {metric: training.short(values[metric]) for metric in training.METRICS}

    def do(self, tasks):
        """Does {name: work}, where `work()` returns what the result's file has. Ends the script where one fails."""
        missing = {name: work for name, work in tasks.items() if not self.folders.result(name).exists()}
        with ThreadPoolExecutor(max(1, self.jobs)) as pool:
            futures = {name: pool.submit(self._one, name, work) for name, work in missing.items()}
        failed = [f"{name}: {future.exception()}" for name, future in futures.items() if future.exception()]
        if failed:
            fail("\n".join(failed))

    def _one(self, name, work):
        began = time.monotonic()
        result = work()
        self.folders.results.mkdir(parents=True, exist_ok=True)
        path = self.folders.result(name)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(result) + "\n")
        partial.rename(path)
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
