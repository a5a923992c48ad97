"""A teacher whose tokenizer splits the text otherwise: the loss against plain PyTorch, resumption, ranks, bad input."""

import json
import re
from pathlib import Path

import pytest
import torch

import memory_plans
import other_tokenizers
import reference_training
import tiny
from model_files import change_model
from run_results import steps_of, weights_of

LOSSES = {
    "jsd": {"divergence": "jsd", "beta": 0.3, "hard_weight": 0.3, "soft_weight": 0.7},
    "kl_alone": {"divergence": "forward_kl", "hard_weight": 0.0, "temperature": 1.5, "span_temperature": 10.0},
    "reverse": {
        "divergence": "reverse_kl",
        "hard_weight": 0.5,
        "span_weight": 2.0,
        "span_starts": True,
        "span_temperature": 1.0,
    },
    "boundaries": {"divergence": "forward_kl", "hard_weight": 0.5, "span_weight": 0.0},
}


@pytest.fixture(scope="module")
def vocabularies(pair):
    return [other_tokenizers.Vocabulary(folder, other_tokenizers.PAIRS) for folder in pair]


def config_of(folder, pair, shard, loss="jsd", **sections):
    sets = {"seq_len": 32, "teacher_seq_len": 32, "packing": "pack", "shuffle": False, "eval": [{"path": shard}]}
    sets |= sections.pop("data", {})
    train = {"steps": 6, "micro_batch_size": 2, "global_batch_size": 4, "deterministic": tiny.DEVICE == "cuda"}
    train |= sections.pop("train", {})
    teacher = {"path": pair[1], "alignment": "bytes", "token_pairs": ["<|im_end|>=<|eot|>"]}
    teacher |= sections.pop("teacher", {})
    config = tiny.base_config(
        folder,
        *pair,
        shard,
        data=sets,
        train=train,
        teacher=teacher,
        scheduler={"warmup_steps": 0},
        optimizer={"lr": 1e-3},
        **sections,
    )
    return config | {"loss": dict(LOSSES[loss])}


@pytest.mark.parametrize("loss", LOSSES)
def test_training_follows_a_reference_in_plain_pytorch(tmp_path, pair, vocabularies, texts, loss):
    expect_training_follows(tmp_path, pair, vocabularies, texts, loss)


@pytest.mark.parametrize(
    "families, loss",
    [(("gemma2", "qwen3"), "reverse"), (("llama", "gemma3"), "kl_alone"), (("gemma2", "gemma3"), "jsd")],
    ids=["student", "teacher", "both"],
)
def test_models_with_softcaps_follow_it_too(tmp_path, pair, vocabularies, texts, families, loss):
    models = [
        other_tokenizers.with_model(other_tokenizers.copy_of(folder, tmp_path / name), family, seed)
        for folder, name, family, seed in zip(pair, ("student", "teacher"), families, (1, 2), strict=True)
    ]
    for folder, cap in zip(models, (2.0, 3.5), strict=True):
        config = json.loads((Path(folder) / "config.json").read_text())
        if config.get("final_logit_softcapping"):
            change_model(folder, final_logit_softcapping=cap)
    expect_training_follows(tmp_path, models, vocabularies, texts, loss)


def expect_training_follows(tmp_path, pair, vocabularies, texts, loss):
    documents = [one for one in other_tokenizers.documents_of(texts) if len(one[0]) > 16][:24]
    shard = write_documents(tmp_path / "one.dtok", documents, pair)
    config = config_of(tmp_path, pair, shard, loss)
    batches = [documents[at : at + 4] for at in range(0, 24, 4)]
    expected, model = other_tokenizers.train(config, batches, *vocabularies)
    run = tiny.train(tmp_path, config)
    for step, reference in zip(tiny.read_metrics(run)[0], expected, strict=True):
        for name, value in reference.items():
            if name != "span_loss" or config["loss"].get("span_weight", 1.0) > 0:
                assert step[name] == pytest.approx(value, rel=2e-4), f"step {step['step']}: {name}"
    trained = tiny.load_weights(run / "model")
    reference = {name: value for name, value in model.state_dict().items() if name in trained}
    assert tiny.relative_difference(trained, reference) < 1e-4
    shares = expected[0]["boundary_share"], expected[0]["span_share"]
    assert 0.3 < shares[0] < 0.99 and 0.2 < shares[1] < 0.9, shares  # the test compares something
    said = (run / "log.txt").read_text()
    assert "vocabulary: teacher.alignment bytes" in said
    assert re.search(r"both have a boundary at \d+\.\d% of the student's", said)


def write_documents(path, documents, pair):
    spec = spec_of(pair)
    shard = other_tokenizers.shard_file.Shard(spec)
    for tokens, in_loss, its_tokens, its_in_loss in documents:
        shard.add(tokens, in_loss, (its_tokens, its_in_loss))
    shard.write(path)
    return str(path)


def spec_of(pair):
    from token_shards.tokenizer_files import TokenizerFiles

    own, its = (TokenizerFiles.load(Path(folder)) for folder in pair)
    return other_tokenizers.shard_file.ShardSpec(
        own.vocab_size, own.hash, teacher_vocab_size=its.vocab_size, teacher_tokenizer_hash=its.hash
    )


@pytest.mark.parametrize("loss", ["jsd", "kl_alone"])
def test_evaluation_of_packed_chats_follows_the_reference(tmp_path, pair, vocabularies, chats, loss):
    config = config_of(tmp_path, pair, chats, loss, data={"seq_len": 192, "teacher_seq_len": 192})
    found = tiny.evaluate(tmp_path, config)
    models = [reference_training.load(folder).eval() for folder in pair]
    documents = other_tokenizers.documents_of(chats)
    with torch.no_grad():
        sums = other_tokenizers.added(
            [other_tokenizers.document_losses(*models, one, *vocabularies, config["loss"]) for one in documents]
        )
    assert found["valid_tokens"] == sums["tokens"]
    for name, value in other_tokenizers.means_of(sums).items():
        assert found[name] == pytest.approx(value, rel=2e-4), name


def test_turns_end_with_tokens_that_are_pairs_or_are_said_to_have_none(tmp_path, pair, vocabularies, chats):
    data = {"seq_len": 192, "teacher_seq_len": 192}
    paired = tiny.evaluate(tmp_path, config_of(tmp_path, pair, chats, data=data))
    config = config_of(tmp_path / "alone", pair, chats, data=data, teacher={"token_pairs": []})
    alone = tiny.evaluate(tmp_path, config)
    turns = sum(2 if index >= 3 else 1 for index in range(6))
    assert (paired["boundary_share"] - alone["boundary_share"]) * paired["valid_tokens"] == pytest.approx(turns)
    said = (tiny.train(tmp_path / "alone", config | {"train": config["train"] | {"steps": 1}}) / "log.txt").read_text()
    assert f'{turns} special tokens "<|im_end|>" of the student\'s have no partner' in said
    assert f'{turns} special tokens "<|eot|>" of the teacher\'s have no partner' in said


@pytest.mark.parametrize(
    "micro, parallel", [(4, {"processes": 1}), (1, {"processes": 2}), (2, {"processes": 2, "shard_teacher": False})]
)
def test_ranks_and_micro_batches_train_alike(tmp_path, pair, texts, micro, parallel):
    tiny.need_devices(parallel["processes"])
    one = tiny.train(tmp_path / "one", config_of(tmp_path / "one", pair, texts, data={"shuffle": True}))
    config = config_of(
        tmp_path / "other", pair, texts, data={"shuffle": True}, train={"micro_batch_size": micro}, parallel=parallel
    )
    other = tiny.train(tmp_path / "other", config)
    for a, b in zip(tiny.read_metrics(one)[0], tiny.read_metrics(other)[0], strict=True):
        for name in ("loss", "forward_kl", "boundary_share", "span_loss", "teacher_ce", "grad_norm"):
            assert a[name] == pytest.approx(b[name], rel=1e-4), name
    assert tiny.relative_difference(*(tiny.load_weights(run / "model") for run in (one, other))) < 1e-4


def test_a_run_resumes_bit_for_bit(tmp_path, pair, texts):
    def run(name, steps):
        config = config_of(tmp_path / name, pair, texts, train={"steps": steps}, checkpoint={"every": 3})
        return config | {"scheduler": {"type": "constant", "warmup_steps": 2}}

    expected = tiny.train(tmp_path, run("whole", 6))
    tiny.train(tmp_path, run("half", 3))
    resumed = tiny.train(tmp_path, run("half", 6), "--resume")
    assert weights_of(resumed) == weights_of(expected)
    assert steps_of(resumed)[-1] == steps_of(expected)[-1]


def test_beside_a_teacher_with_the_students_tokenizer_each_has_its_own_loss(tmp_path, pair, texts):
    same = other_tokenizers.copy_of(pair[0], tmp_path / "same")
    other_tokenizers.with_model(same, "llama", 5, hidden=64)
    plain = other_tokenizers.shard_file.Shard(
        other_tokenizers.shard_file.ShardSpec(spec_of(pair).vocab_size, spec_of(pair).tokenizer_hash)
    )
    for tokens, in_loss, _, _ in other_tokenizers.documents_of(texts)[::2]:
        plain.add(tokens, in_loss)
    plain.write(tmp_path / "plain.dtok")
    sets = {"other": texts, "same": str(tmp_path / "plain.dtok")}
    config = config_of(tmp_path, pair, texts, train={"steps": 8, "micro_batch_size": 2, "global_batch_size": 2})
    other = {"name": "other", **config.pop("teacher")}
    config["teachers"] = [other, {"name": "same", "path": str(same), "loss": {"divergence": "forward_kl"}}]
    config["data"]["train"] = [{"path": path, "teacher": name} for name, path in sets.items()]
    config["data"].pop("eval")
    config["optimizer"] |= {"lr": 1e-20, "weight_decay": 0.0}
    steps, _ = tiny.read_metrics(tiny.train(tmp_path, config))
    rows = {name: [step for step in steps if list(step["teachers"]) == [name]] for name in sets}
    assert min(map(len, rows.values())) > 2
    for name, keys in (("other", other), ("same", {"path": str(same)})):
        alone = config_of(tmp_path / name, pair, sets[name], train={"micro_batch_size": 2, "global_batch_size": 2})
        alone["teacher"] = {key: value for key, value in keys.items() if key != "name"}
        alone["optimizer"], alone["data"] = config["optimizer"], alone["data"] | {"train": [{"path": sets[name]}]}
        alone["data"].pop("eval")
        alone["train"]["steps"] = len(rows[name])
        if name == "same":
            alone["loss"] = {k: v for k, v in alone["loss"].items() if k != "beta"} | {"divergence": "forward_kl"}
            alone["data"].pop("teacher_seq_len")
        expected, _ = tiny.read_metrics(tiny.train(tmp_path / name, alone))
        for found, reference in zip(rows[name], expected, strict=True):
            for number in ("loss", "hard", "soft", "teacher_ce", "forward_kl", "valid_tokens", "grad_norm"):
                assert found[number] == reference[number], (name, found["step"], number)
        assert ("boundary_share" in expected[0]) == (name == "other")


@pytest.mark.parametrize("softcaps", [{}, {"student_softcap": 3.0, "teacher_softcap": 2.0}], ids=["", "softcaps"])
def test_the_plan_and_bf16_know_the_pieces(tmp_path, pair, texts, softcaps):
    config = config_of(tmp_path, pair, texts, train={"dtype": "bfloat16"})
    config["loss"] |= softcaps
    steps, _ = tiny.read_metrics(tiny.train(tmp_path, config))
    in_fp32 = config_of(tmp_path / "exact", pair, texts) | {"loss": config["loss"]}
    exact, _ = tiny.read_metrics(tiny.train(tmp_path / "exact", in_fp32))
    assert steps[0]["loss"] == pytest.approx(exact[0]["loss"], rel=0.02)
    # The plan has as many pieces as a batch can have, so that less may be needed; small vectors are not in it.
    memory_plans.check_peaks(memory_plans.profile(tmp_path, config, "--steps", 2), 1.25)


@pytest.mark.parametrize("example", ["qwen3_from_llama3.yaml"])
def test_the_example_passes_a_dry_run_on_tiny_models(tmp_path, example):
    text = (tiny.REPOSITORY / "docs" / "data.md").read_text()
    own, its = (
        other_tokenizers.with_model(
            other_tokenizers.make_tokenizer(tmp_path / name, [text], vocab, [end_of_text]), "llama", 1
        )
        for name, vocab, end_of_text in (("student", 330, "<|endoftext|>"), ("teacher", 400, "<|end_of_text|>"))
    )
    records = [{"text": one} for one in text.split("\n\n")]
    shards, _ = other_tokenizers.tokenize(own, its, records, tmp_path / "texts", "--part-tokens", "32")
    sets = [f"student.path={own}", f"teacher.path={its}", f"data.train={shards}", f"data.eval={shards}"]
    sets += ["data.seq_len=32", "data.teacher_seq_len=32", "train.device=cpu", f"run.dir={tmp_path / 'run'}"]
    config = tiny.REPOSITORY / "configs" / example
    assert "alignment: bytes" in config.read_text()
    tiny.distill("--config", config, "--dry-run", *(part for one in sets for part in ("--set", one)))
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_is_refused(tmp_path, pair, texts, chats):
    def refused(name, says, shard=texts, **sections):
        tiny.expect_refused(tmp_path / name, config_of(tmp_path / name, pair, shard, **sections), [says])

    config = config_of(tmp_path / "tokens", pair, texts)
    config["teacher"] = {"path": pair[1]}
    tiny.expect_refused(tmp_path / "tokens", config, ["different tokenizers", "teacher.alignment: bytes"])
    refused("pairs", "teacher.token_pairs: expected STUDENT=TEACHER", teacher={"token_pairs": ["<|im_end|>=x"]})
    plain = other_tokenizers.shard_file.Shard(spec_of(pair))
    plain.add(other_tokenizers.documents_of(texts)[0][0], None)
    plain.write(tmp_path / "plain.dtok")
    refused("plain", "--teacher-tokenizer", shard=str(tmp_path / "plain.dtok"))
    swapped = [(a, b, c[::-1].copy(), d) for a, b, c, d in other_tokenizers.documents_of(texts)[:3]]
    shard = write_documents(tmp_path / "swapped.dtok", swapped, pair)
    refused("swapped", "swapped.dtok: document 0: the texts of student and teacher differ", shard=shard)
    refused("concat", "data.packing: pack", data={"packing": "concat"})
    refused("mask", "missing_tokens: refuse with alignment: bytes", teacher={"missing_tokens": "mask"})
