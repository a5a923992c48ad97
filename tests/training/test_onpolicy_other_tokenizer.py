"""On-policy rounds that a teacher with another tokenizer judges: what is learned from them, and what goes wrong."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import event_points
import jobs
import memory_plans
import other_tokenizers
import reference_training
import tiny
from aligned_rounds import (
    END,
    LOGPROBS,
    LOSS,
    RETOKENIZER,
    TEXTS,
    command,
    config_in,
    documents_of,
    off_policy,
    same_documents,
    tokenizer_of,
    write_texts,
)
from onpolicy_runs import (
    TRANSFORMERS,
    completions,
    description,
    http_settings,
    judged,
    killed_at,
    mark_of,
    processes_with,
    round_folder,
)
from run_results import losses_of, weights_of
from token_shards.tokenizer_files import TokenizerFiles


@pytest.fixture
def config(tmp_path, aligned_pair, aligned_prompts):
    return config_in(tmp_path, aligned_pair, aligned_prompts)


@pytest.fixture(scope="module")
def vocabularies(aligned_pair):
    return [other_tokenizers.Vocabulary(folder, {}) for folder in aligned_pair]


def test_a_round_is_what_tokenize_writes_of_the_same_texts(tmp_path, config, aligned_pair):
    """And its rows have the losses of these, bit for bit. Each takes more than half of a sequence."""
    long_texts = write_texts(tmp_path / "long.json", aligned_pair[0], [TEXTS[at] for at in (0, 1, 4)])
    still = {"lr": 1e-20, "weight_decay": 0.0}
    train = {"steps": 8, "global_batch_size": 1, "micro_batch_size": 1}
    own = {"every": 8, "max_new_tokens": 32}
    lengths = {"seq_len": 56, "teacher_seq_len": 56}
    engine = command(texts=long_texts)
    run = tiny.train(tmp_path, config("run", engine, train=train, onpolicy=own, optimizer=still, data=lengths))
    lines, student = completions(run, 0), tokenizer_of(aligned_pair[0])
    assert {line["finish_reason"] for line in lines} == {"stop"}
    records = [
        {"prompt": student.decode(line["prompt_ids"]), "completion": student.decode(line["completion_ids"])}
        for line in lines
    ]
    shard, _ = other_tokenizers.tokenize(*aligned_pair, records, tmp_path / "pairs")
    assert same_documents(documents_of(run, 0), other_tokenizers.documents_of(shard))
    again = off_policy(config("again", train=train, optimizer=still, data=lengths))
    again["data"]["train"] = [{"path": shard}]
    names = ("loss", "hard", "soft", "teacher_ce", "reverse_kl", "span_loss", "valid_tokens", "grad_norm")

    def rows(run):
        return sorted(json.dumps([step[name] for name in names]) for step in tiny.read_metrics(run)[0])

    assert rows(run) == rows(tiny.train(tmp_path, again))


@pytest.mark.parametrize("loss", [{}, {"divergence": "jsd", "beta": 0.4, "span_starts": True, "temperature": 1.5}])
def test_training_follows_a_reference_in_plain_pytorch(tmp_path, config, vocabularies, loss):
    settings = config("run", onpolicy={"every": 1}, train={"steps": 4}, onpolicy_loss=loss)
    run = tiny.train(tmp_path, settings)
    batches = [documents_of(run, number) for number in range(4)]
    reference = settings | {"loss": settings["onpolicy_loss"]}
    expected, model = other_tokenizers.train(reference, batches, *vocabularies)
    for step, sums in zip(tiny.read_metrics(run)[0], expected, strict=True):
        for name, value in sums.items():
            assert step[name] == pytest.approx(value, rel=2e-4, nan_ok=True), f"step {step['step']}: {name}"
    trained = tiny.load_weights(run / "model")
    assert tiny.relative_difference(trained, {name: model.state_dict()[name] for name in trained}) < 1e-4


def test_each_token_has_its_judgement_where_the_two_are_compared(tmp_path, config, aligned_pair, vocabularies):
    run = tiny.train(tmp_path, config("run", train={"steps": 2}, run={"tensorboard": True}))
    models = [reference_training.load(folder).eval() for folder in aligned_pair]
    documents, made = documents_of(run, 0), judged(run, 0)
    compared = 0
    for one in made["completions"]:
        document = documents[one["document"]]
        sums = other_tokenizers.document_losses(*models, document, *vocabularies, LOSS)
        known = [value for value in one["reverse_kl"] if value is not None]
        assert len(one["ids"]) == sums["tokens"] and len(known) == sums["compared"]
        assert sum(known) == pytest.approx(float(sums["reverse_kl"]), rel=2e-4)
        assert sum(one["logprob"]) == pytest.approx(-float(sums["hard"]), rel=2e-4)
        assert sum(one["loss"]) == pytest.approx(float(sums["loss"]), rel=2e-4)
        compared += len(known)
    assert 0 < compared < made["tokens"]
    assert sum(position.get("compared", position["tokens"]) for position in made["positions"]) == compared
    result = description(run, 0)["result"]
    assert result["judged"]["tokens"] == made["tokens"]
    assert result["judged"]["reverse_kl"] == pytest.approx(
        sum(v for one in made["completions"] for v in one["reverse_kl"] if v is not None) / compared, abs=1e-5
    )
    assert result["seconds"].keys() == {"weights", "engine", "retokenize", "shard", "check"}
    assert result["alignment"]["teacher_tokens"] == sum(int(document[3].sum()) for document in documents)
    assert "both have a boundary at" in (run / "log.txt").read_text()
    points = event_points.shown(event_points.reader(run))
    assert event_points.difference(points, event_points.recorded(run)) == ""
    assert points["round/alignment/teacher_tokens"][0][-1] == result["alignment"]["teacher_tokens"]
    tiny.distill("verify", run)
    assert "the teacher's tokens" in (run / "report.html").read_text()


def test_any_tokens_can_be_judged(tmp_path, config, aligned_pair):
    """Random tokens, most of which are no text: byte by byte in the teacher's tokens, without the last character."""
    run = tiny.train(tmp_path, config("run", command(), onpolicy={"max_bad": 0.5}))
    own, its = (tokenizer_of(folder) for folder in aligned_pair)
    specials = range(3)
    byte_of = {c: i for i, c in enumerate(other_tokenizers._byte_characters())}

    def text(tokenizer, ids):
        return bytes(byte_of[c] for one in ids if one not in specials for c in tokenizer.id_to_token(one))

    left_off = 0
    for number in range(3):
        lines, in_round = completions(run, number), 0
        for line, (tokens, in_loss, its_tokens, its_in_loss) in zip(lines, documents_of(run, number), strict=True):
            assert tokens[in_loss].tolist() == line["completion_ids"]
            assert its_tokens[its_in_loss].tolist() == line["teacher_ids"]
            assert text(own, line["completion_ids"]) == text(its, line["teacher_ids"])
            in_round += sum(line["left_off"].values())
        assert sum(description(run, number)["result"]["left_off"].values()) == in_round
        left_off += in_round
    assert left_off > 0
    assert "left off at the ends of completions" in (run / "log.txt").read_text()


def test_a_completion_that_the_teachers_sequence_cannot_hold_is_cut_where_both_have_a_boundary(tmp_path, config):
    settings = config("run", command(), data={"teacher_seq_len": 38}, onpolicy={"max_new_tokens": 24, "max_bad": 0.5})
    run = tiny.train(tmp_path, settings)
    for number in range(3):
        assert all(len(document[2]) <= 38 for document in documents_of(run, number))
    cut = sum(description(run, number)["result"]["left_off"]["room"] for number in range(3))
    assert cut > 0 and "raise data.teacher_seq_len, 38" in (run / "log.txt").read_text()
    steps = tiny.read_metrics(run)[0]
    kept = sum(len(line["completion_ids"]) for line in completions(run, 0))
    assert sum(step["valid_tokens"] for step in steps[:2]) == kept


@pytest.mark.parametrize("ranks, staleness", [(2, 0), (2, 1)])
def test_several_ranks_train_as_one_does(tmp_path, config, ranks, staleness):
    tiny.need_devices(ranks)
    own = {"staleness": staleness}
    one = tiny.train(tmp_path, config("one", onpolicy=own))
    several = tiny.train(tmp_path, config("several", onpolicy=own, parallel={"processes": ranks}))
    for number in range(3):
        assert same_documents(documents_of(one, number), documents_of(several, number))
    np.testing.assert_allclose(losses_of(one), losses_of(several), rtol=2e-5)


@pytest.mark.parametrize("staleness", [0, 1])
def test_killed_runs_go_on_as_if_nothing_had_been(tmp_path, config, staleness):
    """Killed while the engine writes, while the completions are rewritten, and while steps run. What is left off is
    counted as it is in a run that nobody disturbs, and no command outlives the run."""
    own = {"staleness": staleness, "max_bad": 0.5}
    undisturbed = tiny.train(tmp_path, config("undisturbed", command(), onpolicy=own))
    mark = mark_of(tmp_path)
    slow = f"sleep 0.5; {RETOKENIZER} # {mark}\nsleep 0.5 # {mark}"
    engine = command("--slow", 0.05, "--mark", mark)
    settings = config("run", engine, slow, onpolicy=own, checkpoint={"every": 1, "async": False})
    path, run = tiny.write_config(tmp_path, settings), Path(settings["run"]["dir"])

    def exists(number, name):
        return lambda: (round_folder(run, number) / name).exists()

    moments = [
        exists(0, "output.jsonl"),
        exists(0, "retokenize.jsonl"),
        exists(0, "retokenized.jsonl"),
        lambda: jobs.steps_done(run) >= 1,
        exists(1, "retokenize.jsonl"),
        exists(2, "retokenized.jsonl"),
    ]
    killed_at(moments, path, mark)
    tiny.distill("--config", path, "--resume")
    assert losses_of(run) == losses_of(undisturbed)
    assert weights_of(run) == weights_of(undisturbed)
    for number in range(3):
        assert completions(run, number) == completions(undisturbed, number)
        assert judged(run, number) == judged(undisturbed, number)
        assert description(run, number)["result"]["left_off"] == description(undisturbed, number)["result"]["left_off"]


def test_with_staleness_the_completions_are_rewritten_while_the_round_before_is_trained_on(tmp_path, config):
    """The command notes how many steps are done when it begins. Long sequences make steps slower than the engine."""
    noted = tmp_path / "noted"
    metrics = tmp_path / "run" / "run" / "metrics.jsonl"
    note = f"case {{completions}} in *round-00001*) grep -c grad_norm {metrics} > {noted};; esac"
    settings = config(
        "run",
        retokenize=f"{note}; {RETOKENIZER}",
        onpolicy={"staleness": 1, "every": 200, "completions": 1600},
        train={"steps": 201, "global_batch_size": 8, "micro_batch_size": 8},
        data={"seq_len": 256, "teacher_seq_len": 256},
    )
    run = tiny.train(tmp_path, settings)
    assert metrics == run / "metrics.jsonl"
    assert int(noted.read_text() or 0) < 190


OTHER_TEXTS = (
    f"{sys.executable} -c 'import sys, json; lines = [json.loads(x) for x in open(sys.argv[1])]; "
    'open(sys.argv[2], "w").write("".join(json.dumps({{"id": x["id"], "tokens": len(x["completion_ids"]), '
    '"teacher_ids": [7]}}) + chr(10) for x in lines))\' {completions} {output}'
)
UNREAD = "# {completions} {output}"
FAULTS = {
    "fails": (f"echo no room >&2; exit 3 {UNREAD}", ["onpolicy.retokenize ended with exit code 3", "no room"]),
    "silent": (f"true {UNREAD}", ["has not written the file of {output}", "retokenized.jsonl: no such file"]),
    "empty": ("touch {output} # {completions}", ["8 of 8 completions", "no good line with the teacher's tokens"]),
    "hangs": (f"sleep 100 {UNREAD}", ["onpolicy.retokenize has not ended within 3 s"]),
    "other": (OTHER_TEXTS, ["retokenized.jsonl:1: completion 0: the texts of student and teacher differ"]),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, aligned_pair, aligned_prompts):
    folder = tmp_path_factory.mktemp("undisturbed")
    return tiny.train(folder, config_in(folder, aligned_pair, aligned_prompts)("undisturbed"))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_retokenizer_is_named_and_loses_nothing(tmp_path, config, undisturbed, fault):
    """In the second round; a repaired one goes on with the engine's completions, as if nothing had been wrong."""
    broken, says = FAULTS[fault]
    switched = f"case {{completions}} in *round-00001*) {broken}\n;; *) {RETOKENIZER}\n;; esac"
    settings = config("run", retokenize=switched, onpolicy={"timeout_s": 3 if fault == "hangs" else 600})
    tiny.expect_failure(tmp_path, settings, says)
    run = Path(settings["run"]["dir"])
    assert jobs.complete_checkpoints(run)[-1].name == "step-2"
    settings["onpolicy"] |= {"retokenize": RETOKENIZER, "timeout_s": 600}
    if fault not in ("empty", "other"):  # there the engine is asked again, since its completions seem unusable
        engine = settings["onpolicy"]["command"]
        settings["onpolicy"]["command"] = f"if [ {{round}} = 1 ]; then exit 9; else {engine}; fi"
    tiny.train(tmp_path, settings, "--resume")
    assert losses_of(run) == losses_of(undisturbed)


def test_what_is_missing_is_refused_before_the_first_step(tmp_path, config, aligned_pair, aligned_prompts):
    line = (
        "retokenize: .venv/bin/python scripts/retokenize_completions.py --completions {completions} --output {output}"
    )
    tiny.expect_refused(tmp_path / "none", config("none", retokenize=""), ["onpolicy.retokenize", line])
    wrong = config("wrong", retokenize="x {completions} {output} {model}")
    tiny.expect_refused(tmp_path / "wrong", wrong, ["placeholders of {completions}, {output}", "{model}"])
    shard_file = other_tokenizers.shard_file
    plain = shard_file.Shard(shard_file.ShardSpec(330, TokenizerFiles.load(Path(aligned_pair[0])).hash))
    plain.add(other_tokenizers.documents_of(aligned_prompts)[0][0], None)
    plain.write(tmp_path / "plain.dtok")
    lacking = config("lacking", onpolicy={"prompts": str(tmp_path / "plain.dtok")})
    tiny.expect_refused(tmp_path / "lacking", lacking, ["plain.dtok: document 0: expected a text in the tokens of"])


def test_held_out_prompts_and_the_teachers_own_prompts(tmp_path, config, aligned_pair, questions):
    """Conversations whose turns end with other tokens; the teacher has another prompt, which knows the answer."""
    records = [
        {
            "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": "x"}],
            "teacher_messages": [{"role": "user", "content": f"{question} Say yes."}],
        }
        for question in questions
    ]
    folders = [
        other_tokenizers.tokenize(*aligned_pair, part, tmp_path / name, "--prompts")[0]
        for name, part in (("train", records[:15]), ("held-out", records[15:]))
    ]
    lengths, pairs = {"seq_len": 160, "teacher_seq_len": 192}, {"token_pairs": ["<|im_end|>=<|eot|>"]}
    sections = {"train": {"steps": 4}, "data": lengths, "eval": {"every": 2, "at_start": True}, "teacher": pairs}
    run = tiny.train(tmp_path, config("run", onpolicy={"prompts": folders[0], "eval_prompts": folders[1]}, **sections))
    assert [line["round"]["held_out"]["completions"] for line in tiny.read_rounds(run)] == [5, 5]
    its = tokenizer_of(aligned_pair[1])
    for part in (round_folder(run, 0), round_folder(run, 0) / "held_out"):
        for tokens, in_loss, its_tokens, its_in_loss in other_tokenizers.documents_of(part):
            assert "Say yes." in its.decode(its_tokens[~its_in_loss].tolist())
            assert "Say yes." not in tokenizer_of(aligned_pair[0]).decode(tokens[~in_loss].tolist())
            assert its.decode(its_tokens[its_in_loss].tolist()) in TEXTS or not in_loss[-1] or tokens[-1] != END
    held_out = description(run, 0)["result"]["held_out"]
    again = config("again", data=lengths | {"eval": str(round_folder(run, 0) / "held_out")}, teacher=pairs)
    report = tiny.evaluate(tmp_path, off_policy(again))
    assert report["valid_tokens"] == held_out["tokens"]
    assert report["reverse_kl"] == pytest.approx(held_out["reverse_kl"], rel=1e-5)


def test_texts_are_cut_at_the_same_byte_in_both(tmp_path, config, aligned_pair):
    """The prompt of a text is its first half, up to a boundary that both have."""
    paragraphs = (tiny.REPOSITORY / "docs/ranks.md").read_text().split("\n\n")
    records = [{"text": one} for one in paragraphs if 60 < len(one) < 600]
    shard, _ = other_tokenizers.tokenize(*aligned_pair, records, tmp_path / "texts", "--part-tokens", "32")
    run = tiny.train(tmp_path, config("run", onpolicy={"prompts": shard}))
    own, its = (tokenizer_of(folder) for folder in aligned_pair)
    for number in range(3):
        for tokens, in_loss, its_tokens, its_in_loss in documents_of(run, number):
            prompt = own.decode(tokens[~in_loss].tolist())
            assert len(prompt) > 3 and prompt == its.decode(its_tokens[~its_in_loss].tolist())


def test_a_replay_repeats_a_step(tmp_path, config):
    run = tiny.train(tmp_path, config("run"))
    without = config("run", "exit 9 # {prompts} {output}", "exit 9 # {completions} {output}")
    tiny.distill("replay", "--config", tiny.write_config(tmp_path, without), "--step", 4)
    assert losses_of(run / "replay-4")[-1] == losses_of(run)[3]


def test_transformers_and_servers_need_not_know_of_it(tmp_path, config):
    lossy = {"max_bad": 0.5}
    run = tiny.train(tmp_path, config("run", TRANSFORMERS, train={"steps": 2}, onpolicy=lossy))
    own, engine = map(float, re.search(LOGPROBS, (run / "log.txt").read_text()).groups())
    assert own == pytest.approx(engine, abs=1e-3)
    assert all(line["teacher_ids"] for line in completions(run, 0))
    mark = mark_of(tmp_path)
    settings = http_settings(lambda name, engine: config(name, engine, onpolicy=lossy), "http", "sglang", mark)
    served = tiny.train(tmp_path, settings)
    assert all(line["teacher_ids"] for line in completions(served, 2))
    assert not processes_with(mark)


def test_memory_is_what_the_plan_says(tmp_path, config):
    report = memory_plans.profile(tmp_path, config("run"), "--steps", 2)  # and says nothing of the rounds
    memory_plans.check_peaks(report, 1.25)


def test_the_example_passes_a_dry_run_on_tiny_models(tmp_path, aligned_pair, aligned_prompts, questions):
    example = tiny.REPOSITORY / "configs" / "onpolicy_qwen3_from_llama3.yaml"
    assert "alignment: bytes" in example.read_text() and "retokenize: .venv/bin/python" in example.read_text()
    student, teacher = aligned_pair
    sets = [f"student.path={student}", f"teacher.path={teacher}", "teacher.token_pairs=[<|im_end|>=<|eot|>]"]
    records = [{"prompt": question, "completion": "Yes."} for question in questions]
    sets += [f"data.eval={other_tokenizers.tokenize(*aligned_pair, records, tmp_path / 'eval')[0]}"]
    sets += [f"onpolicy.prompts={aligned_prompts}", "onpolicy.max_new_tokens=16"]
    sets += [
        "data.seq_len=48",
        "data.teacher_seq_len=48",
        "train.device=cpu",
        "train.dtype=float32",
        f"run.dir={tmp_path / 'run'}",
    ]
    tiny.distill("--config", example, "--dry-run", *(part for one in sets for part in ("--set", one)))
    assert not (tmp_path / "run").exists()
