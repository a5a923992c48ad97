"""A teacher whose tokens have other ids, padded tables and added tokens that one side lacks."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import onpolicy_runs
import tiny
import vocabularies
from cache_kinds import FORWARD_KL, KINDS, capture
from reference_training import divergence, kl
from run_results import losses_of, steps_of, weights_of
from token_shard import read_shard

EQUAL = {f"t{i}": i for i in range(tiny.VOCAB)}
LENGTHS = [5, 61, 17, 128, 2, 33, 90, 47] * 5

# The student has an added token at 100, which the teacher lacks, so that the others are moved by one, and two more at
# the end, of which the teacher has one. The teacher has one of its own.
STUDENT = {f"t{i}": i + (i >= 100) for i in range(vocabularies.BASE)} | {"<think>": 100, "<tool>": 191, "<own>": 192}
TEACHER = {f"t{i}": i for i in range(vocabularies.BASE)} | {"<call>": 190, "<tool>": 191, "[PAD]": 300}
SHARED = [text for text in STUDENT if text in TEACHER]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, models):
    """{name: (student, teacher)}; `equal` and `permuted` are the same models, the teacher's rows in another order."""
    folder = tmp_path_factory.mktemp("vocabularies")
    student, teacher = models["llama"]
    rows = np.arange(tiny.TEACHER_VOCAB)
    own = vocabularies.with_rows(student, folder / "student", rows[: tiny.VOCAB], EQUAL)
    order = np.random.default_rng(4).permutation(rows)  # the padded rows are in between
    moved = {f"t{row}": place for place, row in enumerate(order.tolist()) if row < tiny.VOCAB}
    return {
        "equal": (own, vocabularies.with_rows(teacher, folder / "equal", rows, EQUAL)),
        "permuted": (own, vocabularies.with_rows(teacher, folder / "permuted", order, moved)),
        "added": (
            vocabularies.with_rows(student, folder / "added-student", rows[: tiny.VOCAB], STUDENT),
            vocabularies.with_rows(teacher, folder / "added-teacher", rows, TEACHER),
        ),
    }


@pytest.fixture(scope="module")
def shards(tmp_path_factory, pairs):
    """{name: shard}, of tokens that both have."""
    folder = tmp_path_factory.mktemp("shards")
    ids = np.array([STUDENT[text] for text in SHARED])
    found = {}
    for name, (student, _) in pairs.items():
        documents = tiny.random_documents(3, LENGTHS)
        if name == "added":
            documents = [(ids[tokens % len(ids)], in_loss) for tokens, in_loss in documents]
        found[name] = vocabularies.shard_of(folder / f"{name}.dtok", student, documents)
    return found


@pytest.fixture
def config(tmp_path, pairs, shards):
    def build(run, name, ranks=1, **sections):
        shard = shards[name]
        data = {"packing": "pack", "shuffle": True, "eval": [{"path": shard}]} | sections.pop("data", {})
        train = {"steps": 6, "global_batch_size": 12, "deterministic": tiny.DEVICE == "cuda"}
        train |= sections.pop("train", {})
        teacher = {"path": pairs[name][1]} | sections.pop("teacher", {})
        sections = {"eval": {"every": 3}, "parallel": {"processes": ranks}} | sections
        return tiny.base_config(
            tmp_path / run, pairs[name][0], "", shard, data=data, train=train, teacher=teacher, **sections
        )

    return build


def expect_equal_runs(one, other):
    assert steps_of(one) == steps_of(other)
    assert weights_of(one) == weights_of(other)


@pytest.mark.parametrize("ranks, dtype", [(1, "float32"), (1, "bfloat16"), (2, "float32")])
def test_a_teacher_with_permuted_ids_is_the_same_teacher_bit_for_bit(tmp_path, config, ranks, dtype):
    runs = [tiny.train(tmp_path, config(name, name, ranks, train={"dtype": dtype})) for name in ("equal", "permuted")]
    expect_equal_runs(*runs)
    log = (runs[1] / "log.txt").read_text()
    assert re.search(r"vocabulary: the loss compares 211 tokens of both models, \d+ of which have another id", log)
    assert "0 rows of the student's 211 and 13 of the teacher's 224 without a token" in log


def test_a_float8_teacher_and_a_tied_one_with_permuted_ids_are_the_same(tmp_path, config, models):
    settings = {"teacher": {"dtype": "float8"}, "float8": {"max_mean_kl": 9}}
    runs = [tiny.train(tmp_path, config(name, name, **settings)) for name in ("equal", "permuted")]
    expect_equal_runs(*runs)
    assert 'tie_word_embeddings": false' in (Path(config("x", "equal")["teacher"]["path"]) / "config.json").read_text()
    rows = np.arange(tiny.TEACHER_VOCAB)
    moved = dict(zip(EQUAL, rows[::-1].tolist()))
    _, tied = models["qwen3"]
    folders = [
        vocabularies.with_rows(tied, tmp_path / "tied", rows, EQUAL),
        vocabularies.with_rows(tied, tmp_path / "tied-moved", rows[::-1].copy(), moved),
    ]
    runs = [
        tiny.train(tmp_path, config(f"tied{i}", "equal", teacher={"path": folder})) for i, folder in enumerate(folders)
    ]
    expect_equal_runs(*runs)


def test_a_run_with_permuted_ids_resumes_bit_for_bit(tmp_path, config):
    def run(name, steps):
        settings = config(name, "permuted", train={"steps": steps}, checkpoint={"every": 3})
        return settings | {"scheduler": {"type": "constant", "warmup_steps": 2}}

    expected = tiny.train(tmp_path, run("whole", 6))
    tiny.train(tmp_path, run("half", 3))
    assert weights_of(tiny.train(tmp_path, run("half", 6), "--resume")) == weights_of(expected)


def logits_of(folder, texts, ids, tokens):
    """fp64 logits of these texts, for tokens in ids of `ids`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    columns = torch.tensor([ids[text] for text in texts])
    return model, lambda row: model(row[None]).logits[0][:, columns], columns


def reference(pair, shard, loss):
    """Means over all tokens with a target of whole documents, in fp64, the dropped mass, and the gradient's norm."""
    student, of_student, _ = logits_of(pair[0], SHARED, STUDENT, None)
    teacher, of_teacher, _ = logits_of(pair[1], [*SHARED, "<call>"], TEACHER, None)
    text_of = {id: text for text, id in STUDENT.items()}
    rows = {name: [] for name in ("loss", "hard", "forward_kl", "teacher_ce", "accuracy", "teacher_dropped_mass")}
    for document in read_shard(shard):
        for begin in range(0, len(document.tokens), 32):  # as documents are cut
            tokens, in_loss = (part[begin : begin + 33] for part in (document.tokens, document.in_loss))
            texts = [text_of[int(id)] for id in tokens]
            valid = torch.from_numpy(in_loss[1:].copy())
            if not valid.any():
                continue
            own = torch.tensor([TEACHER[text] for text in texts[:32]])
            labels = torch.tensor([SHARED.index(text) for text in texts[1:]])[valid]
            q = of_student(torch.from_numpy(tokens[:32].copy()))[: len(valid)][valid]
            with torch.no_grad():
                p = of_teacher(own)[: len(valid)][valid]
            mass = p.softmax(-1)[:, -1]
            p = p[:, :-1]
            q_log, p_log = q.log_softmax(-1), p.log_softmax(-1)
            hard = -q_log.gather(1, labels[:, None])[:, 0]
            rows["hard"].append(hard)
            rows["loss"].append(loss["hard_weight"] * hard + divergence(p_log, q_log, loss))
            rows["forward_kl"].append(kl(p_log, q_log))
            rows["teacher_ce"].append(-p_log.gather(1, labels[:, None])[:, 0])
            rows["accuracy"].append((q.argmax(-1) == labels).double())
            rows["teacher_dropped_mass"].append(mass)
    total = torch.cat(rows["loss"]).mean()
    total.backward()
    norm = torch.stack([p.grad.square().sum() for p in student.parameters() if p.grad is not None]).sum().sqrt()
    return {name: float(torch.cat(values).detach().mean()) for name, values in rows.items()}, float(norm)


def test_losses_and_gradients_are_those_of_the_tokens_that_both_have(tmp_path, pairs, shards, config):
    settings = config("added", "added", optimizer={"weight_decay": 0, "max_grad_norm": 0})
    means, norm = reference(pairs["added"], shards["added"], settings["loss"])
    found = tiny.evaluate(tmp_path, settings)
    for name, expected in means.items():
        assert found[name] == pytest.approx(expected, rel=2e-5), name
    sequences = int(re.search(r"(\d+) sequences", tiny.distill(
        "eval", "--config", tiny.write_config(tmp_path / "eval", settings)).stdout)[1])  # fmt: skip
    whole = settings | {
        "train": settings["train"] | {"steps": 1, "micro_batch_size": 1, "global_batch_size": sequences}
    }
    whole["scheduler"] = {"type": "constant", "warmup_steps": 0}
    steps, _ = tiny.read_metrics(tiny.train(tmp_path, whole))
    assert steps[0]["loss"] == pytest.approx(means["loss"], rel=2e-5)
    assert steps[0]["grad_norm"] == pytest.approx(norm, rel=5e-5)


def test_rows_without_a_part_in_the_loss_stay_as_they_are(tmp_path, pairs, config):
    settings = config("added", "added", optimizer={"weight_decay": 0})
    said = tiny.distill("--config", tiny.write_config(tmp_path, settings)).stderr
    run = Path(settings["run"]["dir"])
    before, after = (tiny.load_weights(folder)["lm_head.weight"] for folder in (pairs["added"][0], run / "model"))
    columns = sorted(STUDENT[text] for text in SHARED)
    others = sorted(set(range(tiny.VOCAB)) - set(columns))
    assert len(others) == 2 + (tiny.VOCAB - 193)  # <think>, <own> and the padding
    assert torch.equal(before[others], after[others])
    assert (before[columns] != after[columns]).any(1).all()
    assert 'the tokenizer of the student has 2 tokens that the teacher\'s lacks: 100 ("<think>"), 192 ("<own>")' in said
    assert 'the tokenizer of the teacher has 2 tokens that the student\'s lacks: 190 ("<call>"), 300 ("[PAD]")' in said
    assert (
        "vocabulary: the loss compares 191 tokens of both models, 90 of which have another id in the teacher's "
        "tokenizer, so that its rows are read in the student's order; no part in it have 18 rows of the student's 211 "
        "and 32 of the teacher's 224 without a token, 2 other tokens of the student's and 1 of the teacher's" in said
    )
    assert "its 1 tokens that have no part in the loss" in said
    evaluations = tiny.read_metrics(run)[1]
    assert all(0 < record["eval"]["teacher_dropped_mass"] < 0.05 for record in evaluations)
    tokenizer = json.loads((run / "model" / "tokenizer.json").read_text())
    assert tokenizer == json.loads(Path(pairs["added"][0], "tokenizer.json").read_text())


def test_ranks_with_added_tokens_train_as_one(tmp_path, config):
    tiny.need_devices(tiny.RANKS)
    one = tiny.train(tmp_path, config("one", "added"))
    several = tiny.train(tmp_path, config("several", "added", tiny.RANKS))
    for a, b in zip(*(tiny.read_metrics(run)[0] for run in (one, several))):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-5)
    weights = [tiny.load_weights(run / "model") for run in (several, one)]
    assert tiny.relative_difference(*weights) < 2e-4


@pytest.mark.parametrize("name", ["permuted", "added"])
def test_a_cache_of_hidden_states_is_the_teacher_bit_for_bit(tmp_path, pairs, config, name):
    online = tiny.train(tmp_path, config("online", name))
    cache = tmp_path / "cache"
    capture(config("capture", name), cache)
    manifest = json.loads((cache / "manifest.json").read_text())
    assert manifest["version"] == 4 and len(manifest["vocabulary"]) == 64
    rows = 211 if name == "permuted" else 193
    assert json.loads((cache / "head" / "config.json").read_text())["vocab_size"] == manifest["vocab_size"] == rows
    assert (cache / "head" / "tokenizer.json").read_text() == Path(pairs[name][0], "tokenizer.json").read_text()
    expect_equal_runs(
        tiny.train(tmp_path, config("cached", name, teacher={"path": "", "source": "cache", "cache": str(cache)})),
        online,
    )
    # The configuration of the capture, with the teacher's own folder and tokenizer.
    named = {"source": "cache", "cache": str(cache), "tokenizer": pairs[name][1]}
    expect_equal_runs(tiny.train(tmp_path, config("named", name, teacher=named)), online)
    done = tiny.distill("verify", "--cache", cache, "--teacher", pairs[name][1], "--samples", 9)
    assert "(100%) are the same bit for bit" in done.stdout
    assert "token" in tiny.distill("inspect", cache).stdout


def test_caches_of_a_few_tokens_have_the_students_ids(tmp_path, pairs, config):
    def run_of(name, **sections):
        return config(name, "added", **sections) | {"loss": dict(FORWARD_KL)}

    online = tiny.train(tmp_path, run_of("online"))
    columns = {STUDENT[text] for text in SHARED}
    for kind, keys in {
        "whole": {"kind": "topk", "topk": len(SHARED), "dtype": "float32"},
        "sampled": KINDS["sampled"],
    }.items():
        cache = tmp_path / kind
        capture(run_of(f"capture-{kind}", cache=keys), cache)
        manifest = json.loads((cache / "manifest.json").read_text())
        assert manifest["column_ranges"] == [[0, 100], [101, 192]] and manifest["columns"] == 192
        if kind == "whole":
            ids = np.frombuffer(next(cache.glob("part-*.dtc")).read_bytes()[64:][: 2 * len(SHARED)], "<u2")
            assert set(ids.tolist()) == columns
        teacher = {"path": "", "source": "cache", "cache": str(cache)}
        cached = run_of(f"cached-{kind}", cache={"kind": keys["kind"]}, teacher=teacher)
        steps = [tiny.read_metrics(run)[0] for run in (tiny.train(tmp_path, cached), online)]
        for found, expected in zip(*steps):
            if kind == "whole":
                assert found["hard"] == pytest.approx(expected["hard"], rel=1e-4)
                assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        assert steps[0][0]["hard"] == pytest.approx(steps[1][0]["hard"], rel=1e-6)  # of the same student
        done = tiny.distill("verify", "--cache", cache, "--teacher", pairs["added"][1], "--samples", 9)
        assert "(100%) are the same bit for bit" in done.stdout


def test_a_cache_of_another_order_is_refused(tmp_path, pairs, shards, config):
    cache = tmp_path / "cache"
    capture(config("capture", "permuted"), cache)
    done = capture(
        config("again", "equal", teacher={"path": pairs["permuted"][1], "tokenizer": pairs["equal"][1]}),
        cache,
        code=tiny.BAD_INPUT,
    )
    assert "vocabulary: expected null, found" in done.stderr
    config_of = config("other", "added", teacher={"path": "", "source": "cache", "cache": str(cache)})
    done = tiny.distill("--config", tiny.write_config(tmp_path / "other", config_of), code=tiny.BAD_INPUT)
    assert "teacher and student have different tokenizers" in done.stderr


def test_on_policy_rounds_with_permuted_ids_are_the_same(tmp_path, pairs, onpolicy_prompts):
    runs = []
    for name in ("equal", "permuted"):
        student, teacher = pairs[name]
        folder = tmp_path / name
        folder.mkdir()
        documents = [(document.tokens, document.in_loss) for document in read_shard(onpolicy_prompts)]
        prompts = vocabularies.shard_of(folder / "prompts.dtok", student, documents)
        settings = onpolicy_runs.config_in(folder, {"llama": (student, teacher)}, prompts)("run")
        runs.append(tiny.train(folder, settings))
    assert losses_of(runs[0]) == losses_of(runs[1])
    assert weights_of(runs[0]) == weights_of(runs[1])


def test_documents_with_tokens_that_the_teacher_lacks_are_named(tmp_path, pairs, config):
    student = pairs["added"][0]
    document = (np.array([1, 2, 100, 3]), np.ones(4, dtype=bool))
    shard = vocabularies.shard_of(tmp_path / "bad.dtok", student, [document])
    settings = config("bad", "added", data={"train": [{"path": shard}]})
    done = tiny.distill("--config", tiny.write_config(tmp_path, settings), code=tiny.BAD_INPUT)
    assert 'document 0, token 2: id 100 ("<think>"): expected a token of both tokenizers' in done.stderr
    # Of a teacher with other ids, the shards must be the student's.
    shard = vocabularies.shard_of(tmp_path / "its.dtok", pairs["added"][1], [document])
    settings = config("its", "added", data={"train": [{"path": shard}]})
    done = tiny.distill("--config", tiny.write_config(tmp_path, settings), code=tiny.BAD_INPUT)
    assert "header field `tokenizer_hash`" in done.stderr and "(the model's tokenizer)" in done.stderr


def test_tokenizers_that_cannot_be_mapped_are_named(tmp_path, pairs, config):
    def refused(ids, says, **changes):
        folder = tmp_path / f"tokenizer{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        own = vocabularies.give_tokenizer(folder, ids, **changes)
        settings = config("refused", "added", teacher={"tokenizer": own})
        done = tiny.distill("--config", tiny.write_config(tmp_path, settings), "--dry-run", code=tiny.BAD_INPUT)
        for text in (f"{own}/tokenizer.json and {pairs['added'][0]}/tokenizer.json", says):
            assert text in done.stderr, done.stderr

    other = {f"t{i + 7}": i for i in range(vocabularies.BASE)}
    refused(other, 'the teacher has 183 of the student\'s 190 tokens; it lacks 0 ("t0"), 1 ("t1")')
    refused(other, 'the student has 183 of the teacher\'s 190 tokens; it lacks 183 ("t190"), 184 ("t191")')
    refused(TEACHER, 'normalizer: teacher {"type":"NFC"}, student null', normalizer={"type": "NFC"})


def test_too_much_dropped_mass_is_refused_before_the_first_step(tmp_path, pairs, config):
    settings = config("much", "added", teacher={"max_dropped_mass": 1e-9})
    done = tiny.distill("--config", tiny.write_config(tmp_path, settings), code=tiny.BAD_INPUT)
    assert "teacher.max_dropped_mass: expected at most 1e-09, found" in done.stderr
    assert not (Path(settings["run"]["dir"]) / "metrics.jsonl").exists()
    tiny.train(tmp_path, config("enough", "added", teacher={"max_dropped_mass": 1}))


def test_the_plan_has_the_rows_that_are_loaded(tmp_path, config):
    plans = (tiny.plan(tmp_path / name, config(name, name)) for name in ("equal", "permuted"))
    equal, permuted = (plan["bytes"]["static"] for plan in plans)
    assert equal - permuted == 2 * 13 * 64 * 4  # the padding is not loaded


@pytest.fixture(scope="module")
def masked(tmp_path_factory, pairs, shards):
    """(shard with tokens that the teacher lacks, the same with other tokens from these on and a mask, documents with
    one, targets that are lost)."""
    folder = tmp_path_factory.mktemp("masked")
    random = np.random.default_rng(8)
    documents, equal, lost = [], [], []
    for number, document in enumerate(read_shard(shards["added"])):
        tokens, in_loss, other = document.tokens.copy(), document.in_loss.copy(), document.tokens.copy()
        own = in_loss.copy()
        if number % 3 == 0:
            at = int(random.integers(0, len(tokens)))
            tokens[at] = STUDENT["<think>" if number % 2 else "<own>"]
            other[at:] = 5
            own[at:] = False
            lost.append(int(in_loss[max(at, 1) :].sum()))
        documents.append((tokens, in_loss))
        equal.append((other, own))
    return (
        vocabularies.shard_of(folder / "masked.dtok", pairs["added"][0], documents),
        vocabularies.shard_of(folder / "equal.dtok", pairs["added"][0], equal),
        len(lost),
        sum(lost),
    )


def on(shard, **sections):
    return {"data": {"train": [{"path": shard}], "eval": [{"path": shard}]}} | sections


def test_documents_with_missing_tokens_are_masked_from_there_on(tmp_path, config, masked):
    shard, equal, documents, targets = masked
    mask = {"teacher": {"missing_tokens": "mask"}}
    settings = config("masked", "added", **on(shard, **mask))
    said = tiny.distill("--config", tiny.write_config(tmp_path, settings)).stderr
    run = Path(settings["run"]["dir"])
    expect_equal_runs(run, tiny.train(tmp_path, config("equal", "added", **on(equal))))
    text = f"{documents} of these documents have a token that the teacher lacks: {targets} targets, those from it on"
    assert f"data.train: {text}" in said and f"data.eval: {text}" in said
    assert (
        '2 tokens that the teacher\'s lacks: 100 ("<think>"), 192 ("<own>"); documents have no targets from them on'
        in said
    )
    tiny.need_devices(tiny.RANKS)
    several = tiny.train(tmp_path, config("several", "added", tiny.RANKS, **on(shard, **mask)))
    weights = [tiny.load_weights(folder / "model") for folder in (several, run)]
    assert tiny.relative_difference(*weights) < 2e-4


def test_a_cache_of_masked_documents_is_the_teacher_bit_for_bit(tmp_path, pairs, config, masked):
    mask = {"missing_tokens": "mask"}
    online = tiny.train(tmp_path, config("online", "added", **on(masked[0], teacher=mask)))
    cache = tmp_path / "cache"
    capture(config("capture", "added", **on(masked[0], teacher=mask)), cache)
    cached = {"path": "", "source": "cache", "cache": str(cache)}
    expect_equal_runs(tiny.train(tmp_path, config("cached", "added", **on(masked[0], teacher=cached | mask))), online)
    done = tiny.distill("verify", "--cache", cache, "--teacher", pairs["added"][1], "--samples", 9)
    assert "(100%) are the same bit for bit" in done.stdout
    assert "what the teacher expects" in tiny.distill("inspect", cache, "--document", 0).stdout
    settings = config("unmasked", "added", **on(masked[0], teacher=cached))
    done = tiny.distill("--config", tiny.write_config(tmp_path, settings), code=tiny.BAD_INPUT)
    assert "expected a token of both tokenizers" in done.stderr


def test_concatenated_documents_cannot_be_masked(tmp_path, config, masked):
    sections = on(masked[0], teacher={"missing_tokens": "mask"})
    sections["data"] |= {"packing": "concat"}
    done = tiny.distill(
        "--config", tiny.write_config(tmp_path, config("concat", "added", **sections)), code=tiny.BAD_INPUT
    )
    assert "teacher.missing_tokens: expected refuse with data.packing: concat, found mask" in done.stderr
