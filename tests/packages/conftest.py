import sys
from pathlib import Path

import pytest

from wheels import environment_with

sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))  # tiny_job


@pytest.fixture(scope="session")
def losses(tmp_path_factory):
    return environment_with("losses", tmp_path_factory)


@pytest.fixture(scope="session")
def trainer(tmp_path_factory):
    return environment_with("trainer", tmp_path_factory)
