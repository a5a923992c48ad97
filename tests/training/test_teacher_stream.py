"""The teacher reads a text of its own before the same completion (the token shards' teacher stream)."""

import json
import shutil

import numpy as np
import pytest

import memory_plans
import reference_training
import teacher_texts
import tiny
from memory_plans import check_against_measured, profile
from model_files import change_model
from run_results import files, state_files, timeless

LOSS = {"divergence": "jsd", "beta": 0.3, "hard_weight": 0.3, "soft_weight": 0.7}


def config_of(folder, pair, shard, **sections):
    data = {"seq_len": 32, "teacher_seq_len": 48, "packing": "pack", "shuffle": True, "seed": 3}
    data |= sections.pop("data", {})
    loss = sections.pop("loss", LOSS)
    train = {"steps": 6, "micro_batch_size": 2, "global_batch_size": 6, "deterministic": tiny.DEVICE == "cuda"}
    train |= sections.pop("train", {})
    config = tiny.base_config(
        folder, *pair, shard, data=data, train=train, scheduler={"warmup_steps": 0}, optimizer={"lr": 1e-3}, **sections
    )
    return config | {"loss": loss}


@pytest.fixture(scope="module")
def documents():
    return teacher_texts.ragged_documents(11, 90)


@pytest.fixture(scope="module")
def shard(tmp_path_factory, documents):
    return teacher_texts.write_shard(tmp_path_factory.mktemp("texts") / "ragged.dtok", documents)


def test_a_teachers_text_that_is_the_students_changes_no_bit(tmp_path, models, documents):
    plain = [document[:2] for document in documents]
    records, weights, evaluations = [], [], []
    for name, part in (("without", plain), ("with", teacher_texts.same_texts(documents))):
        shard = teacher_texts.write_shard(tmp_path / f"{name}.dtok", part)
        config = config_of(
            tmp_path / name, models["llama"], shard, data={"teacher_seq_len": 0, "eval": [{"path": shard}]}
        )
        config["eval"] = {"every": 3}
        run = tiny.train(tmp_path / name, config)
        steps, evaluated = tiny.read_metrics(run)
        records.append(timeless(steps))
        evaluations.append(timeless(evaluated))
        weights.append(files(run / "model"))
        said = (run / "log.txt").read_text()
        assert ("the teacher reads a text of its own" in said) == (name == "with")
    assert len(records[0]) == 6 and records[0] == records[1]
    assert len(evaluations[0]) == 2 and evaluations[0] == evaluations[1]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_training_follows_a_reference_in_which_the_teacher_reads_its_own_prompt(tmp_path, models, family):
    steps, batch = 10, 4
    random = np.random.default_rng(5)
    # Each document takes more than half of its sequences: in the order of the file, a sample is one document.
    documents = [
        teacher_texts.random_document(
            random, int(random.integers(9, 16)), int(random.integers(8, 16)), int(random.integers(20, 33))
        )
        for _ in range(steps * batch)
    ]
    shard = teacher_texts.write_shard(tmp_path / "one.dtok", documents)
    config = config_of(
        tmp_path,
        models[family],
        shard,
        data={"shuffle": False},
        train={"steps": steps, "micro_batch_size": 2, "global_batch_size": batch},
    )
    batches = [documents[at : at + batch] for at in range(0, len(documents), batch)]
    expected, model = teacher_texts.train(config, batches)
    run = tiny.train(tmp_path, config)
    found, _ = tiny.read_metrics(run)
    for step, reference in zip(found, expected, strict=True):
        assert step["valid_tokens"] == reference["valid_tokens"]
        for name in reference_training.MEANS + ("grad_norm",):
            assert step[name] == pytest.approx(reference[name], rel=1e-4), f"step {step['step']}: {name}"
    trained = tiny.load_weights(run / "model")
    reference = {name: value for name, value in model.state_dict().items() if name in trained}
    assert tiny.relative_difference(trained, reference) < 1e-4

    # The prompt matters: a teacher that reads the student's says something else.
    same = teacher_texts.train(config, [teacher_texts.same_texts(part) for part in batches[:1]])[0]
    assert abs(same[0]["forward_kl"] - expected[0]["forward_kl"]) > 2e-3


def test_evaluation_of_packed_documents_follows_the_reference(tmp_path, models, documents, shard):
    config = config_of(tmp_path, models["qwen3"], shard, data={"eval": [{"path": shard}]})
    found = tiny.evaluate(tmp_path, config)
    student, teacher = (reference_training.load(folder) for folder in models["qwen3"])
    expected = teacher_texts.evaluate(student, teacher, documents, LOSS)
    assert found["valid_tokens"] == expected["valid_tokens"] > 300
    for name in reference_training.MEANS:
        assert found[name] == pytest.approx(expected[name], rel=1e-4), name


@pytest.mark.parametrize(
    "micro_batch, parallel",
    [
        (6, {"processes": 1}),
        (1, {"processes": 1}),
        (2, {"processes": 3}),
        (1, {"processes": 3, "shard_teacher": False}),
        (1, {"processes": 2, "replicate": 2}),
    ],
)
def test_ranks_and_micro_batches_train_alike(tmp_path, models, shard, micro_batch, parallel):
    tiny.need_devices(parallel["processes"])
    runs = []
    for name, size, ranks in (("one", 2, {"processes": 1}), ("other", micro_batch, parallel)):
        config = config_of(
            tmp_path / name, models["llama"], shard, train={"micro_batch_size": size}, parallel=dict(ranks)
        )
        run = tiny.train(tmp_path / name, config)
        runs.append((tiny.read_metrics(run)[0], tiny.load_weights(run / "model")))
    (expected, weights), (found, other) = runs
    assert len(found) == 6
    for step, reference in zip(found, expected, strict=True):
        assert step["valid_tokens"] == reference["valid_tokens"]
        for name in reference_training.MEANS + ("grad_norm",):
            assert step[name] == pytest.approx(reference[name], rel=2e-5), f"step {step['step']}: {name}"
    assert tiny.relative_difference(other, weights) < 1e-5


def test_stopping_and_resuming_changes_no_bit(tmp_path, models, shard):
    folders = [tmp_path / "whole", tmp_path / "parts"]
    for folder in folders:
        config = config_of(folder, models["qwen3"], shard, train={"steps": 12}, checkpoint={"every": 4, "keep": 9})
        tiny.train(folder, config)
    run = folders[1] / "run"
    for step in (8, 12):
        shutil.rmtree(run / "checkpoints" / f"step-{step}")
    expected, _ = tiny.read_metrics(folders[0] / "run")
    tiny.train(folders[1], config, "--resume")
    assert timeless(tiny.read_metrics(run)[0]) == timeless(expected)
    assert state_files(run, 12) == state_files(folders[0] / "run", 12)
    assert files(run / "model") == files(folders[0] / "run" / "model")


def test_another_teacher_length_begins_a_stage_and_a_replay_finds_it(tmp_path, models, shard):
    def config(length, steps):
        result = config_of(
            tmp_path,
            models["qwen3"],
            shard,
            data={"teacher_seq_len": length},
            train={"steps": steps},
            checkpoint={"every": 3, "keep": 9},
        )
        return result | {"scheduler": {"type": "constant"}}

    run = tiny.train(tmp_path, config(48, 6))
    tiny.train(tmp_path, config(64, 9), "--resume")
    index = json.loads((run / "checkpoints" / "step-9" / "index.json").read_text())
    assert [stage["teacher_seq_len"] for stage in index["data_stages"]] == [48, 64]
    assert [stage["step"] for stage in index["data_stages"]] == [0, 6]
    text = tiny.distill("inspect", run / "checkpoints" / "step-9").stdout
    assert "seq_len 32, teacher_seq_len 48, pack" in text and "seq_len 32, teacher_seq_len 64, pack" in text
    for step in (5, 8):  # of both stages, each from the checkpoint before it
        done = tiny.distill("replay", "--config", run / "config.yaml", "--step", step)
        assert f"step {step}: the replay equals the record, bit for bit" in done.stdout, done.stdout


def test_self_distillation_with_the_answer_in_the_teachers_prompt_learns(tmp_path, models):
    """The student's weights are the teacher's: without another prompt the loss would be 0."""
    random = np.random.default_rng(6)
    documents = []
    for _ in range(12):
        question, answer = random.integers(1, tiny.VOCAB, 6), random.integers(1, tiny.VOCAB, 8)
        mark = lambda prompt: np.arange(prompt + 8) >= prompt  # noqa: E731
        shown = np.concatenate([answer, question])
        documents.append(
            (np.concatenate([question, answer]), mark(6), (np.concatenate([shown, answer]), mark(len(shown))))
        )
    folder = models["llama"][0]
    losses = {}
    for name, part in (("own", documents), ("same", teacher_texts.same_texts(documents))):
        shard = teacher_texts.write_shard(tmp_path / f"{name}.dtok", part)
        config = config_of(
            tmp_path / name,
            (folder, folder),
            shard,
            loss={"divergence": "forward_kl", "soft_weight": 1.0, "hard_weight": 0.0},
            train={"steps": 30, "global_batch_size": 6},
        )
        steps, _ = tiny.read_metrics(tiny.train(tmp_path / name, config))
        losses[name] = [step["loss"] for step in steps]
    assert losses["own"][0] > 0.05
    assert np.mean(losses["own"][-3:]) < 0.5 * np.mean(losses["own"][:3])
    assert losses["same"][0] == pytest.approx(0, abs=1e-6)


def test_sources_with_and_without_a_stream_train_together(tmp_path, models, shard):
    plain = tiny.make_shard(tmp_path / "plain.dtok", tiny.random_documents(8, [20, 50, 7, 31] * 8))
    config = config_of(tmp_path, models["llama"], shard, train={"steps": 4})
    config["data"]["train"].append({"path": plain})
    run = tiny.train(tmp_path, config)
    steps, _ = tiny.read_metrics(run)
    assert all(np.isfinite(step["loss"]) and step["valid_tokens"] > 0 for step in steps)
    said = (run / "log.txt").read_text()
    assert said.count("the teacher reads a text of its own") == 1


def test_the_start_says_what_is_cut_and_left_out(tmp_path, models, documents):
    random = np.random.default_rng(9)
    whole = teacher_texts.random_document(random, 5, 10, 8)
    cut = teacher_texts.random_document(random, 20, 20, 30)
    left_out = teacher_texts.random_document(random, 5, 10, 60)
    shard = teacher_texts.write_shard(tmp_path / "a.dtok", [whole, cut, left_out, (whole[0], whole[1], None)])
    config = config_of(tmp_path, models["llama"], shard, data={"shuffle": False}, train={"steps": 1})
    run = tiny.train(tmp_path, config)
    said = (run / "log.txt").read_text()
    assert "for 3 of these documents, in sequences of 48" in said
    assert "1 are cut at the end, 1 are left out since no target fits" in said
    (step,), _ = tiny.read_metrics(run)
    # Six sequences are three epochs of two: 12 and 18 tokens of a completion fit, of the cut document the first 12.
    assert step["valid_tokens"] == 3 * (10 + 10 + 12)


@pytest.mark.parametrize(
    "teacher_prompt, sections",
    [
        (257, {"data": {"teacher_seq_len": 512}}),
        (1, {"data": {"teacher_seq_len": 0}}),
        (45, {"data": {"teacher_seq_len": 300}, "memory": {"activation": "offload"}}),
        (
            385,
            {
                "data": {"teacher_seq_len": 640},
                "memory": {"activation": "recompute"},
                "parallel": {"processes": 2},
            },
        ),
    ],
)
def test_planned_bytes_are_those_allocated(tmp_path, models, teacher_prompt, sections):
    random = np.random.default_rng(7)
    # Nearly every token has a target, as in the plan.
    documents = [teacher_texts.random_document(random, 1, 255, teacher_prompt) for _ in range(24)]
    shard = teacher_texts.write_shard(tmp_path / "long.dtok", documents)
    length = sections["data"]["teacher_seq_len"]
    data = {"seq_len": 256} | sections.pop("data")
    processes = sections.get("parallel", {}).get("processes", 1)
    teacher = tiny.make_model(tmp_path / "model", "llama", seed=3, tied=False, hidden=64, layers=3)
    change_model(teacher, max_position_embeddings=1024)
    config = config_of(
        tmp_path,
        (models["llama"][0], teacher),
        shard,
        data=data,
        train={"steps": 3, "micro_batch_size": 2, "global_batch_size": 4 * processes},
        **sections,
    )
    config["loss"] = LOSS | {"memory_cap_mb": 1, "min_chunk_size": 16}
    # Seven micro-batches are read ahead or in use, whose tokens, positions and rows for the teacher are not planned.
    batches = 7 * 2 * 8 * (2 * (length or 256) + 256)
    check_against_measured(
        profile(tmp_path, config), workspace_too=processes == 1, unplanned=memory_plans.UNPLANNED + batches
    )


def test_the_plan_counts_the_tokens_that_the_teacher_reads(tmp_path, models, shard):
    def plan(shard, **data):
        return tiny.plan(tmp_path, config_of(tmp_path, models["llama"], shard, data=data))

    plain = tiny.make_shard(tmp_path / "plain.dtok", tiny.random_documents(8, [20, 50, 7, 31] * 8))
    none, short, long = plan(plain, teacher_seq_len=0), plan(shard), plan(shard, teacher_seq_len=192)
    missing, unknown = (plan(str(tmp_path / "none"), teacher_seq_len=length) for length in (192, 0))
    assert [found["teacher_tokens_per_micro_batch"] for found in (none, short, long)] == [64, 96, 384]
    seconds = [found["seconds"]["teacher"] for found in (none, short, long)]
    assert seconds[0] < seconds[1] < seconds[2]
    assert none["phases"]["teacher"]["peak"] < long["phases"]["teacher"]["peak"]
    # Where the data is not there yet, the key says that it will have a stream.
    assert missing["bytes"] == long["bytes"] and missing["seconds"] == long["seconds"]
    assert unknown["bytes"] == none["bytes"] and unknown["seconds"] == none["seconds"]


def test_errors_name_the_file_and_the_key(tmp_path, models, shard):
    def refused(**sections):
        config = config_of(tmp_path, models["llama"], shard, **sections)
        done = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.BAD_INPUT)
        return done.stderr

    said = refused(data={"packing": "concat"})
    assert shard in said and "expected packing: pack, found concat" in said
    assert "data.teacher_seq_len" in refused(data={"teacher_seq_len": 4096})  # the model reads 256 tokens


def test_a_length_without_a_stream_is_warned_about(tmp_path, models):
    plain = tiny.make_shard(tmp_path / "plain.dtok", tiny.random_documents(8, [20, 50, 7, 31] * 8))
    run = tiny.train(tmp_path, config_of(tmp_path, models["llama"], plain, train={"steps": 1}))
    assert (
        "data.teacher_seq_len 48 has no effect: no document has a text of the teacher's own"
        in (run / "log.txt").read_text()
    )


def test_a_run_without_a_teacher_reads_the_documents_alone(tmp_path, models, documents, shard):
    alone = teacher_texts.write_shard(tmp_path / "alone.dtok", [document[:2] for document in documents])
    losses = []
    for name, path in (("with", shard), ("alone", alone)):
        config = config_of(tmp_path / name, models["llama"], path, data={"teacher_seq_len": 0})
        config["loss"] = {"divergence": "none", "hard_weight": 1}
        del config["teacher"]
        # The order of samples depends on the file; all of them are in each step.
        config["data"]["shuffle"] = False
        losses.append([step["loss"] for step in tiny.read_metrics(tiny.train(tmp_path / name, config))[0]])
    assert losses[0] == losses[1]
