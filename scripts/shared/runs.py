"""The runs of a study: programs and their output, configurations, results, and several runs at a time on one device."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from shared.command_line import at_least, fail
from shared.gpus import visible_gpus

PROGRAM = "build/release/apps/distill/distill"


class RunFailed(Exception):
    """A program that a run needs ended with an error; the message has the end of its output."""


class Stopped(Exception):
    """The time is over."""


started = set()  # the programs that are running


def environment(device, threads):
    """Of a child process. `device`: its GPU, as shared.gpus names it (None: none is chosen)."""
    variables = os.environ | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    return variables if device is None else variables | {"CUDA_VISIBLE_DEVICES": device}


def call(command, device=None, threads=1, deadline=float("inf")):
    """Standard output of a program; RunFailed if it fails.

    When time.monotonic() reaches `deadline`, the program is asked to end, before which a training saves (Stopped).
    """
    command = [str(part) for part in command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, env=environment(device, threads), start_new_session=True)
    started.add(process)
    try:
        left = deadline - time.monotonic()
        output, errors = process.communicate(timeout=None if left > 1e6 else max(0.0, left))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()
        raise Stopped from None
    except BaseException:  # Ctrl-C, say, which reaches this process alone
        os.killpg(process.pid, signal.SIGTERM)
        raise
    finally:
        started.discard(process)
    if process.returncode != 0:
        end = "\n".join((output + errors).strip().splitlines()[-12:])
        raise RunFailed(f"{' '.join(command)}: exit code {process.returncode}\n{end}")
    return output


def end_children(how=signal.SIGKILL):
    """Sends a signal to the programs that this process has started, and to all that they started."""
    for process in list(started):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)


def visible_devices(device, number):
    """The first GPUs that are visible, all of them for 0; [None] where train.device, `device`, is not cuda."""
    if device != "cuda":
        return [None]
    gpus = visible_gpus()
    if len(gpus) < max(1, number):
        fail(f"expected {max(1, number)} visible GPUs for a profile with device: cuda, found {len(gpus)}")
    return gpus[:number] if number else gpus


def merged(config, keys):
    """A copy of the nested `config` with {"section.key": value} merged over it."""
    result = {section: dict(values) for section, values in config.items()}
    for key, value in keys.items():
        section, _, name = key.partition(".")
        result.setdefault(section, {})[name] = value
    return result


def settings(profile, steps, folder):
    """{"section.key": value} that every training of a study has. `profile`: seq_len, batch, device and dtype."""
    return {
        "data.seq_len": profile.seq_len,
        "train.steps": steps,
        "train.micro_batch_size": profile.batch,
        "train.global_batch_size": profile.batch,
        "train.device": profile.device,
        "train.dtype": profile.dtype,
        "scheduler.warmup_steps": min(max(1, steps // 20), steps - 1),
        "run.dir": str(folder),
        "run.progress": "none",
    }


def write_config(folder, config):
    """Writes the configuration of the run with this folder, beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f"{folder.name}.yaml"
    path.write_text(json.dumps(config, indent=1))  # JSON is YAML
    return path


def write_json(path, value):
    """Writes a file that is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(partial, path)


def read_metrics(folder):
    """(step records, evaluation records) of a run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line], [line for line in lines if "eval" in line]


def interrupted(folder):
    """Whether a run has left a checkpoint that it can continue from."""
    return any(folder.glob("checkpoints/step-*/COMPLETE"))


def evaluate(program, profile, student, data, teacher=None, keys=(), batch=None, **call_arguments):
    """What `distill eval` says of a model folder on token shards, and of its KL to a teacher's folder if there is one.

    `keys`: further ones, as section.key=value. `batch`: sequences at a time (default: profile.batch).
    """
    arguments = ["--student", student, "--data", data, "--json"]
    sets = [f"data.seq_len={profile.seq_len}", f"train.micro_batch_size={batch or profile.batch}", *keys]
    sets += [f"train.device={profile.device}", f"train.dtype={profile.dtype}"]
    if teacher is not None:
        arguments += ["--teacher", teacher]
        sets.append("loss.divergence=forward_kl")
    output = call([program, "eval", *arguments, "--set", *sets], **call_arguments)
    return json.loads(output[output.index("{") :])


def add_arguments(parser):
    parser.add_argument("--program", default=PROGRAM, help=f"the distill program (default: {PROGRAM})")
    parser.add_argument("--jobs", type=at_least(1), default=1, help="runs at a time, on one device")
    parser.add_argument("--threads", type=at_least(1), default=1, help="processor threads of a run")


class Runner:
    """Does tasks, several at a time, on the first visible device.

    The result of the task NAME is the file NAME.json in `results`, which is not made again; its training has the folder
    NAME in `runs`. `profile`: seq_len, batch, device and dtype.
    """

    def __init__(self, args, profile, runs, results):
        """`args`: of add_arguments."""
        self.program, self.jobs, self.threads = args.program, args.jobs, args.threads
        self.profile, self.runs, self.results = profile, runs, results
        self.device = visible_devices(profile.device, 1)[0]

    def call(self, *command):
        return call(command, self.device, self.threads)

    def model(self, name):
        """The folder of the model that a training has written."""
        return self.runs / name / "model"

    def train(self, name, config):
        """Trains, from the last checkpoint where it was interrupted: (step records, evaluation records, seconds)."""
        folder, began = self.runs / name, time.monotonic()
        path = write_config(folder, config)
        self.call(self.program, "--config", path, "--resume" if interrupted(folder) else "--overwrite")
        return *read_metrics(folder), time.monotonic() - began

    def evaluate(self, student, data, teacher=None, keys=()):
        where = {"device": self.device, "threads": self.threads}
        return evaluate(self.program, self.profile, student, data, teacher, keys, **where)

    def do(self, tasks, describe=lambda result: ""):
        """{name: result} of {name: work}, where `work()` makes the result and `describe(result)` a line about it.

        Where one fails, what has not begun is left out, and the script ends once the others are done.
        """
        left = {name: work for name, work in tasks.items() if not self._result(name).exists()}
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = {name: pool.submit(self._one, name, work, describe) for name, work in left.items()}
            try:
                wait(futures.values(), return_when=FIRST_EXCEPTION)
            except BaseException:  # Ctrl-C, say
                end_children(signal.SIGTERM)  # a training saves a checkpoint and fails
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        ended = {name: one for name, one in futures.items() if not one.cancelled()}
        failed = [f"{name}: {one.exception()}" for name, one in ended.items() if one.exception()]
        if failed:
            fail("\n".join(failed))
        return {name: json.loads(self._result(name).read_text()) for name in tasks}

    def _result(self, name):
        return self.results / f"{name}.json"

    def _one(self, name, work, describe):
        began = time.monotonic()
        result = work()
        write_json(self._result(name), result)
        shutil.rmtree(self.runs / name / "checkpoints", ignore_errors=True)
        print(f"{name}: {describe(result)}{time.monotonic() - began:.1f} s", flush=True)
