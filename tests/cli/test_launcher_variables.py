"""A part of a launcher's variables is an error, and never a run of its own."""

import os

import pytest

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "SLURM_", "OMPI_", "PMI_", "MPI_", "MASTER_")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    "found, missing",
    [
        ("RANK", "WORLD_SIZE"),
        ("WORLD_SIZE", "RANK"),
        ("LOCAL_RANK", "RANK and WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ("PMI_RANK", "PMI_SIZE"),
        ("PMI_SIZE", "PMI_RANK"),
    ],
)
def test_half_of_a_launchers_variables_is_an_error(distill, place, monkeypatch, found, missing):
    monkeypatch.setenv(found, "1")
    done = distill(place, "--config", "config.yaml")
    assert done.returncode == 2, done.stderr
    assert f"found {found}=1 without {missing}; set what is missing" in done.stderr
    assert not (place / "run").exists()


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_NTASKS": "16", "SLURM_NTASKS_PER_NODE": "8", "SLURM_JOB_ID": "7"},  # a shell of salloc
        {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"},  # a script of sbatch without --ntasks
        {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"},
    ],
    ids=["salloc", "sbatch", "address"],
)
def test_an_allocation_without_ranks_is_a_plain_start(distill, job, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = distill(job, "--config", "config.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
