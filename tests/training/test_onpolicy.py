"""Runs whose data the student writes itself: their rounds, what is learned from them, and what is known of them."""

import json
import re

import numpy as np
import pytest
import torch
import transformers

import event_points
import tiny
import token_shard
from onpolicy_runs import END, TRANSFORMERS, command, completions, config_in, description, judged, round_folder
from run_results import losses_of

LOGPROBS = r"mean log-probability (-[0-9.]+) nats, the engine's (-[0-9.]+)"


@pytest.fixture
def config(tmp_path, models, onpolicy_prompts):
    return config_in(tmp_path, models, onpolicy_prompts)


@pytest.fixture(scope="session")
def held_out_prompts(tmp_path_factory):
    """Five documents without any token in the loss: prompts as a whole."""
    random = np.random.default_rng(12)
    documents = [(random.integers(2, tiny.VOCAB, length), np.zeros(length, bool)) for length in (3, 9, 5, 7, 4)]
    return tiny.make_shard(tmp_path_factory.mktemp("held-out") / "held-out.dtok", documents)


def test_a_round_is_what_the_student_was_asked_for(undisturbed_run):
    run, asked = undisturbed_run, []
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


def token_judgement(student, teacher, prompt, ids):
    """Of each token of a completion, by transformers in fp32: log-probability, both KLs, entropy, agreement."""
    logs = []
    for folder in (student, teacher):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1, : tiny.VOCAB]
        logs.append(torch.log_softmax(logits.double(), -1))
    q, p = logs
    return {
        "logprob": q.gather(1, torch.tensor(ids)[:, None])[:, 0],
        "forward_kl": (p.exp() * (p - q)).sum(-1),
        "reverse_kl": (q.exp() * (q - p)).sum(-1),
        "entropy": -(q.exp() * q).sum(-1),
        "agrees": (p.argmax(-1) == q.argmax(-1)).double(),
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_token_has_the_judgement_that_transformers_computes(tmp_path, config, ranks):
    settings = config("run", parallel={"processes": ranks}, train={"steps": 2})
    run = tiny.train(tmp_path, settings)
    made, lines = judged(run, 0), completions(run, 0)
    samples = ranks * settings["train"]["micro_batch_size"]
    assert len(made["completions"]) == samples
    expected = [
        token_judgement(tmp_path / "student", settings["teacher"]["path"], line["prompt_ids"], line["completion_ids"])
        for line in lines
    ]
    for one in made["completions"]:
        assert one["prompt_ids"] == lines[one["document"]]["prompt_ids"]
        assert one["ids"] == lines[one["document"]]["completion_ids"]
        for name, values in expected[one["document"]].items():
            np.testing.assert_allclose(one[name], values, atol=2e-5 if tiny.DEVICE == "cpu" else 2e-3, err_msg=name)
        np.testing.assert_allclose(one["loss"], one["reverse_kl"], atol=2e-6)
    # By position, and in the mean: over all of these tokens.
    for position in made["positions"]:
        assert position["end"] == position["begin"] + 1
        own = [one for one in made["completions"] if len(one["ids"]) > position["begin"]]
        assert position["tokens"] == len(own)
        for name, mean in (("reverse_kl", "reverse_kl"), ("agrees", "agreement")):
            assert position[mean] == pytest.approx(np.mean([one[name][position["begin"]] for one in own]), abs=1e-5)
    means = description(run, 0)["result"]["judged"]
    tokens = np.concatenate([one["reverse_kl"] for one in made["completions"]])
    assert means["tokens"] == made["tokens"] == len(tokens)
    assert means["reverse_kl"] == pytest.approx(tokens.mean(), abs=1e-5)
    (recorded,) = tiny.read_rounds(run)
    assert recorded["step"] == 0 and recorded["round"]["judged"] == {k: v for k, v in means.items() if k != "xxh3"}
    assert recorded["round"]["completions"] == 8 and recorded["round"]["seconds"].keys() == {
        "weights",
        "engine",
        "shard",
        "check",
    }


def held_out_settings(config, name, shard, engine=None, **more):
    """The student's own words on held-out prompts: at the start and after every second step, the others' rounds too."""
    own = {"eval_prompts": shard, "eval_temperature": 0.5} | more.pop("onpolicy", {})
    return config(name, engine, onpolicy=own, eval={"every": 2, "at_start": True}, **more)


def held_out_numbers(run):
    return [(line["step"], line["round"]["held_out"]) for line in tiny.read_rounds(run) if "held_out" in line["round"]]


def test_held_out_prompts_are_evaluated_and_never_trained_on(tmp_path, config, undisturbed_run, held_out_prompts):
    run = tiny.train(tmp_path, held_out_settings(config, "run", held_out_prompts))
    assert losses_of(run) == losses_of(undisturbed_run)
    found = held_out_numbers(run)
    assert [step for step, _ in found] == [0, 2, 4]
    shards = [round_folder(run, number) / "held_out" / "shard-00000.dtok" for number in range(3)]
    for number in range(3):
        trained = token_shard.read_shard(round_folder(run, number) / "shard-00000.dtok")
        held_out = token_shard.read_shard(shards[number])
        assert len(trained) == 8 and len(held_out) == 5 == found[number][1]["completions"]
        texts = [list(document.tokens) for document in held_out]
        assert texts == [list(document.tokens) for document in token_shard.read_shard(shards[0])]  # prompts and seeds
        starts = {tuple(text[:3]) for text in texts}
        assert starts.isdisjoint({tuple(document.tokens[:3]) for document in trained})
        asked = [json.loads(line) for line in (round_folder(run, number) / "requests.jsonl").read_text().splitlines()]
        assert [line["temperature"] for line in asked] == [1.0] * 8 + [0.5] * 5
        assert description(run, number)["result"]["held_out"]["reverse_kl"] == found[number][1]["reverse_kl"]
    again = config("again", eval={}, data={"eval": str(shards[0].parent), "packing": "pack"})
    again["loss"] = {"divergence": "reverse_kl"}
    del again["onpolicy"]
    report = tiny.evaluate(tmp_path, again)
    assert report["valid_tokens"] == found[0][1]["tokens"]
    assert found[0][1]["reverse_kl"] == pytest.approx(report["loss"], rel=1e-5)
    assert (
        "tokens that the student has written for held-out prompts: KL to the teacher" in (run / "log.txt").read_text()
    )
    tiny.distill("verify", run)
    shards[1].write_bytes(shards[0].read_bytes()[:-4] + b"\1\1\1\1")
    assert "held_out" in tiny.distill("verify", run, code=tiny.BAD_INPUT).stderr


def test_held_out_numbers_of_a_resumed_run_and_of_two_ranks_are_the_same(tmp_path, config, held_out_prompts):
    undisturbed = held_out_numbers(tiny.train(tmp_path, held_out_settings(config, "undisturbed", held_out_prompts)))
    broken = f"if [ {{round}} = 1 ]; then {command('--fault', 'crash')}; else {command()}; fi"
    settings = held_out_settings(config, "run", held_out_prompts, broken)
    tiny.distill("--config", tiny.write_config(tmp_path, settings), code=tiny.RUNTIME_FAILURE)
    settings["onpolicy"]["command"] = command()
    assert held_out_numbers(tiny.train(tmp_path, settings, "--resume")) == undisturbed
    ranks = held_out_settings(config, "ranks", held_out_prompts, parallel={"processes": 2})
    for (step, own), (expected_step, expected) in zip(held_out_numbers(tiny.train(tmp_path, ranks)), undisturbed):
        assert step == expected_step and own["tokens"] == expected["tokens"]
        assert own["reverse_kl"] == pytest.approx(expected["reverse_kl"], rel=2e-5)


def test_held_out_prompts_that_are_trained_on_are_refused(tmp_path, config, onpolicy_prompts):
    settings = held_out_settings(config, "run", onpolicy_prompts)
    tiny.expect_refused(tmp_path / "run", settings, ["onpolicy.eval_prompts", "in both"])


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
def test_several_ranks_train_as_one_does(tmp_path, config, undisturbed_run, parallel):
    several = tiny.train(tmp_path, config("several", parallel=parallel))
    for number in range(3):
        assert [line["completion_ids"] for line in completions(undisturbed_run, number)] == [
            line["completion_ids"] for line in completions(several, number)
        ]
    np.testing.assert_allclose(losses_of(undisturbed_run), losses_of(several), rtol=2e-5)


def test_completions_fill_sequences_evenly_when_there_are_more(tmp_path, config):
    run = tiny.train(tmp_path, config("run", onpolicy={"completions": 16, "samples": 2}))
    lines = completions(run, 0)
    assert len(lines) == 16
    for first, second in zip(lines[::2], lines[1::2]):
        assert first["prompt_ids"] == second["prompt_ids"] and first["completion_ids"] != second["completion_ids"]
    steps = tiny.read_metrics(run)[0]
    in_round = sum(len(line["completion_ids"]) for line in lines)
    assert sum(step["valid_tokens"] for step in steps[:2]) == in_round  # each once


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_state_leaves_the_device_in_the_engines_turn_and_comes_back(tmp_path, config, undisturbed_run, ranks):
    """The losses are those of a run whose state stays. Rounds before, within and after checkpoints."""
    more = {"parallel": {"processes": ranks}, "checkpoint": {"every": 1}}
    stays = (
        undisturbed_run if ranks == 1 else tiny.train(tmp_path, config("stays", onpolicy={"offload": "none"}, **more))
    )
    moves = tiny.train(tmp_path, config("moves", onpolicy={"offload": "all"}, **more))
    assert losses_of(moves) == losses_of(stays)
    log = (moves / "log.txt").read_text()
    assert len(re.findall(r"the engine's turn: [0-9.]+ [KM]iB of the state are in host memory", log)) == 3
    assert "the device while the engine writes: " in log and "of the state in host memory" in log
    assert "in host memory" not in (stays / "log.txt").read_text()
    failing = config("failing", "exit 3 # {prompts} {output}", onpolicy={"offload": "all"}, train={"steps": 2}, **more)
    assert (
        "exit code 3"
        in tiny.distill("--config", tiny.write_config(tmp_path, failing), code=tiny.RUNTIME_FAILURE).stderr
    )


def test_the_plan_says_what_the_device_has_for_the_engine(tmp_path, config):
    def plan(code, **own):
        settings = config("run", onpolicy=own, memory={"machine": "H100-SXM"})
        settings["train"]["device"] = "cuda"
        return tiny.plan(tmp_path, settings, code=code)

    free = plan(tiny.SUCCESS, engine_gib=1)
    turn, device = free["engine_turn"], free["bytes"]["device_available"]
    assert turn["moved"] == free["bytes"]["host_engine"] == 0 and turn["held"] + turn["left"] == device
    moved = plan(tiny.SUCCESS, offload="all")
    assert turn["held"] - moved["engine_turn"]["held"] == pytest.approx(moved["engine_turn"]["moved"], rel=0.01)
    assert moved["bytes"]["host_engine"] == moved["engine_turn"]["moved"] > 100_000
    between = (turn["left"] + moved["engine_turn"]["left"]) / 2 / 2**30
    assert plan(tiny.SUCCESS, engine_gib=between)["engine_turn"] == moved["engine_turn"]
    full = plan(tiny.DOES_NOT_FIT, engine_gib=between, offload="none")
    assert not full["fits"] and full["engine_turn"] == turn
    assert "engine_turn" not in plan(tiny.SUCCESS, staleness=1)


def test_tensorboard_has_the_rounds_after_a_resumption_too(tmp_path, config):
    settings = config("run", run={"tensorboard": True}, train={"steps": 4})
    tiny.train(tmp_path, settings)
    settings["train"]["steps"] = 6
    run = tiny.train(tmp_path, settings, "--resume")
    assert [line["step"] for line in tiny.read_rounds(run)] == [0, 2, 4]
    points = event_points.shown(event_points.reader(run))
    assert event_points.difference(points, event_points.recorded(run)) == ""
    assert [step for step, _, _ in points["round/judged/reverse_kl"]] == [0, 2, 4]


def test_with_staleness_a_round_is_written_while_the_one_before_it_is_trained_on(tmp_path, config):
    """By the student as it was then: rounds 0 and 1 have the weights of the start, round 2 those before round 1."""
    run = tiny.train(tmp_path, config("run", onpolicy={"staleness": 1}))
    versions = [description(run, number)["request"]["weight_version"] for number in range(3)]
    assert versions[0] == versions[1] and versions[2].startswith("step-2-")
    assert [description(run, number)["request"]["first_prompt"] for number in range(3)] == [0, 8, 16]
    assert not (run / "onpolicy" / "weights").exists()


def test_an_on_policy_phase_follows_a_supervised_one(tmp_path, config, ragged_shard):
    first = config("first", data={"train": [{"path": ragged_shard}]}, onpolicy={"fraction": 0.5}, train={"steps": 3})
    del first["onpolicy"]
    first = tiny.train(tmp_path, first)
    run = tiny.train(tmp_path, config("run"), "--resume-from", first / "checkpoints" / "step-3")
    assert [step for step, _, _ in losses_of(run)] == [4, 5, 6]
    assert description(run, 0)["request"]["first_step"] == 3 and description(run, 1)["request"]["steps"] == 1


def test_a_replay_repeats_a_step_with_the_rounds_that_are_there(tmp_path, config):
    settings = config("run", "exit 9 # {prompts} {output}")
    good = settings | {"onpolicy": settings["onpolicy"] | {"command": command()}}
    run = tiny.train(tmp_path, good)
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    done = tiny.distill("replay", "--config", tmp_path / "config.yaml", "--step", 4)
    assert losses_of(run / "replay-4")[-1] == losses_of(run)[3]
    assert "sample 15: loss" in done.stdout


def test_the_teacher_is_captured_on_the_rounds_of_an_earlier_run(tmp_path, config, undisturbed_run):
    """`distill capture` stores the teacher's predictions for the student's words, and a run without the teacher trains
    on them as one with it does."""
    rounds = [str(round_folder(undisturbed_run, number)) for number in range(2)]
    online = config("online", onpolicy={"fraction": 0.5}, data={"train": rounds, "packing": "pack"}, train={"steps": 3})
    del online["onpolicy"]
    online["loss"] = {"divergence": "reverse_kl", "hard_weight": 0.0}
    cache = tmp_path / "cache"
    tiny.distill("capture", "--config", tiny.write_config(tmp_path, online), "--set", f"teacher.cache={cache}")
    assert "every checksum fits" in tiny.distill("verify", cache).stdout
    offline = json.loads(json.dumps(online)) | {"teacher": {"source": "cache", "cache": str(cache)}}
    offline["run"]["dir"] = str(tmp_path / "offline" / "run")
    runs = [tiny.train(tmp_path, settings) for settings in (offline, online)]
    np.testing.assert_allclose(losses_of(runs[0]), losses_of(runs[1]), rtol=1e-5)


def test_verify_reads_the_rounds_and_a_round_is_training_data(tmp_path, config):
    run = tiny.train(tmp_path, config("run"))
    said = tiny.distill("verify", run).stdout
    assert said.count("on-policy round, 8 completions") == 3
    again = config(
        "again", onpolicy={"fraction": 0.5}, data={"train": [str(round_folder(run, 0)), str(round_folder(run, 1))]}
    )
    del again["onpolicy"]
    assert tiny.read_metrics(tiny.train(tmp_path, again))[0]
    for name in ("shard-00000.dtok", "judged.json"):
        file = round_folder(run, 1) / name
        good = file.read_bytes()
        file.write_bytes(good[:-3] + bytes([good[-3] ^ 1]) + good[-2:])
        assert f"round-00001/{name}" in tiny.distill("verify", run, code=tiny.BAD_INPUT).stderr
        file.write_bytes(good)


def test_old_rounds_are_removed_but_not_those_of_a_checkpoint(tmp_path, config):
    kept = tiny.train(tmp_path, config("kept", onpolicy={"keep_rounds": 1}, checkpoint={"every": 2, "keep": 1}))
    assert not round_folder(kept, 0).exists() and round_folder(kept, 2).exists()
    needed = tiny.train(tmp_path, config("needed", onpolicy={"keep_rounds": 1}))
    assert round_folder(needed, 0).exists()  # without a checkpoint the run begins with it


def test_transformers_writes_a_round(tmp_path, config):
    """scripts/rollout_transformers.py: the tokens that the student samples, with their log-probabilities."""
    settings = config("run", TRANSFORMERS, onpolicy={"temperature": 1, "weights_dir": str(tmp_path / "weights")})
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


def test_an_engine_gets_the_adapters_in_the_weights(tmp_path, config):
    """Adapters that have learned a lot: the base alone would have other log-probabilities."""
    settings = config("run", TRANSFORMERS, optimizer={"lr": 0.05}, onpolicy={"every": 3, "max_logprob_gap": 0})
    settings["student"]["lora"] = {"rank": 4, "alpha": 16}
    run = tiny.train(tmp_path, settings)
    assert len(completions(run, 1)) == 12
    gaps = [abs(float(own) - float(engine)) for own, engine in re.findall(LOGPROBS, (run / "log.txt").read_text())]
    assert len(gaps) == 2 and max(gaps) < 1e-3
    assert losses_of(run)[-1][1] < 0.9 * losses_of(run)[0][1]
