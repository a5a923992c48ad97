import sys
from pathlib import Path

import pytest

from wheels import environment_with

sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))  # tiny_job


@pytest.fixture(scope="session")
def losses(tmp_path_factory):
    return environment_with("distill-losses", tmp_path_factory)


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    return environment_with("distill-cpp", tmp_path_factory)
