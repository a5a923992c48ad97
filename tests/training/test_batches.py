"""How samples are grouped into micro-batches, rows and evaluations changes nothing."""

import pytest

import reference_training
import tiny

NUMBERS = (*reference_training.MEANS, "agreement", "accuracy", "valid_tokens")


def test_one_micro_batch_of_eight_is_two_of_four_is_eight_of_one(tmp_path, models, ragged_shard):
    student, teacher = models["qwen3"]
    runs = {}
    for micro in (8, 4, 1):
        config = tiny.base_config(
            tmp_path / str(micro),
            student,
            teacher,
            ragged_shard,
            train={"steps": 3, "micro_batch_size": micro},
            scheduler={"warmup_steps": 1},
        )
        run = tiny.train(tmp_path / str(micro), config)
        runs[micro] = (tiny.read_metrics(run)[0], tiny.load_weights(run / "model"))
    steps, weights = runs[8]
    initial = tiny.load_weights(student)
    update = {name: weights[name] - initial[name] for name in weights}
    for micro in (4, 1):
        for found, expected in zip(runs[micro][0], steps, strict=True):
            assert found["valid_tokens"] == expected["valid_tokens"]
            for name in ("loss", "hard", "soft", "grad_norm"):
                assert found[name] == pytest.approx(expected[name], rel=1e-5), f"micro-batches of {micro}: {name}"
        assert tiny.relative_difference(runs[micro][1], weights) < 1e-6
        assert tiny.relative_difference({n: runs[micro][1][n] - initial[n] for n in weights}, update) < 1e-3


def test_evaluating_a_training_batch_gives_the_training_loss(tmp_path, models, ragged_shard):
    # One step over 8 rows in micro-batches of 2: an evaluation of the first four micro-batches sees the same rows.
    config = tiny.base_config(
        tmp_path,
        *models["llama"],
        ragged_shard,
        data={"eval": [{"path": ragged_shard}]},
        train={"steps": 1},
        scheduler={"type": "constant", "warmup_steps": 0},
        eval={"batches": 4, "at_start": True},
    )
    steps, evaluations = tiny.read_metrics(tiny.train(tmp_path, config))
    command = tiny.evaluate(tmp_path, config)
    during = evaluations[0]["eval"]
    for name in NUMBERS:
        assert during[name] == pytest.approx(steps[0][name], rel=1e-6), name
        assert command[name] == pytest.approx(steps[0][name], rel=1e-6), name
    # With other rows the numbers are others: the agreement above is no accident.
    assert tiny.evaluate(tmp_path, config, eval_batches=3)["loss"] != pytest.approx(steps[0]["loss"], rel=1e-3)


@pytest.fixture
def short_documents():
    return tiny.random_documents(5, [9, 30, 3, 17, 12, 25, 6, 31, 14, 20, 2, 8, 28, 11])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_packed_documents_have_the_losses_they_have_one_by_one(tmp_path, models, short_documents, family):
    student, teacher = models[family]
    shard = tiny.make_shard(tmp_path / "documents.dtok", short_documents)
    loss = {"divergence": "jsd", "beta": 0.5, "hard_weight": 0.5, "soft_weight": 1.0}
    folders = [reference_training.load(folder) for folder in (student, teacher)]
    rows = [reference_training.document_row(document) for document in reference_training.read_shard(shard)]
    expected = reference_training.evaluate(*folders, rows, loss)
    config = tiny.base_config(
        tmp_path, student, teacher, shard, loss=loss, data={"eval": [{"path": shard}], "packing": "pack"}
    )
    packed = tiny.evaluate(tmp_path, config, data_seq_len=96)
    for name in NUMBERS:
        assert packed[name] == pytest.approx(expected[name], rel=2e-5), name
    # The same tokens as one stream attend across documents and give other losses.
    stream = tiny.evaluate(tmp_path, config, data_seq_len=96, data_packing="concat")
    assert stream["loss"] != pytest.approx(expected["loss"], rel=1e-3)


def test_each_packed_document_has_its_own_loss(tmp_path, models, short_documents):
    # One document alone in the loss at a time, the others packed around it: its loss must not move.
    student, teacher = models["qwen3"]
    folders = [reference_training.load(folder) for folder in (student, teacher)]
    loss = {"divergence": "forward_kl", "hard_weight": 1.0, "soft_weight": 1.0}
    for chosen in (1, 7, 11):
        documents = [
            (tokens, in_loss * 0 + (index == chosen)) for index, (tokens, in_loss) in enumerate(short_documents)
        ]
        shard = tiny.make_shard(tmp_path / f"{chosen}.dtok", documents)
        row = reference_training.document_row(reference_training.read_shard(shard)[chosen])
        expected = reference_training.evaluate(*folders, [row], loss)
        config = tiny.base_config(
            tmp_path,
            student,
            teacher,
            shard,
            loss=loss,
            data={"eval": [{"path": shard}], "packing": "pack", "seq_len": 64},
        )
        del config["loss"]["beta"]
        found = tiny.evaluate(tmp_path, config)
        for name in ("loss", "hard", "soft", "forward_kl", "reverse_kl", "valid_tokens"):
            assert found[name] == pytest.approx(expected[name], rel=2e-5), f"document {chosen}: {name}"


def test_training_on_packed_documents_follows_the_documents_one_by_one(tmp_path, models, short_documents):
    # Every step sees the whole epoch, so that the order of the rows does not matter.
    import torch

    student, teacher = models["qwen3"]
    shard = tiny.make_shard(tmp_path / "documents.dtok", short_documents)
    config = tiny.base_config(
        tmp_path,
        student,
        teacher,
        shard,
        data={"packing": "pack", "seq_len": 36},
        scheduler={"type": "constant", "warmup_steps": 0},
    )
    config["train"] |= {"steps": 3, "micro_batch_size": 1, "global_batch_size": packed_rows(short_documents, 36)}
    found, _ = tiny.read_metrics(tiny.train(tmp_path, config))

    model, frozen = reference_training.load(student), reference_training.load(teacher)
    optimizer = reference_training.make_optimizer(model, config["optimizer"])
    parts = [reference_training.document_row(document) for document in reference_training.read_shard(shard)]
    valid = sum(int((targets != reference_training.IGNORE).sum()) for _, targets in parts)
    for step in found:
        total = 0.0
        optimizer.zero_grad()
        for tokens, targets in parts:
            value = (
                reference_training.token_losses(model, frozen, tokens, targets, config["loss"])["loss"].sum() / valid
            )
            value.backward()
            total += value.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config["optimizer"]["max_grad_norm"])
        optimizer.step()
        assert step["valid_tokens"] == valid
        assert step["loss"] == pytest.approx(total, rel=1e-4)
        assert step["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def packed_rows(documents, seq_len):
    """Rows of best fit decreasing."""
    rooms = []
    for length in sorted((len(tokens) for tokens, _ in documents), reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
            rooms.append(min(fitting) - length)
        else:
            rooms.append(seq_len - length)
    return len(rooms)
