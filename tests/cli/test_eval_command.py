"""`distill eval` with a configuration, with options alone, with a teacher and without one."""

import json

import pytest

CPU = ["train.device=cpu", "train.dtype=float32"]


def evaluated(distill, place, *args):
    done = distill(place, "eval", *args, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_options_alone_give_what_the_configuration_gives(distill, place):
    from_file = evaluated(distill, place, "--config", "config.yaml")
    options = ["--student", "student", "--teacher", "teacher", "--data", "eval.dtok"]
    alone = evaluated(distill, place, *options, "--set", *CPU, "data.seq_len=16", "loss.beta=0.5")
    assert alone == pytest.approx(from_file, rel=1e-5)
    # Options take precedence over the file.
    other = evaluated(distill, place, "--config", "config.yaml", "--student", "teacher")
    assert other["forward_kl"] == pytest.approx(0, abs=1e-6) and from_file["forward_kl"] > 1e-3


def test_without_a_teacher_the_loss_is_that_of_the_labels(distill, place):
    with_teacher = evaluated(distill, place, "--config", "config.yaml")
    for args in (
        ["--student", "student", "--data", "eval.dtok", "--set", *CPU, "data.seq_len=16"],
        ["--config", "labels.yaml"],
    ):
        text = (place / "config.yaml").read_text()
        (place / "labels.yaml").write_text(text.replace("teacher:\n  path: teacher\n", ""))
        alone = evaluated(distill, place, *args)
        assert alone["loss"] == alone["hard"] == pytest.approx(with_teacher["hard"], rel=1e-5)
        assert "forward_kl" not in alone
    said = distill(place, "eval", "--config", "labels.yaml")
    assert "no teacher: the loss is the cross-entropy on the labels" in said.stdout


def test_the_length_is_what_the_models_can_read(distill, place):
    config = json.loads((place / "student" / "config.json").read_text())
    (place / "student" / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 24}))
    args = ["eval", "--student", "student", "--teacher", "teacher", "--data", "eval.dtok", "--set", *CPU]
    done = distill(place, *args)
    assert done.returncode == 0, done.stderr
    assert "sequences of 24 tokens, float32 on cpu, teacher teacher (float32)" in done.stdout
    refused = distill(place, *args, "data.seq_len=25")
    assert refused.returncode == 2 and "max_position_embeddings (24)" in refused.stderr


def test_several_data_sets_may_be_named(distill, place):
    one = evaluated(distill, place, "--student", "student", "--data", "eval.dtok", "--set", *CPU)
    two = evaluated(distill, place, "--student", "student", "--data", "eval.dtok", "train", "--set", *CPU)
    assert two["valid_tokens"] > one["valid_tokens"]
