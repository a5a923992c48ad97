import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import tiny


@pytest.fixture(scope="session", autouse=True)
def program():
    torch.set_num_threads(1)
    path = Path(tiny.binary())
    if not path.is_file():
        pytest.fail(f"{path} is not built (scripts/build.sh), or set DISTILL_BIN or DISTILL_BUILD", pytrace=False)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders of a student and a teacher by family. The teacher is larger and padded to a wider vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    result = {}
    for family, tied in (("llama", False), ("qwen3", True), ("exaone4", False)):
        student = tiny.make_model(folder / f"{family}-student", family, seed=1, tied=tied)
        teacher = tiny.make_model(
            folder / f"{family}-teacher", family, seed=2, tied=tied, vocab=tiny.TEACHER_VOCAB, hidden=64, layers=3
        )
        result[family] = (student, teacher)
    return result


@pytest.fixture(scope="session")
def ragged_shard(tmp_path_factory):
    """About 60 rows of 32 tokens from documents of many lengths, a ragged loss mask on each."""
    lengths = [5, 61, 17, 128, 2, 33, 90, 47] * 5
    path = tmp_path_factory.mktemp("data") / "ragged.dtok"
    return tiny.make_shard(path, tiny.random_documents(3, lengths))
