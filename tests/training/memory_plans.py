"""Plans of memory and what is measured beside them."""

import json

import pytest

import tiny
from run_results import losses_of

# By how much the planned bytes of a category may differ from the measured ones: a share, and bytes. On a GPU a tensor
# may have up to 1 MiB more than it asked for, since the caching allocator does not split off less, and which free block
# it gets depends on when other streams have given theirs back. That is much of a tiny model's memory and nothing of a
# large one's (scripts/benches/check_plan_gpu.py).
RELATIVE, BLOCKS = 0.01, 8192 if tiny.DEVICE == "cpu" else 1 << 20
# Vectors of a few bytes, read-ahead batches and step counters are not in the plan.
UNPLANNED = 120_000 if tiny.DEVICE == "cpu" else 120_000 + BLOCKS
POLICIES = ["keep", "recompute", "offload", "offload_input", "auto", "recompute,keep", "offload,offload_input"]


def config_of(folder, pair, shard, **sections):
    processes = sections.setdefault("parallel", {}).setdefault("processes", 1)
    sections.setdefault("train", {"steps": 3, "micro_batch_size": 2, "global_batch_size": 4 * processes})
    # Rows of 256 tokens: what the blocks keep is most of the memory. A head in several chunks.
    sections.setdefault("data", {"seq_len": 256})
    sections.setdefault("loss", {"memory_cap_mb": 1, "min_chunk_size": 16})
    return tiny.base_config(folder, *pair, shard, scheduler={"warmup_steps": 1}, **sections)


def profile(folder, config, *arguments):
    """What `distill profile-memory --json` says: a plan, and what a run of it took."""
    path = tiny.write_config(folder, config)
    done = tiny.distill("profile-memory", "--config", path, "--out", folder / "profile", "--json", *arguments)
    return json.loads(done.stdout)


def check_against_measured(report, workspace_too=True, unplanned=UNPLANNED):
    planned, measured = report["plan"], report["measured"]
    for phase in ("teacher", "forward", "head", "backward"):
        found, expected = measured["phases"][phase], planned["phases"][phase]
        for category, bytes_found in found["highest"].items():
            if category != "workspace":
                within = pytest.approx(bytes_found, rel=RELATIVE, abs=BLOCKS)
                assert expected["highest"][category] == within, (phase, category)
        if workspace_too:
            most = found["peak"] * (1 + RELATIVE) + (BLOCKS if tiny.DEVICE == "cuda" else 0)
            assert found["peak"] - unplanned <= expected["peak"] <= most, phase
    # Gloo's threads copy when they get to it, so how many copies there are at the peak differs from run to run.
    slack = 0.03 * measured["peak"] + (0 if workspace_too and unplanned == UNPLANNED else unplanned)
    assert abs(report["peak_error"]) * measured["peak"] <= slack
    assert measured["phases"][planned["peak_phase"]]["peak"] >= measured["peak"] - BLOCKS


def check_peaks(report, most, unplanned=UNPLANNED):
    """Of a plan for as much as a batch can have: up to `most` times what was measured."""
    for phase in ("teacher", "forward", "head", "backward"):
        planned, measured = (report[side]["phases"][phase]["peak"] for side in ("plan", "measured"))
        assert measured - unplanned <= planned <= most * measured, phase


def losses(folder, pair, shard, **sections):
    config = config_of(folder, pair, shard, **sections)
    config["checkpoint"] = {"at_end": False}
    return losses_of(tiny.train(folder, config))
