"""The wheel of distill-cpp: `distill-cpp` of a fresh environment trains, and refuses a torch that does not fit."""

import json
import os
import re

import pytest
import torch

import tiny_job
from wheels import ROOT, fake_torch, local_version, needs_cuda, version_of


@pytest.fixture
def job(tmp_path):
    tiny_job.write_job(tmp_path)
    return tmp_path


def test_distill_trains_with_the_torch_of_the_environment(program, job):
    device = f"train.device={os.environ.get('DISTILL_TEST_DEVICE', 'cpu')}"
    program.run("distill-cpp", "--config", "config.yaml", "--set", device, cwd=job, OMP_NUM_THREADS="1")
    lines = [json.loads(line) for line in (job / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert len(losses) >= 2 and all(loss > 0 for loss in losses)
    assert (job / "run" / "model" / "config.json").exists()


def test_the_quickstarts_configuration(program, job):
    """With tiny models and texts in the places of the real ones."""
    inputs = job / "work" / "quickstart"
    (inputs / "data" / "eval").mkdir(parents=True)
    (job / "train").rename(inputs / "data" / "train")
    (job / "eval.dtok").rename(inputs / "data" / "eval" / "shard-00000.dtok")
    for name in ("student", "teacher"):
        (job / name).rename(inputs / name)
    changed = ["train.steps=3", "data.seq_len=16", "eval.every=2", "eval.batches=1", "scheduler.warmup_steps=1"]
    options = [argument for setting in changed for argument in ("--set", setting)]
    program.run("distill-cpp", "--config", ROOT / "configs" / "quickstart.yaml", *options, cwd=job, OMP_NUM_THREADS="1")
    lines = [json.loads(line) for line in (job / "runs" / "quickstart" / "metrics.jsonl").read_text().splitlines()]
    assert max(line.get("step", 0) for line in lines) == 3
    assert (job / "runs" / "quickstart" / "model" / "model.safetensors").exists()


def test_ranks_that_distill_starts_itself(program, job):
    """The processes that it starts find the libraries, too."""
    program.run("distill-cpp", "--config", "config.yaml", "--set", "parallel.processes=2", cwd=job, OMP_NUM_THREADS="1")
    assert (job / "run" / "model" / "config.json").exists()


def test_arguments_and_exit_codes_are_the_programs(program, job):
    assert re.match(r"distill [\d.]+ \(libtorch ", program.run("distill-cpp", "--version", cwd=job))
    assert "missing.yaml" in program.run("distill-cpp", "--config", "missing.yaml", cwd=job, code=2)


def test_the_name_says_for_which_torch_and_whether_the_program_needs_cuda(program):
    local = version_of(program.wheel, "distill_cpp")
    assert local == local_version(needs_cuda(program.site_packages / "distill_cpp" / "bin" / "distill"))


def test_another_torch_is_refused_with_both_versions(program, job):
    other = fake_torch(job / "torch", "2.3.1+cu121", "12.1")
    output = program.run("distill-cpp", "--version", cwd=job, code=2, DISTILL_TORCH_DIR=other)
    release = torch.__version__.split("+")[0]
    assert re.match(rf"distill-cpp: distill \S+ was built for torch {re.escape(release)} \(", output)
    assert "found torch 2.3.1+cu121 (CUDA 12.1): install that torch" in output


def test_an_environment_without_torch(program, job):
    path = next(program.site_packages.glob("*.pth"))
    hidden = path.rename(path.with_suffix(".hidden"))
    try:
        output = program.run("distill-cpp", "--version", cwd=job, code=2)
    finally:
        hidden.rename(path)
    assert re.match(r"distill-cpp: \S+/python\S*: expected torch [\d.]+, found no torch", output)
    output = program.run("distill-cpp", "--version", cwd=job, code=2, DISTILL_TORCH_DIR=str(job))
    assert "DISTILL_TORCH_DIR: expected a torch package with lib/libtorch_cpu.so" in output
