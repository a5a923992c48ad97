#!/usr/bin/env python3
"""Compares the memory plan with measurements on this machine's GPUs, and checks the claims of docs/memory.md.

  scripts/benches/check_plan_gpu.py OUT plan bits flat        groups: their rows for exactly the visible number of GPUs
  scripts/benches/check_plan_gpu.py OUT 1g-1b-8b-keep         single rows by name, if they fit the GPUs
  scripts/benches/check_plan_gpu.py OUT plan --smaller-too    also the rows for fewer GPUs, several at the same time
  scripts/benches/check_plan_gpu.py OUT plan --estimate --gpus 2     estimates the time on two GPUs; needs no GPU
  scripts/benches/check_plan_gpu.py OUT --list                lists the rows

Groups: plan    predicted against measured peak memory, and tokens per second
        speeds  uniform policies at one shape: the cost of offloading
        auto    memory.activation: auto against the uniform policies, under four budgets
        mixes   memory.activation and memory.optimizer: auto against mixes by hand, for six pairs of shapes and lengths;
                mixes that do not fit are left out
        long    one long sequence, with the time by part; the longest sequence that fits a limit of device memory,
                according to the plan
        long-whole   the same on one GPU without tiles, and with attention computed again
        bits    losses under every policy equal those under keep bit for bit, in deterministic mode
        flat    memory of an early step and of the last one: 2000 steps with offload; 2000 with packed documents of
                changing lengths; 320 of a larger pair with such documents, under both allocators
        families    a mixture of experts, Gemma 3 and Ministral 3, with a teacher in bf16 and in float8
        allocator   reserved memory under both allocators, which has to be within 0.5 GiB of the plan
        calibrate   this machine's speeds, for memory.machine

Each row is a few steps of a process of its own, with random weights made on the GPU. When a row fails, the script says
so and goes on with the next. OUT receives summary.md (a table line for each row), details.jsonl (every phase and
category), log.txt (the output of failed rows) and machine-N.json. DISTILL names a program other than the build's.
"""

import script_path

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from plan_check.hardware import grow_host
from plan_check.machine import Machine
from plan_check.rows import GIB, rows
from shared.command_line import argument_parser


def choose(machine, names, smaller_too):
    every = rows()
    groups = {row.group for row in every}
    chosen = []
    for name in names:
        found = [
            row
            for row in every
            if row.name == name
            or (row.group == name and (row.gpus <= machine.gpus if smaller_too else row.gpus == machine.gpus))
        ]
        if not found and name not in groups:
            sys.exit(f"check_plan_gpu.py: no row or group '{name}'; --list shows them")
        chosen += [row for row in found if row.name not in {other.name for other in chosen}]
    return chosen


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("out")
    parser.add_argument("names", nargs="*", default=["plan"])
    parser.add_argument("--gpus", type=int, help="number of GPUs to plan for; default: the visible ones")
    parser.add_argument("--smaller-too", action="store_true", help="also the rows of a group for fewer GPUs")
    parser.add_argument("--one-by-one", action="store_true", help="never run several rows at the same time")
    parser.add_argument("--estimate", action="store_true", help="say which rows would run and for how long")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--stop-after", type=float, default=570, help="seconds after which no further row begins")
    options = parser.parse_args()
    if options.list:
        for row in rows():
            print(f"{row.group:8s} {row.name:32s} {row.gpus} GPU(s) {row.model_text():12s} {' '.join(row.settings)}")
        return 0
    machine = Machine(options)
    others = [name for name in options.names if name in ("bits", "flat", "calibrate")]
    chosen = choose(machine, [name for name in options.names if name not in others], options.smaller_too)
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
        list(pool.map(machine.make_plan, chosen))
    usable = []
    for row in chosen:
        if row.gpus > machine.gpus:
            print(f"{row.name}: needs {row.gpus} GPUs")
        elif row.pair and row.plan.get("overflows"):
            machine.say(f"| {row.name} | {' '.join(row.settings)} | does not fit |")
        elif not row.plan.get("seconds"):
            machine.failed.append(row.name)
            machine.say(f"| {row.name} | FAILED: {'; '.join(row.plan.get('overflows', ['no plan']))} |")
        else:
            usable.append(row)
    # The rows that need host memory run last: it is made available while the others run.
    usable.sort(key=lambda row: (row.host_bytes() > GIB, -row.gpus))
    total = sum(row.estimate_s() * (1 if options.one_by_one else row.gpus / machine.gpus) for row in usable)
    total += (
        {1: 40, 2: 50}.get(machine.gpus, 60) * ("bits" in others)
        + (45 + 250 + 300) * ("flat" in others)
        + 30 * ("calibrate" in others)
    )
    for row in usable:
        print(
            f"{row.name:32s} {row.estimate_s():4.0f} s  {row.plan['bytes']['peak'] / GIB:6.1f} GiB  "
            f"{row.host_bytes() / GIB:5.1f} GiB on the host  {row.plan['tokens_per_second']:.0f} tok/s  {row.seq_len}"
        )
    print(f"estimated: {total:.0f} s in all on {machine.gpus} GPU(s)", flush=True)
    if options.estimate:
        return 0
    grower = threading.Thread(
        target=grow_host, daemon=True, args=(max([row.host_bytes() for row in usable], default=0), print)
    )
    grower.start()
    if usable:
        machine.say(
            "\n| row | models | GPUs | V | tokens of a rank's step | blocks | peak, GiB: predicted / measured "
            "| reserved: predicted / measured | outside the allocator: predicted / measured alone, with the ranks, at "
            "the end | tok/s: predicted / measured | took |\n|" + " --- |" * 11
        )

    def job(row):
        def work(devices):
            if time.monotonic() - machine.began + row.estimate_s() > options.stop_after:
                machine.failed.append(row.name)
                machine.say(f"| {row.name} | not begun: --stop-after {options.stop_after:.0f} s |")
                return
            if row.host_bytes() > GIB:
                grower.join()
            machine.profile(row, devices)

        return work

    for gpus in sorted({row.gpus for row in usable}, reverse=True):
        machine.side_by_side([job(row) for row in usable if row.gpus == gpus], gpus)
    machine.compare(usable)
    jobs, report = machine.bits_jobs() if "bits" in others else ([], lambda: None)
    jobs += [threading.Thread(target=machine.flat)] if "flat" in others else []
    for thread in jobs:
        thread.start()
    for thread in jobs:
        thread.join()
    report()
    if "calibrate" in others:
        machine.calibrate()
    machine.say(f"\n{time.monotonic() - machine.began:.0f} s; failed: {', '.join(machine.failed) or 'none'}")
    return 1 if machine.failed else 0


if __name__ == "__main__":
    sys.exit(main())
