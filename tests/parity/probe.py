"""Runs of model_probe.cpp, which computes the models of folders on given tokens."""

import json
import os
import subprocess
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

BUILD = Path(os.environ.get("DISTILL_BUILD", "build/release"))
PROBE = BUILD / "tests/parity/model_probe"


def tokens_and_targets(vocab_size, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab_size, (2, 48), generator=generator)
    targets = torch.randint(0, vocab_size, (2, 48), generator=generator)
    targets[torch.rand(targets.shape, generator=generator) < 0.3] = -100
    return tokens, targets


class Probe:
    """The jobs of one process, and its results. A model is named by its folder in `root`."""

    def __init__(self, root):
        self.root, self.jobs = root, []

    def add(self, name, tokens, targets, suffix="", boundaries=None, save_dtype=None, **options):
        """`suffix`: of the names of the job's files, for a model with several jobs."""
        path = self.root / f"{name}{suffix}"
        inputs = {"tokens": tokens, "targets": targets}
        save_file(inputs | ({"boundaries": torch.tensor(boundaries)} if boundaries else {}), f"{path}.in.safetensors")
        job = {"model": str(self.root / name), "input": f"{path}.in.safetensors", "output": f"{path}.out.safetensors"}
        if save_dtype is not None:
            options |= {"save": f"{path}.saved", "save_dtype": str(save_dtype).removeprefix("torch.")}
        self.jobs.append(job | options)

    def run(self):
        (self.root / "jobs.json").write_text(json.dumps(self.jobs))
        subprocess.run([PROBE, self.root / "jobs.json"], check=True)

    def tokens(self, name, suffix=""):
        return load_file(self.root / f"{name}{suffix}.in.safetensors")["tokens"]

    def output(self, name, suffix=""):
        """{"logits", "loss", "grad.NAME"}"""
        return load_file(self.root / f"{name}{suffix}.out.safetensors")

    def saved(self, name):
        """The folder to which the job has saved the model."""
        return self.root / f"{name}.saved"


def bound(model_type, error):
    """The bound of an error in fp32: where states decay fast, transformers' own against fp64 is up to ten times that of
    other models."""
    return 10 * error if model_type.startswith("qwen3_5") else error


def relative_error(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()
