"""The pairs of models that people distil, and the table of what was measured of them."""

from dataclasses import dataclass

GIB = 2**30
AUTO = ("memory.activation=auto", "memory.optimizer=auto")
FLOAT8_TEACHER = ("teacher.dtype=float8", "float8.gate=false")


@dataclass(frozen=True)
class Pair:
    name: str
    models: str  # for the table
    gpus: int
    student: str  # of bench_inputs.SHAPES
    teacher: str
    settings: tuple = AUTO  # KEY=VALUE of the trainer
    peer_options: tuple = ()


def float8(name, models, gpus, student, teacher, *peer_options):
    """A pair whose teacher's blocks are in float8, here and in the peer, where it is whole on each GPU by default."""
    peer_options = ("--teacher-float8=rowwise", *peer_options)
    return Pair(name, f"{models}, float8 teacher", gpus, student, teacher, AUTO + FLOAT8_TEACHER, peer_options)


PAIRS = [
    Pair("llama-1b-8b", "Llama 1B <- 8B", 1, "1b", "8b"),
    Pair("qwen3-0.6b-4b", "Qwen3 0.6B <- 4B", 1, "qwen3-0.6b", "qwen3-4b"),
    Pair("qwen3-1.7b-8b", "Qwen3 1.7B <- 8B", 1, "qwen3-1.7b", "qwen3-8b"),
    float8("qwen3-4b-32b-1gpu", "Qwen3 4B <- 32B", 1, "qwen3-4b", "qwen3-32b"),
    float8("qwen3-4b-32b", "Qwen3 4B <- 32B", 2, "qwen3-4b", "qwen3-32b"),
    Pair("llama-8b-8b", "Llama 8B <- 8B", 2, "8b", "8b"),
    Pair("qwen3-4b-30b-a3b", "Qwen3 4B <- 30B-A3B", 2, "qwen3-4b", "qwen3-30b-a3b"),
    Pair("gemma3-4b-12b", "Gemma 3 4B <- 12B", 2, "gemma3-4b", "gemma3-12b"),
    Pair("qwen3.5-2b-9b", "Qwen3.5 2B <- 9B", 1, "qwen3.5-2b", "qwen3.5-9b"),
    float8("qwen3.5-4b-27b-1gpu", "Qwen3.5 4B <- 27B", 1, "qwen3.5-4b", "qwen3.5-27b"),
    # The peer keeps the weights of float8 products in bf16: whole, they and the student are too much for 80 GiB.
    float8("qwen3.5-4b-27b", "Qwen3.5 4B <- 27B", 2, "qwen3.5-4b", "qwen3.5-27b", "--shard-teacher"),
]
HEADER = [
    "student <- teacher",
    "GPUs",
    "tok/s per GPU",
    "the peer",
    "ratio",
    "GiB: planned / measured",
    "the peer's GiB: tensors / reserved",
    "GPU hours for 10^9 tokens",
    "command",
]


def gpu_hours(tokens_per_second_per_gpu, tokens=1e9):
    """The hours of one GPU for so many tokens."""
    return tokens / tokens_per_second_per_gpu / 3600


def line_of(row):
    """A line of the table. A row is {pair, gpus, command, ours, peer}, as Runs.measure returns it.

    `ours` and `peer` are None where they were not run, have a "failed" with the reason where they did not end well, and
    otherwise their figures.
    """
    ours, peer = row["ours"] or {}, row["peer"] or {}
    ours_done, peer_done = (bool(side) and "failed" not in side for side in (ours, peer))
    speed = f"{ours['tokens_per_second_per_gpu']:.0f}" if ours_done else ours.get("failed", "")
    theirs, peer_gib = peer.get("failed", ""), ""
    if peer_done:
        theirs = f"{peer['tokens_per_second_per_gpu']:.0f} {peer['form']}"
        if "allocated_gib" in peer:
            peer_gib = f"{peer['allocated_gib']:.1f} / {peer['reserved_gib']:.1f}"
    ratio = hours = memory = ""
    if ours_done:
        hours = f"{gpu_hours(ours['tokens_per_second_per_gpu']):.1f}"
        memory = f"{ours['planned_gib']:.1f} / {ours['measured_gib']:.1f}"
        if peer_done:
            ratio = f"{ours['tokens_per_second_per_gpu'] / peer['tokens_per_second_per_gpu']:.2f}"
    cells = [row["models"], str(row["gpus"]), speed, theirs, ratio, memory, peer_gib, hours, f"`{row['command']}`"]
    return f"| {' | '.join(cells)} |"


def table(report):
    """The Markdown page of a report: what ran where, and a line for each pair."""
    versions = ", ".join(f"{name} {version}" for name, version in report.get("versions", {}).items())
    lines = [
        f"{report['device']}, sequence {report['sequence']}, {report['batch']} sequences on each GPU, "
        f"{report['steps']} steps ({report['peer_steps']} of the peer), medians of the last half. "
        f"The peer: {versions or 'not run'}.",
        "",
        f"| {' | '.join(HEADER)} |",
        "|" + " --- |" * len(HEADER),
        *map(line_of, report["rows"]),
    ]
    return "\n".join(lines) + "\n"
