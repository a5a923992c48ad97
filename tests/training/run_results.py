"""What two runs have in common: their steps without times, and the bytes of their files."""

from pathlib import Path

import tiny

TIMES = {"seconds", "phase_seconds", "tokens_per_second", "peak_memory_bytes", "peak_reserved_bytes", "time_ms"}
TIMES |= {"outside_allocator_bytes", "gathers", "gathered_bytes", "mfu_causal", "mfu_full"}


def timeless(records, without=()):
    return [{key: value for key, value in record.items() if key not in TIMES | set(without)} for record in records]


def steps_of(run):
    """What was computed in each step and evaluation, without times."""
    return [timeless(records, without=("teacher_read",)) for records in tiny.read_metrics(run)]


def losses_of(run):
    """[(step, loss, norm of the gradients)]"""
    return [(step["step"], step["loss"], step["grad_norm"]) for step in tiny.read_metrics(run)[0]]


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def weights_of(run):
    return files(run / "model")["model.safetensors"]


def state_files(run, step):
    """Every tensor of a checkpoint: parameters, moments, step counter, random generators."""
    return {path.name: path.read_bytes() for path in (run / "checkpoints" / f"step-{step}").glob("rank-*")}
