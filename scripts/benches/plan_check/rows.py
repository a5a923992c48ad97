"""The runs that compare the memory plan with GPUs: each run's models, shape, settings and time limit."""

from dataclasses import dataclass, field

import bench_inputs

GIB = 2**30
POLICIES = ("keep", "recompute", "offload", "offload_input")
# Pairs for which auto is compared with mixes by hand on one GPU: student, teacher, sequence, sequences, blocks.
MIX_PAIRS = {
    "3b-8b-2x4096": ("3b", "8b", 4096, 2, 28),
    "1b-8b-16x4096": ("1b", "8b", 4096, 16, 16),
    "1b-8b-4x16384": ("1b", "8b", 16384, 4, 16),
    "3b-8b-1x16384": ("3b", "8b", 16384, 1, 28),
    "1b-8b-1x65536": ("1b", "8b", 65536, 1, 16),
    "8b-8b-2x4096": ("8b", "8b", 4096, 2, 32),
}


@dataclass
class Row:
    name: str
    group: str
    gpus: int
    student: str
    teacher: str  # "none": the loss uses the labels only
    vocab: int = 0  # 0: that of the student's family
    seq_len: int = 4096
    batch: int = 2
    micro_batches: int = 1
    steps: int = 5
    settings: tuple = ()
    varied: bool = False  # documents of random lengths
    documents: int = 0  # sequences of data; 0: those of two steps
    start_s: float = 14  # estimated seconds to load libraries, start the device and make the weights
    limit_s: int = 120
    pair: str = ""  # of MIX_PAIRS
    plan: dict = field(default_factory=dict)
    report: dict = field(default_factory=dict)

    def __post_init__(self):
        self.vocab = self.vocab or bench_inputs.config(self.student)["vocab_size"]

    def setting(self, key, otherwise=""):
        return next((s.split("=", 1)[1] for s in self.settings if s.startswith(key + "=")), otherwise)

    def model_text(self):
        return self.student.upper() + ("" if self.teacher == "none" else f" <- {self.teacher.upper()}")

    def estimate_s(self):
        return self.start_s + 3 * (self.gpus > 1) + self.steps * self.plan.get("seconds", {}).get("step", 1)

    def host_bytes(self):
        found = self.plan.get("bytes", {})
        return self.gpus * (found.get("host_activations", 0) + found.get("host_optimizer", 0))


def hand_mixes(blocks):
    """Values of memory.activation for `blocks` blocks that a user may try, in forward order."""
    quarter, half = blocks // 4, blocks // 2
    yield from POLICIES
    for first, policy in ((quarter, "recompute"), (half, "recompute"), (half, "offload_input"), (quarter, "offload")):
        yield f"{policy}*{first},keep*{blocks - first}"


def mix_rows():
    """Rows of the pairs above: auto first, then each mix by hand; where the state has to leave the device, that too."""
    for pair, (student, teacher, length, batch, blocks) in MIX_PAIRS.items():
        choices = [("auto", "auto")] + [(mix, "device") for mix in hand_mixes(blocks)]
        if student == "8b":
            states = ("host", f"host*{blocks - 4},device*4", f"host*{blocks - 8},device*8")
            choices = [("auto", "auto")] + [
                (mix, state) for state in states for mix in ("recompute", f"recompute*{blocks // 2},keep*{blocks // 2}")
            ]
        for number, (mix, state) in enumerate(choices):
            yield Row(
                f"1g-mix-{pair}-{number}",
                "mixes",
                1,
                student,
                teacher,
                seq_len=length,
                batch=batch,
                steps=5,
                settings=("memory.activation=" + mix, "memory.optimizer=" + state),
                pair=pair,
            )


def flat_rows(gpus):
    """Long runs whose memory must not grow: name, row and the step after which it has to stay as it is."""
    offload = ("memory.activation=offload", "memory.optimizer=host")
    # The last row of an epoch holds a token without a target, for which the loss head allocates an index: all sizes
    # have occurred after the first epoch (4 steps here).
    yield Row("1g-flat", "flat", 1, "tiny", "tiny", vocab=32000, seq_len=1024, steps=2000, settings=offload), 100
    if gpus == 1:
        yield (
            Row("1g-flat-packed", "flat", 1, "qwen3-0.6b", "qwen3-0.6b", seq_len=2048, steps=2000, varied=True,
                documents=8000, settings=("data.packing=pack",)),
            200,
        )  # fmt: skip
    student = "1b" if gpus == 1 else "8b"
    for allocator in ("expandable", "segments"):
        settings = ("data.packing=pack", f"memory.allocator={allocator}", "memory.on_overflow=warn")
        yield (
            Row(
                f"{gpus}g-flat-{allocator}",
                "flat",
                gpus,
                student,
                "8b",
                steps=320,
                varied=True,
                documents=1280 * gpus,
                settings=settings,
            ),
            100,
        )


def rows():
    activation = "memory.activation=".__add__
    budget = "memory.budget_gib={}".format
    host = "memory.optimizer=host"
    # fmt: off
    found = [
        Row("1g-1b-8b-keep", "plan", 1, "1b", "8b"),
        Row("1g-1b-8b-recompute-v32k", "plan", 1, "1b", "8b", vocab=32000, settings=(activation("recompute"),)),
        Row("1g-1b-8b-keep-v262k", "plan", 1, "1b", "8b", vocab=262144),
        Row("1g-3b-8b-offload", "plan", 1, "3b", "8b", settings=(activation("offload"),)),
        Row("1g-1b-8b-input-16k-acc2", "plan", 1, "1b", "8b", batch=4, micro_batches=2, steps=4,
            settings=(activation("offload_input"),)),
        Row("1g-3b-8b-auto", "plan", 1, "3b", "8b", settings=(activation("auto"), budget(76.5))),
        Row("1g-1b-8b-host", "plan", 1, "1b", "8b", settings=(host,)),
        Row("1g-3b-8b-host", "plan", 1, "3b", "8b", settings=(host,)),
        Row("1g-1b-8b-packed", "plan", 1, "1b", "8b", settings=("data.packing=pack",)),
        Row("1g-8b-8b-host", "big", 1, "8b", "8b", steps=4, settings=(host,), start_s=60, limit_s=240),
        Row("2g-8b-8b-keep", "plan", 2, "8b", "8b"),
        Row("2g-8b-8b-copy", "plan", 2, "8b", "8b", settings=("parallel.gather=copy",)),
        Row("2g-8b-8b-input", "plan", 2, "8b", "8b", settings=(activation("offload_input"),)),
        Row("2g-8b-8b-recompute-acc2", "plan", 2, "8b", "8b", micro_batches=2, steps=4,
            settings=(activation("recompute"),)),
        Row("2g-3b-8b-auto-v262k", "plan", 2, "3b", "8b", vocab=262144, settings=(activation("auto"), budget(48))),
        Row("2g-3b-8b-full-acc2-v32k", "plan", 2, "3b", "8b", vocab=32000, micro_batches=2,
            settings=("parallel.accumulate=keep_full",)),
        Row("2g-1b-8b-whole-teacher", "plan", 2, "1b", "8b", settings=("parallel.shard_teacher=false",)),
        Row("2g-1b-8b-replicas", "plan", 2, "1b", "8b", settings=("parallel.replicate=2",)),
        Row("2g-1b-70b-keep", "plan", 2, "1b", "70b", steps=4, start_s=25),
        Row("2g-3b-8b-host", "plan", 2, "3b", "8b", settings=(host,)),
        Row("2g-8b-8b-auto-state", "plan", 2, "8b", "8b",
            settings=(activation("auto"), "memory.optimizer=auto", budget(75))),
        Row("4g-8b-8b-keep", "plan", 4, "8b", "8b"),
        Row("4g-8b-8b-copy", "plan", 4, "8b", "8b", settings=("parallel.gather=copy",)),
        Row("4g-8b-8b-recompute", "plan", 4, "8b", "8b", settings=(activation("recompute"),)),
        Row("4g-8b-8b-input", "plan", 4, "8b", "8b", settings=(activation("offload_input"),)),
        Row("4g-8b-8b-auto50", "plan", 4, "8b", "8b", settings=(activation("auto"), budget(50))),
        Row("4g-8b-8b-offload", "plan", 4, "8b", "8b", settings=(activation("offload"),)),
        Row("4g-1b-70b-keep", "plan", 4, "1b", "70b", steps=4, start_s=25),
        Row("4g-3b-8b-hsdp-acc2", "plan", 4, "3b", "8b", micro_batches=2, settings=("parallel.replicate=2",)),
        Row("4g-8b-8b-keep-16k-v32k", "plan", 4, "8b", "8b", vocab=32000, batch=4),
    ]
    # Reserved memory under both of libtorch's ways to take it, predicted and measured.
    for allocator in ("expandable", "segments"):
        for name, gpus, student, more in (("1b-8b", 1, "1b", ()), ("3b-8b", 1, "3b", ()),
                                          ("3b-8b-offload", 1, "3b", (activation("offload"),)),
                                          ("8b-8b", 2, "8b", ("parallel.gather=nccl", activation("recompute"))),
                                          ("3b-8b-copy", 2, "3b", ("parallel.gather=copy",)),
                                          ("8b-8b-default", 2, "8b", ("parallel.gather=auto", activation("auto")))):
            found.append(Row(f"{gpus}g-{name}-{allocator}", "allocator", gpus, student, "8b",
                             settings=(f"memory.allocator={allocator}", "memory.on_overflow=warn", *more)))
    # Models of other families, with a teacher in bf16 and in float8.
    for student, teacher in (("qwen3-4b", "qwen3-30b-a3b"), ("gemma3-4b", "gemma3-12b"),
                             ("ministral3-3b", "ministral3-14b")):
        for gpus in (1, 2):
            for dtype in ("bfloat16", "float8"):
                found.append(Row(f"{gpus}g-{student}-{teacher.split('-', 1)[1]}-{dtype}", "families", gpus, student,
                                 teacher, steps=8, start_s=25, limit_s=200,
                                 settings=(f"teacher.dtype={dtype}", "float8.gate=false", activation("auto"))))
    # The cost of each policy, and the mix that auto finds, at one shape for each number of GPUs.
    shapes = {1: ("3b", "8b", 2, 76.5), 2: ("8b", "8b", 2, 76), 4: ("8b", "8b", 2, 50)}
    for gpus, (student, teacher, batch, gib) in shapes.items():
        for policy in POLICIES:
            found.append(Row(f"{gpus}g-speed-{policy}", "speeds", gpus, student, teacher, batch=batch,
                             settings=(activation(policy),)))
        found.append(Row(f"{gpus}g-speed-auto{gib}", "speeds", gpus, student, teacher, batch=batch,
                         settings=(activation("auto"), budget(gib))))
    # Many tokens on few GPUs, so that the four budgets need different mixes there too.
    shapes = {1: ("1b", "8b", 8), 2: ("3b", "8b", 4), 4: ("8b", "8b", 2)}
    for gpus, (student, teacher, batch) in shapes.items():
        for policy in POLICIES:
            found.append(Row(f"{gpus}g-uniform-{policy}", "auto", gpus, student, teacher, batch=batch, steps=4,
                             settings=(activation(policy),)))
        for gib in (45, 55, 70, 100):
            found.append(Row(f"{gpus}g-auto{gib}", "auto", gpus, student, teacher, batch=batch, steps=4,
                             settings=(activation("auto"), budget(gib))))
    for gpus, length in ((2, 32768), (4, 32768), (2, 65536), (4, 65536)):
        found.append(Row(f"{gpus}g-8b-8b-one-{length}", "long", gpus, "8b", "8b", seq_len=length, batch=1, steps=3,
                         settings=(activation("auto"), budget(130)), limit_s=300))
    # On one GPU: 65536 tokens on 80 GiB, 131072 on 141. `whole`: without tiles, and all is computed again.
    whole = ("memory.tile_tokens=0", "memory.recompute=all")
    for length, limit_s in ((65536, 300), (131072, 500)):
        for name, group, settings in (("", "long", ()), ("-whole", "long-whole", whole)):
            found.append(Row(f"1g-8b-8b-one-{length}{name}", group, 1, "8b", "8b", seq_len=length, batch=1, steps=3,
                             settings=(activation("auto"), "memory.optimizer=auto", *settings), start_s=60,
                             limit_s=limit_s))
    # With all of the memory a single step would take 10 minutes, so the longest sequence is tried under a
    # smaller limit.
    for gpus, student, teacher, gib in ((1, "1b", "8b", 56), (1, "1b", "8b", 80), (2, "8b", "none", 80),
                                        (4, "8b", "none", 56)):
        found.append(Row(f"{gpus}g-{student}-{teacher}-longest-in-{gib}", "long", gpus, student, teacher, seq_len=0,
                         batch=1, steps=2, settings=(activation("auto"), f"memory.limit_gib={gib}"), limit_s=400))
    # fmt: on
    found += mix_rows()
    # The figures of docs/memory.md with several GPUs are those of NCCL's gathers. The default, auto, gathers by copies
    # where it can, which takes more memory.
    for row in found:
        if row.gpus > 1 and not row.setting("parallel.gather"):
            row.settings += ("parallel.gather=nccl",)
    return found
