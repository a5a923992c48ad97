"""Runs with a float8 teacher: ranks, PyTorch's losses, resumption, and input that is refused."""

import re

import pytest
import transformers

import reference_training
import tiny
from float8_teacher import float8_config, reference_teacher
from model_files import changed_copy, setting


@pytest.mark.parametrize("ranks", [2, 3])
def test_k_ranks_equal_one(tmp_path, models, ragged_shard, ranks):
    tiny.need_devices(ranks)

    def losses(name, processes, **parallel):
        config = float8_config(
            tmp_path / name,
            models["llama"],
            ragged_shard,
            teacher={"float8_exceptions": ["1.o", "2"]},
            float8={"gate_tokens": 10**6},
            data={"eval": [{"path": ragged_shard}]},
            train={"steps": 5, "micro_batch_size": 1, "global_batch_size": 6},
            parallel={"processes": processes, "debug_checks": True} | parallel,
        )
        run = tiny.train(tmp_path / name, config)
        log = (run / "log.txt").read_text()
        gate = next(line for line in log.splitlines() if "float8 teacher against" in line)
        return [step["soft"] for step in tiny.read_metrics(run)[0]], gate.split("mean KL")[1]

    one, gate_one = losses("one", 1)
    many, gate_many = losses("many", ranks)
    whole, gate_whole = losses("whole", ranks, shard_teacher=False)
    assert many == pytest.approx(one, rel=1e-5)
    assert whole == pytest.approx(one, rel=1e-5)
    assert gate_many == gate_one and gate_whole == gate_one


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_run_follows_pytorch_with_the_same_rounding(tmp_path, models, ragged_shard, monkeypatch, family):
    student, teacher = models[family]
    config = float8_config(tmp_path, (student, teacher), ragged_shard, train={"steps": 6})
    load = transformers.AutoModelForCausalLM.from_pretrained

    def load_rounded(folder, **options):
        return reference_teacher(folder) if str(folder) == teacher else load(folder, **options)

    with monkeypatch.context() as patch:
        reference = reference_teacher(teacher)
        patch.setattr(
            reference_training.AutoModelForCausalLM,
            "from_pretrained",
            lambda folder, **options: reference if str(folder) == teacher else load(folder, **options),
        )
        expected, _ = reference_training.train(config)
    found, _ = tiny.read_metrics(tiny.train(tmp_path, config))
    plain = tiny.base_config(
        tmp_path / "plain", student, teacher, ragged_shard, train={"steps": 6}, scheduler={"warmup_steps": 1}
    )
    without, _ = tiny.read_metrics(tiny.train(tmp_path / "plain", plain))
    missed = changed = 0.0  # over the steps, since the change of one step's mean loss may be 0
    for step, reference_step, exact in zip(found, expected, without):
        # The tensor cores' fast accumulation has an error of its own.
        assert step["soft"] == pytest.approx(reference_step["soft"], rel=5e-3 if tiny.DEVICE == "cuda" else 2e-3)
        missed += abs(step["soft"] - reference_step["soft"])
        changed += abs(step["soft"] - exact["soft"])
    assert missed < (0.5 if tiny.DEVICE == "cuda" else 0.2) * changed


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path, models, ragged_shard):
    def config(name, steps):
        return float8_config(
            tmp_path / name,
            models["llama"],
            ragged_shard,
            float8={"gate": False},
            train={"steps": steps},
            checkpoint={"every": 2},
        )

    whole = tiny.read_metrics(tiny.train(tmp_path / "whole", config("whole", 4)))[0]
    run = tiny.train(tmp_path / "parts", config("parts", 4))
    path = tmp_path / "parts" / "config.yaml"
    tiny.distill("--config", path, "--resume-from", run / "checkpoints" / "step-2")
    resumed = tiny.read_metrics(run)[0]
    assert [(step["step"], step["loss"]) for step in resumed] == [(step["step"], step["loss"]) for step in whole]
    assert (run / "model" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "run" / "model" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("reader, product", [(0, "self_attn.q_proj"), (1, "mlp.down_proj")])
def test_weights_that_are_not_finite_end_all_ranks_though_one_reads_them(
    tmp_path, models, ragged_shard, gate, reader, product
):
    tiny.need_devices(2)
    student, teacher = models["llama"]
    name = f"model.layers.1.{product}.weight"
    teacher = changed_copy(teacher, tmp_path / "teacher", setting(name, (40, 3), float("nan")))
    # A rank that waits for one that has ended, or for another collective, fails after this time or in another way.
    parallel = {"timeout_s": 600}
    config = float8_config(tmp_path, (student, teacher), ragged_shard, float8={"gate": gate}, parallel=parallel)
    if not gate:
        del config["float8"]["max_mean_kl"]
    ranks = tiny.run_ranks([tiny.write_config(tmp_path, config)] * 2)
    assert [code for code, _ in ranks] == [tiny.BAD_INPUT] * 2, ranks
    # The check reads them twice, in both precisions.
    found = rf"tensor {name}: expected finite weights, found {2 if gate else 1} NaN or infinite value\(s\)"
    assert re.search(found + r", the first at \[40, 3\]", ranks[reader][1]), ranks
    assert "1 other rank(s) failed; their messages say why" in ranks[1 - reader][1], ranks
    assert name not in ranks[1 - reader][1], ranks
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("reader, product", [(0, "self_attn.q_proj"), (1, "mlp.down_proj")])
def test_weights_of_a_float8_student_that_are_not_finite_end_all_ranks(tmp_path, models, ragged_shard, reader, product):
    tiny.need_devices(2)
    student, teacher = models["llama"]
    name = f"model.layers.0.{product}.weight"
    student = changed_copy(student, tmp_path / "student", setting(name, (40, 3), float("nan")))
    config = tiny.base_config(tmp_path, student, teacher, ragged_shard, parallel={"timeout_s": 40})
    config["student"]["dtype"] = "float8"
    ranks = tiny.run_ranks([tiny.write_config(tmp_path, config)] * 2)
    assert [code for code, _ in ranks] == [tiny.BAD_INPUT] * 2, ranks
    assert f"tensor {name}: expected finite weights, found 1 NaN" in ranks[reader][1], ranks
    assert "1 other rank(s) failed; their messages say why" in ranks[1 - reader][1], ranks


@pytest.mark.parametrize("processes", [1, 2])
def test_tokens_without_a_finite_error_end_the_run_on_any_number_of_ranks(tmp_path, models, ragged_shard, processes):
    tiny.need_devices(processes)
    student, teacher = models["llama"]
    # Finite weights with logits beyond fp32: infinite at those tokens alone whose hidden state is near this direction.
    teacher = changed_copy(teacher, tmp_path / "teacher", setting("lm_head.weight", 7, 3e37))
    config = float8_config(
        tmp_path,
        (student, teacher),
        ragged_shard,
        float8={"gate_tokens": 10**6},
        data={"eval": [{"path": ragged_shard}]},
        train={"steps": 4, "micro_batch_size": 1, "global_batch_size": 2},
        parallel={"processes": processes},
    )
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.BAD_INPUT)
    found = re.search(r"a finite KL at every token with a target, found (\d+) of (\d+)", done.stderr)
    assert found, done.stderr
    assert 0 < int(found.group(1)) < int(found.group(2))
    assert "teacher.dtype: float8" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    "section, key, value, says",
    [
        ("teacher", "float8_exceptions", ["dwon"], ["teacher.float8_exceptions", "found 'dwon'", "down"]),
        ("teacher", "float8_exceptions", ["3"], ["teacher.float8_exceptions", "blocks from 0 to 2", "found '3'"]),
        ("train", "dtype", "float8", ["train.dtype", "one of auto, float32, bfloat16", 'found "float8"']),
        ("float8", "max_mean_kl", 0, ["float8.max_mean_kl", "found 0"]),
        ("teacher", "dtype", "float32", ["float8.max_mean_kl", "teacher.dtype is float8"]),
    ],
)
def test_bad_input_is_named(tmp_path, models, ragged_shard, section, key, value, says):
    config = float8_config(tmp_path, models["llama"], ragged_shard)
    config[section][key] = value
    tiny.expect_refused(tmp_path, config, says)


def test_sizes_that_the_products_do_not_take_are_named(tmp_path, models, ragged_shard):
    odd = tiny.make_model(tmp_path / "odd", "llama", seed=4, tied=False, vocab=tiny.TEACHER_VOCAB, hidden=40)
    config = float8_config(tmp_path, (models["llama"][0], odd), ragged_shard)
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.BAD_INPUT)
    assert "expected weights whose sizes are multiples of 16" in done.stderr
    assert "teacher.float8_exceptions" in done.stderr
