"""On-policy rounds that a teacher with another tokenizer judges: what is learned from them, and what goes wrong."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import event_points
import jobs
import other_tokenizers
import reference_training
import tiny
from onpolicy_runs import (
    ENGINE,
    TRANSFORMERS,
    completions,
    description,
    http_settings,
    judged,
    losses,
    mark_of,
    processes_with,
    round_folder,
)
from run_results import weights_of
from test_memory_plan import UNPLANNED

END = 0  # of both
MOST = 16  # onpolicy.max_new_tokens
RETOKENIZE = tiny.REPOSITORY / "scripts" / "retokenize_completions.py"
LOSS = {"divergence": "reverse_kl", "hard_weight": 0.0, "soft_weight": 1.0, "span_weight": 1.0}
TEXTS = [
    "The ranks wait for each other, and a token ends.",
    "a shard has 🙂 and naïve documents",
    "memory of the plan\n\nand more",
    "one",
    "It is read by the teacher: sequences of tokens.",
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    student, teacher = other_tokenizers.make_pair(tmp_path_factory.mktemp("pair"))
    (Path(student) / "generation_config.json").write_text(json.dumps({"eos_token_id": END}))
    return student, teacher


@pytest.fixture(scope="module")
def questions():
    lines = (tiny.REPOSITORY / "docs/ranks.md").read_text().split(". ")
    return [line.strip()[:24] for line in lines if len(line) > 30][:20]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory, pair, questions):
    """Prompts of texts in the tokens of both models."""
    records = [{"prompt": question, "completion": "x"} for question in questions]
    return other_tokenizers.tokenize(*pair, records, tmp_path_factory.mktemp("prompts") / "prompts", "--prompts")[0]


@pytest.fixture(scope="module")
def texts(tmp_path_factory, pair):
    """A file with the student's tokens of TEXTS."""
    file = tmp_path_factory.mktemp("texts") / "texts.json"
    file.write_text(json.dumps([ids_of(pair[0], text) for text in TEXTS]))
    return file


def tokenizer_of(folder):
    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def ids_of(folder, text):
    return tokenizer_of(folder).encode(text, add_special_tokens=False).ids


def command(*arguments, texts=None):
    words = [sys.executable, ENGINE, "--prompts", "{prompts}", "--output", "{output}", "--vocab", "330", "--end", END]
    return " ".join(map(str, [*words, *(["--texts", texts] if texts else []), *arguments]))


RETOKENIZER = f"{sys.executable} {RETOKENIZE} --completions {{completions}} --output {{output}}"


@pytest.fixture
def config(tmp_path, pair, prompts, texts):
    """config(name, engine, **sections): rounds of two steps, four sequences in each."""

    def build(name, engine=None, retokenize=RETOKENIZER, **sections):
        onpolicy = {"prompts": prompts, "command": engine or command(texts=texts), "retokenize": retokenize}
        onpolicy |= {"every": 2, "max_new_tokens": MOST} | sections.pop("onpolicy", {})
        train = {"steps": 6, "global_batch_size": 4, "micro_batch_size": 2, "deterministic": tiny.DEVICE == "cuda"}
        settings = tiny.base_config(
            tmp_path / name,
            *pair,
            prompts,
            data={"seq_len": 48, "teacher_seq_len": 48, "packing": "pack"} | sections.pop("data", {}),
            train=train | sections.pop("train", {}),
            teacher={"path": pair[1], "alignment": "bytes"} | sections.pop("teacher", {}),
            onpolicy=onpolicy,
            onpolicy_loss=dict(LOSS) | sections.pop("onpolicy_loss", {}),
            scheduler={"warmup_steps": 0},
            **{"optimizer": {"lr": 1e-3}} | sections,
        )
        if settings["onpolicy"].get("fraction", 1) == 1:
            settings["data"].pop("train", None)
        settings.pop("loss", None)
        return settings

    return build


@pytest.fixture(scope="module")
def vocabularies(pair):
    return [other_tokenizers.Vocabulary(folder, {}) for folder in pair]


def documents_of(run, number):
    return other_tokenizers.documents_of(round_folder(run, number))


def same_documents(found, expected):
    return all(np.array_equal(a, b) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other))


def test_a_round_is_what_tokenize_writes_of_the_same_texts(tmp_path, config, pair):
    """And its rows have the losses of these, bit for bit. Each takes more than half of a sequence."""
    long_texts = tmp_path / "long.json"
    long_texts.write_text(json.dumps([ids_of(pair[0], TEXTS[at]) for at in (0, 1, 4)]))
    still = {"lr": 1e-20, "weight_decay": 0.0}
    train = {"steps": 8, "global_batch_size": 1, "micro_batch_size": 1}
    own = {"every": 8, "max_new_tokens": 32}
    lengths = {"seq_len": 56, "teacher_seq_len": 56}
    engine = command(texts=long_texts)
    run = tiny.train(tmp_path, config("run", engine, train=train, onpolicy=own, optimizer=still, data=lengths))
    lines, student = completions(run, 0), tokenizer_of(pair[0])
    assert {line["finish_reason"] for line in lines} == {"stop"}
    records = [
        {"prompt": student.decode(line["prompt_ids"]), "completion": student.decode(line["completion_ids"])}
        for line in lines
    ]
    shard, _ = other_tokenizers.tokenize(*pair, records, tmp_path / "pairs")
    assert same_documents(documents_of(run, 0), other_tokenizers.documents_of(shard))
    again = config("again", train=train, optimizer=still, data=lengths)
    again["loss"] = again.pop("onpolicy_loss")
    again["data"]["train"] = [{"path": shard}]
    del again["onpolicy"]
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


def test_each_token_has_its_judgement_where_the_two_are_compared(tmp_path, config, pair, vocabularies):
    run = tiny.train(tmp_path, config("run", train={"steps": 2}, run={"tensorboard": True}))
    models = [reference_training.load(folder).eval() for folder in pair]
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


def test_any_tokens_can_be_judged(tmp_path, config, pair):
    """Random tokens, most of which are no text: byte by byte in the teacher's tokens, without the last character."""
    run = tiny.train(tmp_path, config("run", command(), onpolicy={"max_bad": 0.5}))
    own, its = (tokenizer_of(folder) for folder in pair)
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
    np.testing.assert_allclose(losses(one), losses(several), rtol=2e-5)


@pytest.mark.parametrize("staleness", [0, 1])
def test_killed_runs_go_on_as_if_nothing_had_been(tmp_path, config, texts, staleness):
    """Killed while the engine writes, while the completions are rewritten, and while steps run. What is left off is
    counted as it is in a run that nobody disturbs, and no command outlives the run."""
    own = {"staleness": staleness, "max_bad": 0.5}
    random_words = config("undisturbed", command(), onpolicy=own)
    undisturbed = tiny.train(tmp_path, random_words)
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
    for number, moment in enumerate(moments):
        job = subprocess.Popen(
            [tiny.binary(), "--config", path, *(["--resume"] if number else [])],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=tiny.environment(),
        )  # fmt: skip
        jobs.until(moment, job)
        job.kill()
        job.wait()
        jobs.until(lambda: not processes_with(mark))
    tiny.distill("--config", path, "--resume")
    assert losses(run) == losses(undisturbed)
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


FAULTS = {
    "fails": (
        "echo no room >&2; exit 3 # {completions} {output}",
        ["onpolicy.retokenize ended with exit code 3", "no room"],
    ),
    "silent": (
        "true # {completions} {output}",
        ["has not written the file of {output}", "retokenized.jsonl: no such file"],
    ),
    "empty": ("touch {output} # {completions}", ["8 of 8 completions", "no good line with the teacher's tokens"]),
    "hangs": ("sleep 100 # {completions} {output}", ["onpolicy.retokenize has not ended within 3 s"]),
    "other": (
        f"{sys.executable} -c 'import sys, json, re; lines = [json.loads(x) for x in open(sys.argv[1])]; "
        'open(sys.argv[2], "w").write("".join(json.dumps({{"id": x["id"], "tokens": len(x["completion_ids"]), '
        '"teacher_ids": [7]}}) + chr(10) for x in lines))\' {completions} {output}',
        ["retokenized.jsonl:1: completion 0: the texts of student and teacher differ"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_retokenizer_is_named_and_loses_nothing(tmp_path, config, fault):
    """In the second round; a repaired one goes on with the engine's completions, as if nothing had been wrong."""
    broken, says = FAULTS[fault]
    undisturbed = tiny.train(tmp_path, config("undisturbed"))
    switched = f"case {{completions}} in *round-00001*) {broken}\n;; *) {RETOKENIZER}\n;; esac"
    settings = config("run", retokenize=switched, onpolicy={"timeout_s": 3 if fault == "hangs" else 600})
    done = tiny.distill("--config", tiny.write_config(tmp_path, settings), code=tiny.RUNTIME_FAILURE)
    for text in says:
        assert text in done.stderr, done.stderr
    run = Path(settings["run"]["dir"])
    assert jobs.complete_checkpoints(run)[-1].name == "step-2"
    settings["onpolicy"] |= {"retokenize": RETOKENIZER, "timeout_s": 600}
    if fault not in ("empty", "other"):  # there the engine is asked again, since its completions seem unusable
        settings["onpolicy"]["command"] = f"if [ {{round}} = 1 ]; then exit 9; else {command()}; fi".replace(
            command(), config("again")["onpolicy"]["command"]
        )
    tiny.train(tmp_path, settings, "--resume")
    assert losses(run) == losses(undisturbed)


def test_what_is_missing_is_refused_before_the_first_step(tmp_path, config, pair, prompts):
    line = (
        "retokenize: .venv/bin/python scripts/retokenize_completions.py --completions {completions} --output {output}"
    )
    tiny.expect_refused(tmp_path / "none", config("none", retokenize=""), ["onpolicy.retokenize", line])
    wrong = config("wrong", retokenize="x {completions} {output} {model}")
    tiny.expect_refused(tmp_path / "wrong", wrong, ["placeholders of {completions}, {output}", "{model}"])
    plain = other_tokenizers.shard_file.Shard(
        other_tokenizers.shard_file.ShardSpec(330, tokenizer_hash(pair[0])),
    )
    plain.add(other_tokenizers.documents_of(prompts)[0][0], None)
    plain.write(tmp_path / "plain.dtok")
    lacking = config("lacking", onpolicy={"prompts": str(tmp_path / "plain.dtok")})
    tiny.expect_refused(tmp_path / "lacking", lacking, ["plain.dtok: document 0: expected a text in the tokens of"])


def tokenizer_hash(folder):
    from token_shards.tokenizer_files import TokenizerFiles

    return TokenizerFiles.load(Path(folder)).hash


def test_held_out_prompts_and_the_teachers_own_prompts(tmp_path, config, pair, questions):
    """Conversations whose turns end with other tokens; the teacher has another prompt, which knows the answer."""
    records = [
        {
            "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": "x"}],
            "teacher_messages": [{"role": "user", "content": f"{question} Say yes."}],
        }
        for question in questions
    ]
    folders = [
        other_tokenizers.tokenize(*pair, part, tmp_path / name, "--prompts")[0]
        for name, part in (("train", records[:15]), ("held-out", records[15:]))
    ]
    more = {
        "train": {"steps": 4},
        "data": {"seq_len": 160, "teacher_seq_len": 192},
        "eval": {"every": 2, "at_start": True},
    }
    onpolicy, pairs = (
        {"prompts": folders[0], "eval_prompts": folders[1]},
        {"token_pairs": ["<|im_end|>=<|eot|>"]},
    )
    run = tiny.train(tmp_path, config("run", onpolicy=onpolicy, teacher=pairs, **more))
    assert [line["round"]["held_out"]["completions"] for line in tiny.read_rounds(run)] == [5, 5]
    its = tokenizer_of(pair[1])
    for part in (round_folder(run, 0), round_folder(run, 0) / "held_out"):
        for tokens, in_loss, its_tokens, its_in_loss in other_tokenizers.documents_of(part):
            assert "Say yes." in its.decode(its_tokens[~its_in_loss].tolist())
            assert "Say yes." not in tokenizer_of(pair[0]).decode(tokens[~in_loss].tolist())
            assert its.decode(its_tokens[its_in_loss].tolist()) in TEXTS or not in_loss[-1] or tokens[-1] != END
    held_out = json.loads((round_folder(run, 0) / "round.json").read_text())["result"]["held_out"]
    again = config("again", data=more["data"] | {"eval": str(round_folder(run, 0) / "held_out")}, teacher=pairs)
    again["loss"] = again.pop("onpolicy_loss")
    del again["onpolicy"]
    report = tiny.evaluate(tmp_path, again)
    assert report["valid_tokens"] == held_out["tokens"]
    assert report["reverse_kl"] == pytest.approx(held_out["reverse_kl"], rel=1e-5)


@pytest.fixture
def three_teachers(tmp_path, config, pair, questions):
    """config(name, engine, **sections): two teachers with tokenizers of their own, and one with the student's that has
    its own prompts."""
    third = other_tokenizers.make_tokenizer(
        tmp_path / "third", [(tiny.REPOSITORY / "docs" / "ranks.md").read_text()], 380, ["<|end|>", "<|x|>"]
    )
    other_tokenizers.with_model(third, "llama", 4, hidden=64)
    same = other_tokenizers.copy_of(pair[0], tmp_path / "same")
    other_tokenizers.with_model(same, "llama", 5, hidden=64)
    records = [{"prompt": question, "completion": "x"} for question in questions]
    shards = {
        name: other_tokenizers.tokenize(pair[0], teacher, part, tmp_path / f"{name}-prompts", "--prompts")[0]
        for name, teacher, part in (("other", pair[1], records[::3]), ("third", third, records[1::3]))
    }
    own = [one | {"teacher_prompt": "Say no: " + one["prompt"]} for one in records[2::3]]
    source = tmp_path / "own.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in own))
    shards["same"] = str(tmp_path / "same-prompts")
    words = [tiny.REPOSITORY / "scripts/tokenize.py", "--tokenizer", pair[0], "--output", shards["same"], "--prompts"]
    subprocess.run([sys.executable, *map(str, words), str(source), "--quiet"], check=True, capture_output=True)

    def build(name, engine=None, **sections):
        settings = config(name, engine, **sections)
        settings["train"]["micro_batch_size"] = 1
        settings["onpolicy"]["completions"] = 12
        by_bytes = {"alignment": "bytes"}
        settings["teachers"] = [
            {"name": "other", "path": settings.pop("teacher")["path"]} | by_bytes,
            {"name": "same", "path": str(same)},
            {"name": "third", "path": str(third)} | by_bytes,
        ]
        weights = {"other": 1, "same": 1, "third": 3}  # the first sequences are of the last shard
        settings["onpolicy"]["prompts"] = [
            {"path": path, "teacher": name, "weight": weights[name]} for name, path in shards.items()
        ]
        return settings

    return build


def test_teachers_with_several_tokenizers_have_a_shard_each(tmp_path, three_teachers, pair):
    settings = three_teachers("run", TRANSFORMERS, onpolicy={"max_bad": 0.5})
    run = tiny.train(tmp_path, settings)
    for number in range(3):
        lines = completions(run, number)
        assert {line["teacher"] for line in lines} == {"other", "same", "third"}
        in_order = [[line for line in lines if line["teacher"] == name] for name in ("same", "other", "third")]
        for place, own in enumerate(in_order):
            shard = round_folder(run, number) / f"shard-{place:05d}.dtok"
            _, tokens, masks = other_tokenizers.shard_file.read(shard)
            its = other_tokenizers.shard_file.read_teacher(shard)
            for line, ids, mask, (its_ids, its_mask) in zip(own, tokens, masks, its, strict=True):
                assert ids[mask].tolist() == line["completion_ids"]
                assert its_ids[its_mask].tolist() == line.get("teacher_ids", line["completion_ids"])
                assert ("teacher_ids" in line) == (line["teacher"] != "same")
                if line["teacher"] == "same":
                    assert tokenizer_of(pair[0]).decode(its_ids[~its_mask].tolist()).startswith("Say no: ")
        in_order = [line for own in in_order for line in own]
        for one in judged(run, number)["completions"]:
            line = in_order[one["document"]]
            assert line["teacher"] == "third" and one["document"] > 4
            assert one["ids"] == line["completion_ids"]
            np.testing.assert_allclose(one["logprob"], line["logprobs"], atol=1e-3)
    log = (run / "log.txt").read_text()
    for own, engine in re.findall(r"mean log-probability (-[0-9.]+) nats, the engine's (-[0-9.]+)", log):
        assert float(own) == pytest.approx(float(engine), abs=1e-3)
    steps = tiny.read_metrics(run)[0]
    for name in ("other", "same", "third"):
        of_teacher = [step["teachers"][name] for step in steps if name in step["teachers"]]
        assert of_teacher and all(("boundary_share" in one) == (name != "same") for one in of_teacher)
    assert tiny.distill("verify", run).stdout.count("on-policy round, ") == 3


def test_rounds_of_several_shards_are_resumed_and_replayed(tmp_path, three_teachers):
    checkpoint = {"every": 1, "keep": 10}
    whole = tiny.train(tmp_path, three_teachers("whole", checkpoint=checkpoint))
    half = three_teachers("half", checkpoint=checkpoint, train={"steps": 6})
    run = tiny.train(tmp_path, half)
    tiny.distill("--config", tiny.write_config(tmp_path, half), "--resume-from", run / "checkpoints" / "step-3")
    assert losses(run) == losses(whole) and weights_of(run) == weights_of(whole)
    tiny.distill("replay", "--config", tmp_path / "config.yaml", "--step", 4)
    assert losses(run / "replay-4")[-1] == losses(whole)[3]
    second = round_folder(run, 1) / "shard-00001.dtok"
    shutil.copy(round_folder(run, 0) / "shard-00001.dtok", second)
    arguments = ("--resume-from", run / "checkpoints" / "step-3")
    error = tiny.distill("--config", tiny.write_config(tmp_path, half), *arguments, code=(1, 2)).stderr
    assert "expected the round in which the checkpoint was saved" in error


def test_texts_are_cut_at_the_same_byte_in_both(tmp_path, config, pair):
    """The prompt of a text is its first half, up to a boundary that both have."""
    paragraphs = (tiny.REPOSITORY / "docs/ranks.md").read_text().split("\n\n")
    records = [{"text": one} for one in paragraphs if 60 < len(one) < 600]
    shard, _ = other_tokenizers.tokenize(*pair, records, tmp_path / "texts", "--part-tokens", "32")
    run = tiny.train(tmp_path, config("run", onpolicy={"prompts": shard}))
    own, its = (tokenizer_of(folder) for folder in pair)
    for number in range(3):
        for tokens, in_loss, its_tokens, its_in_loss in documents_of(run, number):
            prompt = own.decode(tokens[~in_loss].tolist())
            assert len(prompt) > 3 and prompt == its.decode(its_tokens[~its_in_loss].tolist())


def test_a_replay_repeats_a_step(tmp_path, config):
    settings = config("run", "exit 9 # {prompts} {output}", "exit 9 # {completions} {output}")
    good = config("run")
    run = tiny.train(tmp_path, good)
    (tmp_path / "config.yaml").write_text(json.dumps(settings))
    tiny.distill("replay", "--config", tmp_path / "config.yaml", "--step", 4)
    assert losses(run / "replay-4")[-1] == losses(run)[3]


def test_transformers_and_servers_need_not_know_of_it(tmp_path, config):
    run = tiny.train(tmp_path, config("run", TRANSFORMERS, train={"steps": 2}, onpolicy={"max_bad": 0.5}))
    own, engine = map(
        float,
        re.search(
            r"mean log-probability (-[0-9.]+) nats, the engine's (-[0-9.]+)", (run / "log.txt").read_text()
        ).groups(),
    )
    assert own == pytest.approx(engine, abs=1e-3)
    assert all(line["teacher_ids"] for line in completions(run, 0))
    mark = mark_of(tmp_path)
    settings = http_settings(
        lambda name, engine: config(name, engine, onpolicy={"max_bad": 0.5}), "http", "sglang", mark
    )
    served = tiny.train(tmp_path, settings)
    assert all(line["teacher_ids"] for line in completions(served, 2))
    assert not processes_with(mark)


def test_memory_is_what_the_plan_says(tmp_path, config):
    path = tiny.write_config(tmp_path, config("run"))
    done = tiny.distill("profile-memory", "--config", path, "--out", tmp_path / "profile", "--json", "--steps", "2")
    report = json.loads(done.stdout)  # and nothing of the rounds
    for phase in ("teacher", "forward", "head", "backward"):
        planned, measured = (report[side]["phases"][phase]["peak"] for side in ("plan", "measured"))
        assert measured - UNPLANNED <= planned <= 1.25 * measured, phase


def test_the_example_passes_a_dry_run_on_tiny_models(tmp_path, pair, prompts, questions):
    example = tiny.REPOSITORY / "configs" / "onpolicy_qwen3_from_llama3.yaml"
    assert "alignment: bytes" in example.read_text() and "retokenize: .venv/bin/python" in example.read_text()
    sets = [f"student.path={pair[0]}", f"teacher.path={pair[1]}", "teacher.token_pairs=[<|im_end|>=<|eot|>]"]
    records = [{"prompt": question, "completion": "Yes."} for question in questions]
    sets += [f"data.eval={other_tokenizers.tokenize(*pair, records, tmp_path / 'eval')[0]}"]
    sets += [f"onpolicy.prompts={prompts}", "onpolicy.max_new_tokens=16", "data.seq_len=48", "data.teacher_seq_len=48"]
    sets += ["train.device=cpu", "train.dtype=float32", f"run.dir={tmp_path / 'run'}"]
    tiny.distill("--config", example, "--dry-run", *(part for one in sets for part in ("--set", one)))
    assert not (tmp_path / "run").exists()
