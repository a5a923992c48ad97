"""One run of distill: its configuration, the training, what is measured of the model, and the result as JSON."""

import shutil
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path

from shared.runs import RunFailed, call, evaluate, merged, read_metrics, settings, write_config

from .sources import KINDS

METRICS = ("hard", "teacher_ce", "forward_kl", "reverse_kl", "agreement", "accuracy", "valid_tokens")


def token_shards(folders, count):
    """The first token shards of the text that is trained on."""
    shards = sorted(folders.data("train").glob("*.dtok"))[:count]
    if len(shards) < count:
        raise RunFailed(f"{folders.data('train')}: expected {count} token shards, found {len(shards)}")
    return shards


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def on_policy_keys(row, shards):
    """Prompts are the beginnings of the documents that all rows train on; a server of transformers, which lives through
    all rounds, writes the completions."""
    scripts, port = Path(__file__).resolve().parents[2], free_port()
    server = f"{sys.executable} {scripts / 'serve_transformers.py'} --model {{model}} --port {port}"
    command = (
        f"{sys.executable} {scripts / 'rollout_http.py'} --url http://127.0.0.1:{port} --model {{model}} "
        "--version {version} --prompts {prompts} --output {output} --concurrency 256"
    )
    keys = {"onpolicy.prompts": [str(shard) for shard in shards], "onpolicy.server": server}
    return keys | {"onpolicy.command": command, **row.on_policy}


def configuration(study, folders, run, base=None):
    """The nested configuration of a run. `base`: the run whose model it begins with, in place of the student's."""
    row = study.rows[run.row]
    steps = study.steps(run.tokens)
    shards = token_shards(folders, study.shards)
    config = merged(
        study.config,
        settings(study, steps, folders.run(run.name))
        | {
            "student.path": str(folders.run(base.name) / "model" if base else folders.student(run.student)),
            "data.train": [str(shard) for shard in shards],
            "data.seed": run.seed + (1000 if base else 0),  # a second phase reads other text than the first
            "train.seed": run.seed,
            "optimizer.lr": run.lr,
            "checkpoint.at_end": run.measured,
        },
    )
    config = merged(config, row.set)
    if row.on_policy is not None:
        config = merged(config, {"onpolicy.seed": run.seed, **on_policy_keys(row, shards)})
        if config["onpolicy"].get("fraction", 1) == 1:
            del config["data"]["train"]
    if row.cache is not None:
        keys = {"teacher.source": "cache", "teacher.cache": str(folders.cache(row.name))}
        config = merged(config, keys | row.cache)
    elif row.teacher or run.purpose != "speed":  # without one a run's own evaluations would not know the KL to it
        config = merged(config, {"teacher.path": str(folders.teacher)})
    if run.purpose != "speed":
        every = max(1, steps // study.evaluations)
        keys = {"data.eval": [str(folders.data("validation"))], "eval.every": every, "eval.batches": study.eval_batches}
        config = merged(config, keys)
    return config


def capture(program, study, folders, row, device, threads):
    """Captures the teacher's predictions for the training text, for rows that read them from a folder."""
    shards = sorted(folders.data("train").glob("*.dtok"))[: study.shards]
    some = next(iter(study.students))
    config = merged(
        study.config,
        settings(study, 1, folders.run(f"capture-{row.name}"))
        | {
            "student.path": str(folders.student(some)),
            "teacher.path": str(folders.teacher),
            "teacher.cache": str(folders.cache(row.name)),
            "data.train": [str(shard) for shard in shards],
            "data.eval": [str(folders.data("validation"))],
            **row.cache,
        },
    )
    began = time.monotonic()
    path = write_config(folders.run(f"capture-{row.name}"), config)
    call([program, "capture", "--config", path], device, threads)
    size = sum(file.stat().st_size for file in folders.cache(row.name).rglob("*") if file.is_file())
    return {"row": row.name, "seconds": time.monotonic() - began, "bytes": size}


def short(number):
    """Six significant digits, which is more than any spread here leaves."""
    return float(f"{number:.6g}") if isinstance(number, float) else number


def curve(study, row, evaluations):
    """[{tokens, ce, kl}] of the evaluations on the validation text; kl where the run knows it."""
    points = []
    for line in evaluations:
        values = line["eval"]
        point = {"tokens": line["step"] * study.step_tokens, "ce": short(values["hard"])}
        if row.knows_kl:
            point["kl"] = short(values["forward_kl"])
        points.append(point)
    return points


def speed(study, steps):
    """Tokens a second: the median over the steps after the first few."""
    seconds = sorted(step["seconds"] for step in steps[min(8, len(steps) // 2) :])
    return study.step_tokens / seconds[len(seconds) // 2]


def measures(values):
    """What a result keeps of an evaluation."""
    return {metric: short(values[metric]) for metric in METRICS}


def train(program, study, folders, run, device, threads, base=None):
    """Runs one training and returns its result; its model, if one was written, is in the run folder."""
    folder = folders.run(run.name)
    path = write_config(folder, configuration(study, folders, run, base))
    began = time.monotonic()
    call([program, "--config", path, "--overwrite"], device, threads)
    seconds = time.monotonic() - began
    steps, evaluations = read_metrics(folder)
    return {
        **asdict(run),
        "profile": study.profile_name,
        "steps": len(steps),
        "last_loss": short(steps[-1]["loss"]),
        "tokens_per_second": short(speed(study, steps)),
        "process_seconds": short(seconds),
        "validation": curve(study, study.rows[run.row], evaluations),
    }


def tests(program, study, folders, model, device, threads):
    """{kind of text: metrics} of a model folder on held-out text, against the teacher."""
    found, keys, where = {}, [f"eval.batches={study.eval_batches}"], {"device": device, "threads": threads}
    for kind in KINDS:
        data = folders.data(f"test-{kind}")
        found[kind] = measures(evaluate(program, study, model, data, folders.teacher, keys, **where))
    return found


def forget(folders, name):
    """Removes a run folder, except the small files that a report is drawn from."""
    folder = folders.run(name)
    for name in ("checkpoints", "model", "onpolicy"):
        shutil.rmtree(folder / name, ignore_errors=True)
