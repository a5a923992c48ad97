"""On-policy runs that end early, by a kill, a signal or a broken engine, and go on."""

import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jobs
import tiny
from onpolicy_runs import (
    SCRIPT,
    command,
    completions,
    config_in,
    description,
    http_settings,
    judged,
    killed_at,
    mark_of,
    processes_with,
    round_folder,
)
from run_results import losses_of


@pytest.fixture
def config(tmp_path, models, onpolicy_prompts):
    return config_in(tmp_path, models, onpolicy_prompts)


@pytest.mark.parametrize(
    "fault, says",
    [
        ("crash", ["signal 6", "out of memory", "engine.log"]),
        ("full", ["exit code 1", "OSError: [Errno 28] No space left on device", "engine.log"]),
        ("hang", ["onpolicy.timeout_s", "within 2 s", "engine: 8 prompts"]),
        ("silent", ["8 of 8 completions", "no completion at all", "engine: 8 prompts"]),
        ("garbage", ["output.jsonl:1:", "JSON"]),
        ("empty", ["output.jsonl:1: completion_ids: expected 1 to 8 tokens", "found 0"]),
        ("foreign", ["completion_ids[0]: expected an id below 211", "found 218"]),
        ("prompt", ["prompt_ids: expected the"]),
        ("stale", ["weight_version: expected step-2-", 'found "step-0-0123456789abcdef"']),
        ("reason", ['finish_reason: expected stop or length, found "error"']),
        ("logprobs", ["logprobs[0]: expected the logarithm of a probability, found 0.5"]),
    ],
)
def test_a_broken_engine_is_named_and_loses_nothing(tmp_path, config, undisturbed_run, fault, says):
    """The first round is good, the second one is not; a repaired engine goes on, as if nothing had been wrong."""
    mark = mark_of(tmp_path)
    broken = f"if [ {{round}} = 1 ]; then {command('--fault', fault, '--mark', mark)}; else {command()}; fi"
    settings = config("run", broken, onpolicy={"timeout_s": 2 if fault == "hang" else 600})
    tiny.expect_failure(tmp_path, settings, says)
    assert not processes_with(mark)
    run = Path(settings["run"]["dir"])
    assert jobs.complete_checkpoints(run)[-1].name == "step-2"
    kept = len(completions(run, 1)) if (round_folder(run, 1) / "completions.jsonl").exists() else 0
    settings["onpolicy"]["command"] = command()
    tiny.train(tmp_path, settings, "--resume")
    assert description(run, 1)["result"]["completions"] == 8
    assert kept == 0 or fault in ("crash", "full")
    assert losses_of(run) == losses_of(undisturbed_run)


def test_weights_without_room_are_named_and_lose_nothing(tmp_path, config):
    """The process may write no file as large as the student's weights, from the second round on."""
    settings = config("run", train={"steps": 2})
    tiny.train(tmp_path, settings)
    settings["train"]["steps"] = 6
    path, run = tiny.write_config(tmp_path, settings), Path(settings["run"]["dir"])
    done = subprocess.run(
        [tiny.binary(), "--config", path, "--resume"], capture_output=True, text=True, env=tiny.environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)),
    )  # fmt: skip
    assert done.returncode == tiny.RUNTIME_FAILURE, done.stderr
    assert re.search(r"onpolicy/weights/model.safetensors: cannot (write|resize): File too large", done.stderr)
    tiny.distill("--config", path, "--resume")
    assert description(run, 1)["request"]["first_step"] == 2
    assert [step for step, _, _ in losses_of(run)] == [1, 2, 3, 4, 5, 6]


def test_a_few_bad_completions_are_left_out_with_a_warning(tmp_path, config):
    settings = config("run", command("--fault", "foreign", "--share", 0.25), onpolicy={"max_bad": 0.3})
    run = tiny.train(tmp_path, settings)
    assert description(run, 0)["result"]["completions"] == 6 and description(run, 0)["result"]["left_out"] == 2
    log = (run / "log.txt").read_text()
    assert (
        "2 of 8 completions are missing or cannot be used" in log
        and "output.jsonl:1: completion_ids[0]: expected an id below 211" in log
    )


@pytest.mark.parametrize("staleness", [0, 1])
def test_killed_runs_go_on_with_the_completions_that_are_there(tmp_path, config, staleness):
    """Killed while the engine writes and while steps run: the losses are those of a run that nobody disturbed, and the
    engine dies with the run."""
    own = {"staleness": staleness}
    undisturbed = tiny.train(tmp_path, config("undisturbed", onpolicy=own))
    mark = mark_of(tmp_path)
    slow = command("--slow", 0.1, "--mark", mark)
    settings = config("run", slow, onpolicy=own, checkpoint={"every": 1, "async": False})
    path, run = tiny.write_config(tmp_path, settings), Path(settings["run"]["dir"])
    output = [round_folder(run, number) / "output.jsonl" for number in range(3)]

    def lines(file):
        return len(file.read_bytes().splitlines()) if file.exists() else 0

    moments = [
        lambda: lines(output[0]) >= 3,  # before there is a checkpoint
        lambda: lines(output[0]) >= 2,
        lambda: jobs.steps_done(run) >= 1,
        lambda: lines(output[1]) >= 4,
        lambda: lines(output[2]) >= 1,
    ]
    killed_at(moments, path, mark)
    tiny.distill("--config", path, "--resume")
    assert losses_of(run) == losses_of(undisturbed)
    log = (run / "log.txt").read_text()
    assert "completions are there already" in log
    for number in range(3):
        assert description(run, number)["request"] == description(undisturbed, number)["request"]
        assert completions(run, number) == completions(undisturbed, number)
        assert judged(run, number) == judged(undisturbed, number)
    assert [line["step"] for line in tiny.read_rounds(run)] == [0, 2, 4]


@tiny.LONG
@pytest.mark.parametrize("kind", ["command", "server"])
@pytest.mark.parametrize("staleness", [0, 1])
def test_killed_thirty_times_at_random_instants(tmp_path, config, staleness, kind):
    mark, random = mark_of(tmp_path), np.random.default_rng(5)

    def settings(name, **more):
        if kind == "command":
            made = config(name, command("--slow", 0.02, "--mark", mark), **more)
        else:
            made = http_settings(config, name, "sglang", mark) | more
        made["onpolicy"]["staleness"] = staleness
        made["train"]["steps"] = 40
        return made

    undisturbed = tiny.train(tmp_path, settings("undisturbed"))
    made = settings("run", checkpoint={"every": 1, "async": False})
    path, run = tiny.write_config(tmp_path, made), Path(made["run"]["dir"])
    for _ in range(30):
        begun = (run / "onpolicy").exists() or jobs.complete_checkpoints(run)
        how = "--resume" if begun else "--overwrite"
        job = tiny.start(path, how, stderr=subprocess.DEVNULL)
        try:
            job.wait(timeout=random.uniform(0.5, 4))
            break
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
        jobs.until(lambda: not processes_with(mark))
    tiny.distill("--config", path, "--resume")
    assert losses_of(run) == losses_of(undisturbed)
    assert not processes_with(mark)


def test_a_stopped_run_goes_on_with_the_round_that_it_was_writing_ahead(tmp_path, config):
    undisturbed = tiny.train(tmp_path, config("undisturbed", onpolicy={"staleness": 1}))
    settings = config("run", command("--slow", 0.1), onpolicy={"staleness": 1})
    path, run = tiny.write_config(tmp_path, settings), Path(settings["run"]["dir"])
    job = tiny.start(path)
    jobs.until(lambda: (round_folder(run, 1) / "output.jsonl").exists(), job)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=60) == tiny.STOPPED_BY_SIGNAL
    tiny.distill("--config", path, "--resume")
    assert losses_of(run) == losses_of(undisturbed)
    assert description(run, 1)["request"] == description(undisturbed, 1)["request"]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_lives_through_all_rounds_and_ends_with_the_run(tmp_path, config, kind):
    mark = mark_of(tmp_path)
    run = tiny.train(tmp_path, http_settings(config, "run", kind, mark))
    assert not processes_with(mark)
    for number in range(3):
        assert len(completions(run, number)) == 8
        log = (round_folder(run, number) / "engine.log").read_text()
        assert f"{kind} has loaded {description(run, number)['request']['weight_version']}" in log


@pytest.mark.parametrize(
    "fault, says",
    [
        ("500", ["3 times", "POST /generate: expected status 200, found 500", "CUDA out of memory"]),
        ("drip", ["3 times", "no whole answer within 1 s"]),
    ],
)
def test_a_server_that_does_not_answer_ends_the_run_within_its_time(tmp_path, config, fault, says):
    mark = mark_of(tmp_path)
    settings = http_settings(config, "run", "sglang", mark, fault)
    settings["onpolicy"]["command"] = settings["onpolicy"]["command"].replace("--timeout 20", "--timeout 1")
    tiny.expect_failure(tmp_path, settings, ["onpolicy.command ended with exit code 1 in round 0", *says])
    assert not processes_with(mark)


def test_a_server_ends_when_the_run_is_killed(tmp_path, config):
    mark = mark_of(tmp_path)
    settings = http_settings(config, "run", "vllm", mark)
    settings["train"]["steps"] = 1000
    path, run = tiny.write_config(tmp_path, settings), Path(settings["run"]["dir"])
    job = tiny.start(path)
    jobs.until(lambda: jobs.steps_done(run) >= 1, job)
    assert processes_with(mark)
    job.kill()
    job.wait()
    jobs.until(lambda: not processes_with(mark))


def test_a_server_that_dies_or_keeps_its_weights_is_named(tmp_path, config):
    mark = mark_of(tmp_path)
    says = {
        "dies": ["onpolicy.server ended with exit code 7", "illegal memory access"],
        "stale": ["weight_version: expected step-0-", 'found "default"'],
    }
    for fault, texts in says.items():
        tiny.expect_failure(tmp_path / fault, http_settings(config, fault, "sglang", mark, fault), texts)
    assert not processes_with(mark)


def test_a_signal_ends_the_engine_and_the_run_goes_on_later(tmp_path, config, undisturbed_run):
    mark = mark_of(tmp_path)
    settings = config("run", command("--slow", 0.3, "--mark", mark))
    path, run = tiny.write_config(tmp_path, settings), Path(settings["run"]["dir"])
    job = tiny.start(path)
    jobs.until(lambda: (round_folder(run, 0) / "output.jsonl").exists(), job)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=60) == tiny.STOPPED_BY_SIGNAL
    assert not processes_with(mark) and not (run / "onpolicy" / "weights").exists()
    settings["onpolicy"]["command"] = command()
    tiny.train(tmp_path, settings, "--resume")
    assert losses_of(run) == losses_of(undisturbed_run)


def test_a_round_of_other_weights_is_written_anew(tmp_path, config):
    """An earlier checkpoint and another learning rate: the rounds after it are those of another student."""
    settings = config("run", checkpoint={"every": 1, "keep": 10})
    run = tiny.train(tmp_path, settings)
    before = description(run, 2)["request"]["weight_version"]
    settings["optimizer"]["lr"] = 1e-3
    tiny.train(tmp_path, settings, "--resume-from", run / "checkpoints" / "step-3")
    assert description(run, 2)["request"]["weight_version"] != before
    assert (run / "onpolicy" / "round-00002.replaced").is_dir() and not (
        run / "onpolicy" / "round-00001.replaced"
    ).exists()


def test_a_round_that_is_gone_or_changed_is_named(tmp_path, config):
    settings = config("run", checkpoint={"every": 1, "keep": 10})
    run = tiny.train(tmp_path, settings)
    shard = round_folder(run, 1) / "shard-00000.dtok"
    shutil.copy(round_folder(run, 0) / "shard-00000.dtok", shard)
    path = tiny.write_config(tmp_path, settings)
    arguments = ("--config", path, "--resume-from", run / "checkpoints" / "step-3")
    done = tiny.distill(*arguments, code=(tiny.RUNTIME_FAILURE, tiny.BAD_INPUT))
    assert "round-00001: expected the round in which the checkpoint was saved" in done.stderr
    assert "a checkpoint of at most 2 steps" in done.stderr


def test_an_engine_with_other_weights_is_found_out(tmp_path, config):
    """The second round comes from another model: the run ends with both values, and a repaired engine goes on."""
    other = tiny.make_model(tmp_path / "other", "llama", seed=9, tied=False)
    rollout = f"{sys.executable} {SCRIPT} --prompts {{prompts}} --output {{output}} --model"
    settings = config("run", f"if [ {{round}} = 1 ]; then {rollout} {other}; else {command()} # {{model}}\nfi")
    settings["train"]["steps"] = 4
    done = tiny.distill("--config", tiny.write_config(tmp_path, settings), code=(tiny.RUNTIME_FAILURE, tiny.BAD_INPUT))
    found = re.search(r"round 1: .* (-[0-9.]+) nats in the mean, and the student's own are (-[0-9.]+):", done.stderr)
    assert found and abs(float(found[1]) - float(found[2])) > 0.1 and "onpolicy.max_logprob_gap" in done.stderr
    settings["onpolicy"]["command"] = f"{rollout} {{model}}"
    run = tiny.train(tmp_path, settings, "--resume")
    assert (round_folder(run, 1).parent / "round-00001.replaced").is_dir()
    assert [step for step, _, _ in losses_of(run)] == [1, 2, 3, 4]
