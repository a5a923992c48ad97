import os
import shutil

import pytest

from program import distill_program
from program_runs import run_program


@pytest.fixture(scope="session")
def distill():
    """Runs distill: distill(folder, *args) -> CompletedProcess with text."""
    program = distill_program()
    assert program.exists(), f"{program}: not built; run scripts/build.sh, or name the program in DISTILL_BIN"

    def run(folder, *args, timeout=120):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return run_program([program, *args], environment, cwd=folder, timeout=timeout, errors="replace")

    return run


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    """A folder with everything that tiny_job.CONFIG names. Read-only: copy it to change it."""
    import tiny_job

    folder = tmp_path_factory.mktemp("job")
    tiny_job.write_job(folder)
    return folder


@pytest.fixture
def place(job, tmp_path):
    """A copy of the job in tmp_path, to run and to change."""
    shutil.copytree(job, tmp_path, dirs_exist_ok=True)
    return tmp_path
