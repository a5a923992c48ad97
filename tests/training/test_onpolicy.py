"""Runs whose data the student writes itself, with a stand-in for the engine."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jobs
import tiny
import token_shard

ENGINE = Path(__file__).with_name("onpolicy_engine.py")
END = 1
MOST = 8  # onpolicy.max_new_tokens
LOGPROBS = r"mean log-probability (-[0-9.]+) nats, the engine's (-[0-9.]+)"
SCRIPT = tiny.REPOSITORY / "scripts" / "rollout_transformers.py"
HTTP = tiny.REPOSITORY / "scripts" / "rollout_http.py"
SERVER = tiny.REPOSITORY / "tests" / "scripts" / "stand_in_server.py"


def command(*arguments):
    words = [sys.executable, ENGINE, "--prompts", "{prompts}", "--output", "{output}", "--vocab", tiny.VOCAB]
    return " ".join(map(str, [*words, *arguments]))


@pytest.fixture(scope="session")
def prompts(tmp_path_factory):
    """Conversations whose prompts have 3 to 12 tokens, no two of them alike."""
    random = np.random.default_rng(11)
    documents = []
    for length in random.integers(3, 13, 40):
        tokens = random.integers(2, tiny.VOCAB, length + 4)
        documents.append((tokens, np.arange(len(tokens)) >= length))
    return tiny.make_shard(tmp_path_factory.mktemp("prompts") / "prompts.dtok", documents)


@pytest.fixture
def config(tmp_path, models, prompts):
    """config(name, command, **onpolicy): rounds of two steps, four sequences in each, all of them on-policy."""
    student, teacher = models["llama"]
    student = Path(shutil.copytree(student, tmp_path / "student"))
    (student / "generation_config.json").write_text(json.dumps({"eos_token_id": END}))

    def build(name, engine=None, train=None, onpolicy=None, **sections):
        config = tiny.base_config(
            tmp_path / name,
            str(student),
            teacher,
            prompts,
            train={"steps": 6, "global_batch_size": 4, "deterministic": tiny.DEVICE == "cuda"} | (train or {}),
            onpolicy={"prompts": prompts, "command": engine or command(), "every": 2, "max_new_tokens": MOST}
            | (onpolicy or {}),
            scheduler={"warmup_steps": 0},
            **sections,
        )
        if config["onpolicy"].get("fraction", 1) == 1:
            del config["data"]["train"]
        return config

    return build


def round_folder(run, number):
    return run / "onpolicy" / f"round-{number:05d}"


def description(run, number):
    return json.loads((round_folder(run, number) / "round.json").read_text())


def completions(run, number):
    return [json.loads(line) for line in (round_folder(run, number) / "completions.jsonl").read_text().splitlines()]


def losses(run):
    return [(record["step"], record["loss"], record["grad_norm"]) for record in tiny.read_metrics(run)[0]]


def mark_of(tmp_path):
    """A word for the command lines of a test's engines; tests that run side by side may have folders of one name."""
    return "mark" + str(tmp_path).replace("/", "-")


def processes_with(mark):
    listed = subprocess.run(["ps", "-ww", "-eo", "args="], capture_output=True, text=True).stdout.splitlines()
    return [line for line in listed if mark in line]


def test_a_round_is_what_the_student_was_asked_for(tmp_path, config):
    run = tiny.train(tmp_path, config("run"))
    asked = []
    for number in range(3):
        lines = completions(run, number)
        documents = token_shard.read_shard(round_folder(run, number) / "shard-00000.dtok")
        assert [line["id"] for line in lines] == list(range(8)) and len(documents) == 8
        for line, document in zip(lines, documents):
            prompt, ids = line["prompt_ids"], line["completion_ids"]
            assert list(document.tokens) == prompt + ids  # nothing after a truncated completion
            assert list(document.in_loss) == [False] * len(prompt) + [True] * len(ids)
            assert (ids[-1] == END) == (line["finish_reason"] == "stop")
            asked.append(tuple(prompt))
        done = description(run, number)
        assert done["request"]["first_step"] == 2 * number and done["request"]["first_prompt"] == 8 * number
        assert done["result"]["completions"] == 8 and done["result"]["truncated"] == 0.25
    assert len(set(asked)) == 24  # no prompt twice
    versions = {description(run, number)["request"]["weight_version"] for number in range(3)}
    assert len(versions) == 3 and not (run / "onpolicy" / "weights").exists()


def test_the_loss_is_the_reverse_kl_on_the_students_own_words(tmp_path, config):
    settings = config("run", onpolicy={"every": 1}, train={"steps": 1})
    run = tiny.train(tmp_path, settings)
    step = tiny.read_metrics(run)[0][0]
    again = config("again")
    again["data"]["eval"] = str(round_folder(run, 0))
    again["data"]["packing"] = "pack"
    again["loss"] = {"divergence": "reverse_kl"}
    del again["onpolicy"]
    report = tiny.evaluate(tmp_path, again)
    assert (
        step["valid_tokens"] == report["valid_tokens"] == sum(len(one["completion_ids"]) for one in completions(run, 0))
    )
    assert step["loss"] == pytest.approx(report["loss"], rel=1e-5)
    assert step["loss"] == pytest.approx(step["reverse_kl"], rel=1e-5)


def test_a_batch_has_its_share_of_on_policy_sequences(tmp_path, config, ragged_shard):
    data = {"train": [{"path": ragged_shard}]}
    mixed = tiny.train(tmp_path, config("mixed", data=data, onpolicy={"fraction": 0.5}))
    own = tiny.train(tmp_path, config("own", train={"global_batch_size": 2}))
    plain = config("plain", data=data, onpolicy={"fraction": 0.5}, train={"global_batch_size": 2})
    del plain["onpolicy"]
    plain = tiny.train(tmp_path, plain)

    def tokens(run):
        return [record["valid_tokens"] for record in tiny.read_metrics(run)[0]]

    assert completions(mixed, 2) and [one["prompt_ids"] for one in completions(mixed, 2)] == [
        one["prompt_ids"] for one in completions(own, 2)
    ]
    assert tokens(mixed) == [a + b for a, b in zip(tokens(own), tokens(plain))]
    first = [tiny.read_metrics(run)[0][0] for run in (mixed, own, plain)]
    expected = sum(one["loss"] * one["valid_tokens"] for one in first[1:]) / first[0]["valid_tokens"]
    assert first[0]["loss"] == pytest.approx(expected, rel=1e-5)  # each with its own loss


@pytest.mark.parametrize("parallel", [{"processes": 2}, {"processes": 2, "shard": 1, "replicate": 2}])
def test_several_ranks_train_as_one_does(tmp_path, config, parallel):
    one = tiny.train(tmp_path, config("one"))
    several = tiny.train(tmp_path, config("several", parallel=parallel))
    for number in range(3):
        assert [line["completion_ids"] for line in completions(one, number)] == [
            line["completion_ids"] for line in completions(several, number)
        ]
    np.testing.assert_allclose(losses(one), losses(several), rtol=2e-5)


def test_completions_fill_sequences_evenly_when_there_are_more(tmp_path, config):
    run = tiny.train(tmp_path, config("run", onpolicy={"completions": 16, "samples": 2}))
    lines = completions(run, 0)
    assert len(lines) == 16
    for first, second in zip(lines[::2], lines[1::2]):
        assert first["prompt_ids"] == second["prompt_ids"] and first["completion_ids"] != second["completion_ids"]
    steps = tiny.read_metrics(run)[0]
    in_round = sum(len(line["completion_ids"]) for line in lines)
    assert sum(step["valid_tokens"] for step in steps[:2]) == in_round  # each once


@pytest.mark.parametrize(
    "fault, says",
    [
        ("crash", ["signal 6", "out of memory", "engine.log"]),
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
def test_a_broken_engine_is_named_and_loses_nothing(tmp_path, config, fault, says):
    """The first round is good, the second one is not; a repaired engine goes on, as if nothing had been wrong."""
    mark = mark_of(tmp_path)
    broken = f"if [ {{round}} = 1 ]; then {command('--fault', fault, '--mark', mark)}; else {command()}; fi"
    settings = config("run", broken, onpolicy={"timeout_s": 2 if fault == "hang" else 600})
    done = tiny.distill("--config", tiny.write_config(tmp_path, settings), code=tiny.RUNTIME_FAILURE)
    for text in says:
        assert text in done.stderr, done.stderr
    assert not processes_with(mark)
    run = Path(settings["run"]["dir"])
    assert jobs.complete_checkpoints(run)[-1].name == "step-2"
    kept = len(completions(run, 1)) if (round_folder(run, 1) / "completions.jsonl").exists() else 0
    settings["onpolicy"]["command"] = command()
    tiny.train(tmp_path, settings, "--resume")
    assert description(run, 1)["result"]["completions"] == 8
    assert kept == 0 or fault == "crash"
    undisturbed = tiny.train(tmp_path, config("undisturbed"))
    assert losses(run) == losses(undisturbed)


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
    found = []  # completions that were there at the next start
    for number, moment in enumerate(moments):
        job = subprocess.Popen(
            [tiny.binary(), "--config", path, *(["--resume"] if number else [])],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=tiny.environment(),
        )
        jobs.until(moment, job)
        job.kill()
        job.wait()
        jobs.until(lambda: not processes_with(mark))
        found.append(sum(map(lines, output)))
    tiny.distill("--config", path, "--resume")
    assert losses(run) == losses(undisturbed)
    log = (run / "log.txt").read_text()
    assert "completions are there already" in log
    for number in range(3):
        assert description(run, number)["request"] == description(undisturbed, number)["request"]
        assert completions(run, number) == completions(undisturbed, number)


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
        job = subprocess.Popen([tiny.binary(), "--config", path, how], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env=tiny.environment())  # fmt: skip
        try:
            job.wait(timeout=random.uniform(0.5, 4))
            break
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
        jobs.until(lambda: not processes_with(mark))
    tiny.distill("--config", path, "--resume")
    assert losses(run) == losses(undisturbed)
    assert not processes_with(mark)


def test_with_staleness_a_round_is_written_while_the_one_before_it_is_trained_on(tmp_path, config):
    """By the student as it was then: rounds 0 and 1 have the weights of the start, round 2 those before round 1."""
    run = tiny.train(tmp_path, config("run", onpolicy={"staleness": 1}))
    versions = [description(run, number)["request"]["weight_version"] for number in range(3)]
    assert versions[0] == versions[1] and versions[2].startswith("step-2-")
    assert [description(run, number)["request"]["first_prompt"] for number in range(3)] == [0, 8, 16]
    assert not (run / "onpolicy" / "weights").exists()


def test_a_stopped_run_goes_on_with_the_round_that_it_was_writing_ahead(tmp_path, config):
    undisturbed = tiny.train(tmp_path, config("undisturbed", onpolicy={"staleness": 1}))
    settings = config("run", command("--slow", 0.1), onpolicy={"staleness": 1})
    path, run = tiny.write_config(tmp_path, settings), Path(settings["run"]["dir"])
    job = subprocess.Popen([tiny.binary(), "--config", path], stdout=subprocess.DEVNULL, env=tiny.environment())
    jobs.until(lambda: (round_folder(run, 1) / "output.jsonl").exists(), job)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=60) == tiny.STOPPED_BY_SIGNAL
    tiny.distill("--config", path, "--resume")
    assert losses(run) == losses(undisturbed)
    assert description(run, 1)["request"] == description(undisturbed, 1)["request"]


def http_settings(config, name, kind, mark, fault=""):
    """A run whose server distill starts."""
    port = tiny.free_port()
    server = f"{sys.executable} {SERVER} --kind {kind} --port {port} --vocab {tiny.VOCAB} --mark {mark}"
    rollout = f"{sys.executable} {HTTP} --url http://127.0.0.1:{port} --model {{model}} --version {{version}}"
    settings = config(name, f"{rollout} --prompts {{prompts}} --output {{output}} --wait 20 --timeout 20")
    settings["onpolicy"]["server"] = f"{server} --fault {fault}" if fault else server
    return settings


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_server_lives_through_all_rounds_and_ends_with_the_run(tmp_path, config, kind):
    mark = mark_of(tmp_path)
    run = tiny.train(tmp_path, http_settings(config, "run", kind, mark))
    assert not processes_with(mark)
    for number in range(3):
        assert len(completions(run, number)) == 8
        log = (round_folder(run, number) / "engine.log").read_text()
        assert f"{kind} has loaded {description(run, number)['request']['weight_version']}" in log


def test_a_server_ends_when_the_run_is_killed(tmp_path, config):
    mark = mark_of(tmp_path)
    settings = http_settings(config, "run", "vllm", mark)
    settings["train"]["steps"] = 1000
    path, run = tiny.write_config(tmp_path, settings), Path(settings["run"]["dir"])
    job = subprocess.Popen([tiny.binary(), "--config", path], stdout=subprocess.DEVNULL, env=tiny.environment())
    jobs.until(lambda: jobs.steps_done(run) >= 1, job)
    assert processes_with(mark)
    job.kill()
    job.wait()
    jobs.until(lambda: not processes_with(mark))


def test_a_server_that_dies_or_keeps_its_weights_is_named(tmp_path, config):
    mark = mark_of(tmp_path)
    dies = tiny.write_config(tmp_path / "dies", http_settings(config, "dies", "sglang", mark, "dies"))
    error = tiny.distill("--config", dies, code=tiny.RUNTIME_FAILURE).stderr
    assert "onpolicy.server ended with exit code 7" in error and "illegal memory access" in error
    stale = tiny.write_config(tmp_path / "stale", http_settings(config, "stale", "sglang", mark, "stale"))
    error = tiny.distill("--config", stale, code=tiny.RUNTIME_FAILURE).stderr
    assert "weight_version: expected step-0-" in error and 'found "default"' in error
    assert not processes_with(mark)


def test_a_signal_ends_the_engine_and_the_run_goes_on_later(tmp_path, config):
    mark = mark_of(tmp_path)
    settings = config("run", command("--slow", 0.3, "--mark", mark))
    path, run = tiny.write_config(tmp_path, settings), Path(settings["run"]["dir"])
    job = subprocess.Popen([tiny.binary(), "--config", path], stdout=subprocess.DEVNULL, env=tiny.environment())
    jobs.until(lambda: (round_folder(run, 0) / "output.jsonl").exists(), job)
    job.send_signal(signal.SIGTERM)
    assert job.wait(timeout=60) == tiny.STOPPED_BY_SIGNAL
    assert not processes_with(mark) and not (run / "onpolicy" / "weights").exists()
    settings["onpolicy"]["command"] = command()
    tiny.train(tmp_path, settings, "--resume")
    assert losses(run) == losses(tiny.train(tmp_path, config("undisturbed")))


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


def test_an_on_policy_phase_follows_a_supervised_one(tmp_path, config, ragged_shard):
    first = config("first", data={"train": [{"path": ragged_shard}]}, onpolicy={"fraction": 0.5}, train={"steps": 3})
    del first["onpolicy"]
    first = tiny.train(tmp_path, first)
    run = tiny.train(tmp_path, config("run"), "--resume-from", first / "checkpoints" / "step-3")
    assert [step for step, _, _ in losses(run)] == [4, 5, 6]
    assert description(run, 0)["request"]["first_step"] == 3 and description(run, 1)["request"]["steps"] == 1


def test_a_replay_repeats_a_step_with_the_rounds_that_are_there(tmp_path, config):
    settings = config("run", "exit 9 # {prompts} {output}")
    good = settings | {"onpolicy": settings["onpolicy"] | {"command": command()}}
    run = tiny.train(tmp_path, good)
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    done = tiny.distill("replay", "--config", tmp_path / "config.yaml", "--step", 4)
    assert losses(run / "replay-4")[-1] == losses(run)[3]
    assert "sample 15: loss" in done.stdout


def test_verify_reads_the_rounds_and_a_round_is_training_data(tmp_path, config):
    run = tiny.train(tmp_path, config("run"))
    said = tiny.distill("verify", run).stdout
    assert said.count("on-policy round, 8 completions") == 3
    again = config(
        "again", onpolicy={"fraction": 0.5}, data={"train": [str(round_folder(run, 0)), str(round_folder(run, 1))]}
    )
    del again["onpolicy"]
    assert tiny.read_metrics(tiny.train(tmp_path, again))[0]
    shard = round_folder(run, 1) / "shard-00000.dtok"
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    assert "round-00001" in tiny.distill("verify", run, code=tiny.BAD_INPUT).stderr


def test_old_rounds_are_removed_but_not_those_of_a_checkpoint(tmp_path, config):
    kept = tiny.train(tmp_path, config("kept", onpolicy={"keep_rounds": 1}, checkpoint={"every": 2, "keep": 1}))
    assert not round_folder(kept, 0).exists() and round_folder(kept, 2).exists()
    needed = tiny.train(tmp_path, config("needed", onpolicy={"keep_rounds": 1}))
    assert round_folder(needed, 0).exists()  # without a checkpoint the run begins with it


def test_transformers_writes_a_round(tmp_path, config):
    """scripts/rollout_transformers.py: the tokens that the student samples, with their log-probabilities."""
    script = f"{sys.executable} {SCRIPT} --model {{model}} --prompts {{prompts}} --output {{output}}"
    settings = config("run", script, onpolicy={"temperature": 1, "weights_dir": str(tmp_path / "weights")})
    settings["train"]["steps"] = 2
    run = tiny.train(tmp_path, settings)
    lines = completions(run, 0)
    assert len(lines) == 8 and not list((tmp_path / "weights").iterdir())
    assert all(len(line["logprobs"]) == len(line["completion_ids"]) for line in lines)
    own, engine = map(float, re.search(LOGPROBS, (run / "log.txt").read_text()).groups())
    assert own == pytest.approx(engine, abs=1e-3)
    first = lines[:2]  # a micro-batch of rank 0
    assert len({tuple(line["completion_ids"]) for line in first}) == 2
    assert description(run, 0)["result"]["entropy"] == pytest.approx(-engine, abs=1.0)


def test_an_engine_with_other_weights_is_found_out(tmp_path, config):
    """The second round comes from another model: the run ends with both values, and a repaired engine goes on."""
    other = tiny.make_model(tmp_path / "other", "llama", seed=9, tied=False)
    rollout = f"{sys.executable} {SCRIPT} --prompts {{prompts}} --output {{output}} --model"
    settings = config("run", f"{rollout} $(if [ {{round}} = 1 ]; then echo {other}; else echo {{model}}; fi)")
    settings["train"]["steps"] = 4
    done = tiny.distill("--config", tiny.write_config(tmp_path, settings), code=(tiny.RUNTIME_FAILURE, tiny.BAD_INPUT))
    found = re.search(r"round 1: .* (-[0-9.]+) nats in the mean, and the student's own are (-[0-9.]+):", done.stderr)
    assert found and abs(float(found[1]) - float(found[2])) > 0.1 and "onpolicy.max_logprob_gap" in done.stderr
    settings["onpolicy"]["command"] = f"{rollout} {{model}}"
    run = tiny.train(tmp_path, settings, "--resume")
    assert (round_folder(run, 1).parent / "round-00001.replaced").is_dir()
    assert [step for step, _, _ in losses(run)] == [1, 2, 3, 4]
