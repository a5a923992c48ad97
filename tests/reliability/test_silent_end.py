"""A run that succeeds ends in silence, and one that fails says why without a stack trace.

More runs, and on GPUs:
DISTILL_END_ROUNDS=500 pytest tests/reliability/test_silent_end.py -k ends_in_silence
DISTILL_TEST_DEVICE=cuda DISTILL_END_ROUNDS=100 pytest tests/reliability/test_silent_end.py -k ends_in_silence
"""

import os
import random
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import jobs
import tiny

ROUNDS = int(os.environ.get("DISTILL_END_ROUNDS", 6))
AT_ONCE = int(os.environ.get("DISTILL_END_AT_ONCE", 2))  # runs side by side, to disturb one another
# What a run may say: lines of the log, which are no errors, and of the notice of a signal.
SAID = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [IW] |\[rank \d+ on \S+, \w+(:\d+)?\] |distill: SIG[A-Z0-9]+: ")
LONG = {"steps": 100000, "micro_batch_size": 1, "global_batch_size": 12}


def config_of(folder, parts, ranks, **train):
    config = tiny.base_config(
        folder, *parts, parallel={"processes": ranks}, scheduler={"type": "constant", "warmup_steps": 0}
    )
    config["train"] |= {"steps": 2, "micro_batch_size": 1, "global_batch_size": 12} | train
    return config


def start(arguments, **variables):
    return subprocess.Popen(
        [tiny.binary(), *map(str, arguments)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=tiny.environment() | variables,
    )


def ends_by_itself(folder, parts, ranks, pick):
    return start(["--config", tiny.write_config(folder, config_of(folder, parts, ranks))]).communicate(timeout=100), 0


def ends_by_a_signal(folder, parts, ranks, pick):
    config = config_of(folder, parts, ranks, **LONG)
    job = start(["--config", tiny.write_config(folder, config)])
    jobs.until(lambda: jobs.steps_done(config["run"]["dir"]) >= 1, job)
    time.sleep(pick.uniform(0, 0.6))  # at any place between two posts of the heartbeat
    os.kill(pick.choice([job.pid, *jobs.ranks_of(job)]), signal.SIGTERM)
    return job.communicate(timeout=100), tiny.STOPPED_BY_SIGNAL


def captures(folder, parts, ranks, pick):
    path = tiny.write_config(folder, config_of(folder, parts, ranks))
    return start(["capture", "--config", path, "--set", f"teacher.cache={folder}/cache"]).communicate(timeout=100), 0


def measures_the_machine(folder, parts, ranks, pick):
    path = tiny.write_config(folder, config_of(folder, parts, ranks))
    job = start(["plan", "--config", path, "--ranks", ranks, "--calibrate", folder / "machine.json"])
    return job.communicate(timeout=100), 0


def started_by_a_launcher(folder, parts, ranks, pick):
    """Rank 0 serves the store, or the launcher does, as torchrun's agent."""
    agent = None
    port = tiny.free_port()
    config = config_of(folder, parts, ranks)
    del config["parallel"]["processes"]
    path = tiny.write_config(folder, config)
    variables = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost"}
    if pick.random() < 0.5:
        agent = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        port = str(agent.port)
        variables |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    started = [
        start(["--config", path], **variables, MASTER_PORT=port, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in range(ranks)
    ]
    said = [job.communicate(timeout=100) for job in started]
    assert all(job.returncode == 0 for job in started), said
    return ("", "".join(error for _, error in said)), 0


WAYS = (ends_by_itself, ends_by_a_signal, captures, started_by_a_launcher, measures_the_machine)


def one_round(folder, parts, number):
    pick = random.Random(number)
    ranks = 2 if tiny.DEVICE == "cuda" else pick.choice([2, 3, 4])
    way = WAYS[number % len(WAYS)]
    folder.mkdir()
    (_, errors), _ = way(folder, parts, ranks, pick)
    return [f"{way.__name__} on {ranks} ranks: {line}" for line in errors.splitlines() if not SAID.match(line)]


def test_a_run_that_succeeds_ends_in_silence(tmp_path, parts):
    tiny.need_devices(2)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rounds = [pool.submit(one_round, tmp_path / str(number), parts, number) for number in range(ROUNDS)]
        unexpected = [line for job in rounds for line in job.result()]
    assert not unexpected, "\n".join(unexpected[:50])


def test_a_killed_rank_is_told_without_a_stack_trace(tmp_path, parts):
    """Of rank 0, which serves the store: every other rank notices it in c10d."""
    tiny.need_devices(tiny.RANKS)
    config = config_of(tmp_path, parts, tiny.RANKS, **LONG)
    job = start(["--config", tiny.write_config(tmp_path, config)])
    jobs.until(lambda: jobs.steps_done(config["run"]["dir"]) >= 2, job)
    os.kill(jobs.ranks_of(job)[0], signal.SIGKILL)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == tiny.RUNTIME_FAILURE
    for trace in ("frame #", "Exception raised from", "TCPStore", "most recent call first", "[W"):
        assert trace not in errors, errors
    killed = "distill: rank 0 was killed by signal 9 (SIGKILL: Killed) in step "
    assert re.search(re.escape(killed) + r"\d+, phase [a-z ]+; distill did not send it", errors), errors
    assert f"rank 0 failed first (log: {config['run']['dir']}/log.txt)" in errors
    assert killed in errors.splitlines()[-1]
    # The trace is kept, for whoever has to debug this.
    stacks = list(tiny.Path(config["run"]["dir"]).glob("stacks-rank*.txt"))
    for path in stacks:
        assert "frame #" in path.read_text() and str(path) in errors


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_while_starting_is_named_and_what_distill_ends_is_not(tmp_path, parts, victim):
    config = config_of(tmp_path, parts, 2, **LONG)
    job = start(["--config", tiny.write_config(tmp_path, config)])
    jobs.until(lambda: len(jobs.ranks_of(job)) == 2, job)
    os.kill(jobs.ranks_of(job)[victim], signal.SIGSTOP)  # so that the others wait for it
    time.sleep(0.2)
    os.kill(jobs.ranks_of(job)[victim], signal.SIGKILL)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == tiny.RUNTIME_FAILURE
    assert re.search(rf"distill: rank {victim} was killed by signal 9 \(SIGKILL: Killed\) while \w+", errors), errors
    assert f"rank {1 - victim} was killed" not in errors
    assert f"distill: rank {victim} failed first" in errors


def test_what_distill_ends_itself_reads_differently(tmp_path, parts):
    """A rank that does not end after another one has failed: here it is stopped."""
    config = config_of(tmp_path, parts, 2, **LONG)
    job = start(["--config", tiny.write_config(tmp_path, config)])
    jobs.until(lambda: jobs.steps_done(config["run"]["dir"]) >= 1, job)
    ranks = jobs.ranks_of(job)
    os.kill(ranks[1], signal.SIGSTOP)
    os.kill(ranks[0], signal.SIGKILL)
    _, errors = job.communicate(timeout=60)
    assert "distill: rank 0 was killed by signal 9" in errors
    ended = re.search(r"distill: rank 1 was ended by distill with signal 9 .*, since rank 0 had failed", errors)
    assert ended and "rank 1 was killed" not in errors, errors
