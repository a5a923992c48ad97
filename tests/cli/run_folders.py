"""Run folders as a run leaves them, without a run: for the tests of what reads them."""

import json
import math
from pathlib import Path

PHASES = ("teacher", "forward", "head", "backward", "optimizer", "communication", "data")
TIME_MS = 1_767_323_045_000  # 2026-01-02 03:04:05 UTC
CONFIG = """\
# The whole configuration of a distill run, defaults included.
student:
  path: "models/student"
data:
  train: [{path: "data/train", weight: 1}]
train:
  steps: %d
optimizer:
  lr: %s
run:
  dir: "runs/x"
"""
PLAN = {
    "activation": "keep",
    "head": {"chunk_size": 64, "gradient_rows": 64, "bytes": 4096},
    "bytes": {
        "peak": 3 << 20, "allocator_slack": 1 << 20, "device": 5 << 20, "device_available": 1 << 30,
        "host_activations": 0, "host_optimizer": 0, "host_checkpoint": 0,
    },
    "phases": {"head": {"peak": 3 << 20, "at_peak": {"student": 1 << 20, "head": 2 << 20}}},
    "peak_phase": "head",
    "seconds": {**dict.fromkeys(PHASES, 0.1), "step": 0.7},
    "tokens_per_second": 500.0,
    "machine": "a machine",
}  # fmt: skip


def losses(step):
    """The token metrics of a step, with the wiggle that real ones have."""
    fall = math.exp(-step / 400)
    wiggle = 0.3 * math.sin(step * 12.9898) * math.sin(step * 78.233)
    return {
        "loss": 2 + 3 * fall + wiggle,
        "hard": 3 + 3 * fall + wiggle,
        "soft": 1 + 2 * fall + wiggle,
        "z_loss": 100 + wiggle,
        "forward_kl": 1 + 2 * fall + wiggle,
        "reverse_kl": 1.5 + 2 * fall + wiggle,
        "student_entropy": 3.0,
        "teacher_entropy": 2.5,
        "agreement": 0.6 - 0.5 * fall,
        "accuracy": 0.5 - 0.4 * fall,
        "student_lse": 11.0,
        "teacher_lse": 27.0,
        "valid_tokens": 512,
    }


def step_metrics(step, **changes):
    seconds = {name: 0.01 * (i + 1) * (1 + 0.2 * math.sin(step)) for i, name in enumerate(PHASES)}
    record = {
        "step": step,
        "time_ms": TIME_MS + 1000 * step,
        **losses(step),
        "grad_norm": 2 + math.sin(step),
        "skipped": False,
        "skipped_total": 0,
        "empty_steps": 0,
        "lr": 1e-3 * math.cos(step / 10000) ** 2,
        "tokens": 512 * step,
        "seconds": sum(seconds.values()),
        "phase_seconds": seconds,
        "tokens_per_second": 512 / sum(seconds.values()),
        "peak_memory_bytes": (3 << 20) - 1000 + step % 7,
        "peak_reserved_bytes": 4 << 20,
    }
    return {**record, **changes}


def eval_record(step, **changes):
    return {"step": step, "time_ms": TIME_MS + 1000 * step, "eval": {**losses(step), "teacher_ce": 2.25, **changes}}


def write_lines(path, records):
    Path(path).write_text("".join(json.dumps(record) + "\n" for record in records))


def session(first_step=0, total_steps=50, resumed_from=None):
    return {
        "start": "2026-01-02T03:04:05Z", "program": "distill 9.8.7", "host": "node-1", "device": "cuda:0 (a GPU)",
        "ranks": 2, "first_step": first_step, "total_steps": total_steps, "resumed_from": resumed_from, "plan": PLAN,
    }  # fmt: skip


def end(step, state="finished"):
    return {"end": "2026-01-02T05:06:07Z", "step": step, "state": state, "outcome": f"{state} after step {step}"}


def write_run(folder, steps=50, lr="0.001", changes=None, ended=True):
    """A run with an evaluation before, in the middle and after; `changes`: {step: changed members of its record}."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    changes = changes or {}
    records = [eval_record(0)]
    for step in range(1, steps + 1):
        records.append(step_metrics(step, **changes.get(step, {})))
        if step in (steps // 2, steps):
            records.append(eval_record(step))
    write_lines(folder / "metrics.jsonl", records)
    (folder / "config.yaml").write_text(CONFIG % (steps, lr))
    write_lines(folder / "events.jsonl", [])
    write_lines(folder / "sessions.jsonl", [session(total_steps=steps)] + ([end(steps)] if ended else []))
    lines = [f"2026-01-02 03:04:{step % 60:02} I step {step}/{steps}  loss 1" for step in range(1, min(steps, 100) + 1)]
    (folder / "log.txt").write_text("\n".join(["2026-01-02 03:04:05 I device: cuda:0 (a GPU), 80 GiB", *lines]) + "\n")
    return folder


def add_events(folder):
    """A spike at step 20, a skipped step 30, a resumption after 25, a warning at 10."""
    write_lines(
        folder / "events.jsonl",
        [
            {"step": 20, "event": "loss_spike", "loss": 9.0, "grad_norm": 50.0, "median_before": 2.0,
             "deviation_before": 0.1, "samples": [40, 42]},
            {"step": 30, "event": "non_finite_step", "loss": None, "grad_norm": None, "samples": [60, 62]},
            {"step": 40, "event": "teacher_worse_than_student", "eval": {"teacher_ce": 5.0, "hard": 4.0}},
        ],
    )  # fmt: skip
    sessions = [session(), end(25, "stopped"), session(25, resumed_from="checkpoints/step-25"), end(50)]
    write_lines(folder / "sessions.jsonl", sessions)
    log = (folder / "log.txt").read_text().splitlines()
    at = next(i for i, line in enumerate(log) if "step 10/" in line)
    log.insert(at + 1, "2026-01-02 03:04:10 W a warning that nobody expected")
    (folder / "log.txt").write_text("\n".join(log) + "\n")


def add_samples(folder, text="def f(x):"):
    write_lines(
        folder / "samples.jsonl",
        [
            {"step": step, "index": index, "prompt": f"{text} {index}", "target": "  return x",
             "student": f"  return y{step}", "teacher": "  return x" if index else None}
            for step in (25, 50)
            for index in range(2)
        ],
    )  # fmt: skip


def judged_completion(document, tokens, texts=True):
    """A completion whose tokens the teacher likes less and less."""
    return {
        "document": document, "prompt_tokens": 3, "completion_tokens": tokens, "prompt_ids": [7, 8, 9],
        "ids": list(range(100, 100 + tokens)), "prompt": "def f(" if texts else None,
        "texts": [f" <w{i}>" if i != 1 else "" for i in range(tokens)] if texts else None,
        "loss": [0.1 * i for i in range(tokens)], "logprob": [-0.5] * tokens, "forward_kl": [0.2] * tokens,
        "reverse_kl": [0.1 * i for i in range(tokens)], "entropy": [1.5] * tokens,
        "agrees": [float(i < tokens // 2) for i in range(tokens)],
    }  # fmt: skip


def round_record(number, step, steps, late_kl=2.0):
    return {
        "number": number, "steps": steps, "completions": 8, "completion_tokens": 300, "truncated": 0.25,
        "lengths": {"min": 2, "median": 40, "p90": 60, "max": 64}, "repeated_4grams": 0.05, "distinct_1grams": 0.5,
        "distinct_4grams": 0.9, "entropy": 1.25, "left_out": 0,
        "seconds": {"weights": 1.0, "engine": 4.0, "shard": 0.5, "check": 0.5},
        "held_out": {"completions": 4, "tokens": 20, "reverse_kl": 0.625 + number},
        "judged": {"tokens": 32, "logprob": -1.5, "engine_logprob": -1.51, "logprob_gap": 0.01, "loss": 0.9,
                   "forward_kl": 0.8, "reverse_kl": 0.9 - 0.1 * number, "student_entropy": 1.2, "agreement": 0.5,
                   "reverse_kl_late": late_kl},
    }  # fmt: skip


def add_rounds(folder, steps=20, count=3, texts=True):
    """Rounds of `steps` steps: their lines in metrics.jsonl and their folders."""
    import xxhash

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for number in range(count):
        first = number * steps
        own = round_record(number, first, steps)
        place = next((i for i, line in enumerate(lines) if line["step"] > first), len(lines))
        lines.insert(place, {"step": first, "time_ms": TIME_MS + 1000 * first, "round": own})
        round_folder = folder / "onpolicy" / f"round-{number:05d}"
        round_folder.mkdir(parents=True)
        judged = {
            "format": "distill-judged", "version": 1, "tokens": 32,
            "positions": [{"begin": 4 * i, "end": 4 * i + 4, "tokens": 8, "loss": 0.5, "forward_kl": 0.5,
                           "reverse_kl": 0.25 * (i + 1), "entropy": 1.0, "agreement": 0.8 - 0.1 * i} for i in range(4)],
            "completions": [judged_completion(i, 8 + i, texts) for i in range(2)],
        }  # fmt: skip
        text = json.dumps(judged)
        (round_folder / "judged.json").write_text(text)
        result = {**own, "judged": {**own["judged"], "xxh3": xxhash.xxh3_64_hexdigest(text.encode())}}
        description = {"format": "distill-round", "version": 1, "request": {"steps": steps}, "result": result}
        (round_folder / "round.json").write_text(json.dumps(description))
    write_lines(folder / "metrics.jsonl", lines)
