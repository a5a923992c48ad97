import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))

import tiny


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    """(student, teacher, token shard) of the jobs of this folder."""
    folder = tmp_path_factory.mktemp("models")
    student = tiny.make_model(folder / "student", "llama", seed=1, tied=True)
    teacher = tiny.make_model(folder / "teacher", "llama", seed=2, tied=False)
    return (
        student,
        teacher,
        tiny.make_shard(folder / "data.dtok", tiny.random_documents(3, [5, 61, 17, 128, 2, 33, 90, 47] * 60)),
    )
