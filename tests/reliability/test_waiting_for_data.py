"""A signal that comes while a rank waits for its data stops all ranks at the same step, with a complete checkpoint."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from safetensors import safe_open

import jobs
import tiny
from held_thread import HeldThread, NotAllowed, find_thread

pytestmark = pytest.mark.alone  # within half of GRACE_S
RANKS, STEPS, GRACE_S, EVAL_EVERY = 4, 400, 30, 20
TIMES = ("seconds", "phase_seconds", "tokens_per_second", "peak_memory_bytes", "time_ms")
TIMES += ("gathers", "gathered_bytes")  # the first step of a process has more


def configuration(folder, parts, steps=STEPS):
    config = tiny.base_config(
        folder,
        *parts,
        parallel={"processes": RANKS},
        train={"steps": steps, "micro_batch_size": 1, "global_batch_size": 4},
        checkpoint={"every": 7},
        eval={"every": EVAL_EVERY, "batches": 120},
    )
    config["data"] |= {"packing": "pack", "shuffle": True, "eval": [{"path": parts[2]}]}
    config["run"]["grace_s"] = GRACE_S
    config["scheduler"] = {"type": "constant", "warmup_steps": 0}
    return config


def ranks_of(process):
    """Process ids by rank."""
    found = {}
    for pid in jobs.ranks_of(process):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"RANK="):
                found[int(entry[5:])] = pid
    return found


def wait_for_rest(run, seconds=3.0):
    """Waits until no step has ended for this long, which is hundreds of steps: then all wait for data."""
    before, since = -1, time.monotonic()
    while time.monotonic() < since + seconds:
        if jobs.steps_done(run) != before:
            before, since = jobs.steps_done(run), time.monotonic()
        time.sleep(0.02)


def hold(pid, name, process):
    """The process's thread of this name, as soon as there is one."""
    while True:
        try:
            return HeldThread(jobs.until(lambda: find_thread(pid, name), process, pause=0.001))
        except ProcessLookupError:
            continue  # it had ended before it was held
        except NotAllowed as error:
            pytest.skip(f"a thread cannot be held up here: {error}")


@pytest.mark.parametrize("while_doing, thread", [("training", "data"), ("evaluation", "eval data")])
@pytest.mark.parametrize("held_rank, asked_rank", [(2, 0), (1, 1)])
def test_a_rank_that_waits_for_its_data_stops_with_the_others(
    tmp_path, parts, while_doing, thread, held_rank, asked_rank
):
    config, run = configuration(tmp_path, parts), tmp_path / "run"
    with open(tmp_path / "output.txt", "w") as output:
        process = tiny.start(tiny.write_config(tmp_path, config), stdout=output, stderr=output)
    try:
        jobs.until(lambda: jobs.steps_done(run) > 6, process)
        pids = ranks_of(process)
        assert len(pids) == RANKS
        held = hold(pids[held_rank], thread, process)
        # What has been read ahead is used up; then all wait, however long.
        wait_for_rest(run)
        assert process.poll() is None
        evaluating = find_thread(pids[held_rank], "eval data") is not None
        assert evaluating == (while_doing == "evaluation")
        began = time.monotonic()
        os.kill(pids[asked_rank], signal.SIGTERM)
        code = process.wait(timeout=60)
        took = time.monotonic() - began
    finally:
        for pid in ranks_of(process).values():
            os.kill(pid, signal.SIGKILL)
        process.kill()
    held.release()
    text = (tmp_path / "output.txt").read_text()
    assert code == tiny.STOPPED_BY_SIGNAL, text[-3000:]
    assert took < GRACE_S / 2, "the storage has been waited for"
    records, evaluations = tiny.read_metrics(run)
    last = records[-1]["step"]
    assert last < STEPS
    if while_doing == "evaluation":
        assert last % EVAL_EVERY == 0 and (not evaluations or evaluations[-1]["step"] < last)
    saved = run / "checkpoints" / f"step-{last}"
    assert (saved / "COMPLETE").exists(), list((run / "checkpoints").iterdir())
    counters = []
    for file in sorted(saved.glob("rank-*")):
        with safe_open(file, "pt") as tensors:
            counters.append(int(tensors.get_tensor("step_count").item()))
    assert counters == [last - records[-1]["empty_steps"]] * RANKS

    # Nothing of it is lost: the resumed run equals one that was never disturbed.
    total = last + 6
    tiny.train(tmp_path, configuration(tmp_path, parts, total), "--resume")
    whole = tiny.train(tmp_path / "whole", configuration(tmp_path / "whole", parts, total))
    for found, expected in zip(tiny.read_metrics(run), tiny.read_metrics(whole), strict=True):
        assert [json.dumps({k: v for k, v in line.items() if k not in TIMES}) for line in found] == [
            json.dumps({k: v for k, v in line.items() if k not in TIMES}) for line in expected
        ]
    for file in (whole / "model").iterdir():
        assert (run / "model" / file.name).read_bytes() == file.read_bytes()
