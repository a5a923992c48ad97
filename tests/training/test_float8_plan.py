"""The memory plan of runs with a float8 teacher."""

import subprocess
import sys

import pytest

import tiny
from float8_teacher import float8_config
from memory_plans import UNPLANNED, profile


def test_the_plan_knows_the_smaller_teacher(tmp_path, models, ragged_shard):
    def teacher_bytes(name, dtype):
        config = float8_config(tmp_path / name, models["llama"], ragged_shard, teacher={"dtype": dtype})
        if dtype != "float8":
            del config["float8"]
        report = profile(tmp_path / name, config)
        measured = report["measured"]["peak"]
        assert abs(report["peak_error"]) * measured <= 0.03 * measured + UNPLANNED
        planned = report["plan"]["phases"]["forward"]["highest"]["teacher"]
        # A GPU's allocator gives multiples of 512 bytes.
        slack = 512 * 16 if tiny.DEVICE == "cuda" else 0
        assert abs(planned - report["measured"]["phases"]["forward"]["highest"]["teacher"]) <= slack
        return planned

    exact, float8 = teacher_bytes("exact", "float32"), teacher_bytes("float8", "float8")
    blocks = 3 * (128 * 64 + 64 * 64 + 256 * 64 + 64 * 128)  # elements of the products' weights
    scales = 3 * (128 + 64 + 256 + 64) * 4
    assert exact - float8 == pytest.approx(3 * blocks - scales, rel=0.02)


@pytest.mark.parametrize(
    "student, ranks, settings, most_gib",
    [
        ("1b", 1, ["parallel.gather=nccl"], 125),
        ("8b", 4, ["parallel.gather=nccl"], 72),
        ("8b", 4, ["parallel.gather=nccl", "student.dtype=float8"], 72),
        ("8b", 4, ["memory.budget_gib=72"], 72),  # copies need more: it does without them
    ],
)
def test_a_70b_teacher_is_planned_within_the_memory_of_h200s(tmp_path, student, ranks, settings, most_gib):
    script = tiny.REPOSITORY / "scripts" / "benches" / "bench_inputs.py"
    inputs = ["--out", tmp_path, "--shapes", f"{student},70b", "--rows", 1, "--seq-len", 16]
    subprocess.run([sys.executable, *map(str, [script, *inputs])], check=True, capture_output=True)
    config = tiny.base_config(tmp_path, str(tmp_path / student), str(tmp_path / "70b"), str(tmp_path / "tokens.dtok"))
    config["data"] |= {"seq_len": 4096}
    config["train"] |= {"global_batch_size": 2 * ranks, "device": "cuda", "dtype": "bfloat16"}
    settings = [*settings, "teacher.dtype=float8", "float8.gate=false", "memory.machine=H200"]
    plan = tiny.plan(tmp_path, config, "--ranks", ranks, "--set", *settings)
    assert plan["fits"] and plan["gather"] == "nccl"
    assert plan["bytes"]["peak"] <= most_gib * 2**30
    # bf16 instead of float8 is 1 byte more for each element of the blocks' matrices, on each rank its share.
    codes = (tiny.SUCCESS, tiny.DOES_NOT_FIT)
    other = tiny.plan(tmp_path, config, "--ranks", ranks, "--set", settings[0], settings[-1], code=codes)
    teacher = [each["phases"]["teacher"]["highest"]["teacher"] for each in (other, plan)]
    matrices = 80 * (10240 * 8192 + 8192 * 8192 + 2 * 28672 * 8192 + 28672 * 8192)
    assert teacher[0] - teacher[1] == pytest.approx(matrices / ranks, rel=0.01)
