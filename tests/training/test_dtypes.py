"""Student and teacher compute in dtypes of their own."""

import pytest

import tiny


@pytest.mark.parametrize("student_dtype, teacher_dtype", [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_a_teacher_of_another_dtype_teaches_the_same(
    tmp_path, models, ragged_shard, monkeypatch, student_dtype, teacher_dtype
):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # newer instructions fail on some virtual machines

    def losses(name, **dtypes):
        config = tiny.base_config(
            tmp_path / name, *models["llama"], ragged_shard, train={"steps": 3}, scheduler={"warmup_steps": 1}
        )
        for model, dtype in dtypes.items():
            config[model]["dtype"] = dtype
        return [step["soft"] for step in tiny.read_metrics(tiny.train(tmp_path / name, config))[0]]

    exact = losses("fp32", student="float32", teacher="float32")
    mixed = losses("mixed", student=student_dtype, teacher=teacher_dtype)
    assert mixed == pytest.approx(exact, rel=0.03)
    assert mixed != exact  # something was computed in bf16
