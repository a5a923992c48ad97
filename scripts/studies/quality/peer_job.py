"""What the loops of other programs share with distill: rows of tokens, optimizer and schedule, from the same config.

A job is the configuration file of a distill run (JSON is YAML) with data.packing concat and data.shuffle false: the
documents are one stream of tokens, which is cut into sequences in order.
"""

import json
import math
from pathlib import Path

import numpy as np
import torch

from token_shards import shard_file

IGNORE = -100


def read_job(path):
    """The nested configuration; a ValueError if these loops cannot do what it says."""
    job = json.loads(Path(path).read_text())
    expected = {
        ("data", "packing"): "concat",
        ("data", "shuffle"): False,
        ("loss", "divergence"): "jsd",
        ("scheduler", "type"): "cosine",
    }
    for (section, key), value in expected.items():
        found = job[section].get(key)
        if found != value:
            raise ValueError(
                f"{path}: {section}.{key}: expected {value} for a comparison with other loops, found {found}"
            )
    if job["loss"].get("soft_weight", 1) != 1 or job["loss"].get("hard_weight", 0) != 0:
        raise ValueError(f"{path}: expected the divergence alone, found weights {job['loss']}")
    if len(job["data"]["train"]) != 1 or job["train"]["micro_batch_size"] != job["train"]["global_batch_size"]:
        raise ValueError(f"{path}: expected one token shard, and one micro-batch in a step")
    return job


def stream(job):
    """int64 [rows, seq_len + 1]: the tokens of each sequence and of the target after its last one."""
    _, documents, masks = shard_file.read(job["data"]["train"][0])
    if masks is not None:
        raise ValueError(f"{job['data']['train'][0]}: expected a loss on every token, found a loss mask")
    tokens = np.concatenate(documents).astype(np.int64)
    length = job["data"]["seq_len"]
    rows = (len(tokens) - 1) // length
    return torch.from_numpy(np.stack([tokens[row * length : (row + 1) * length + 1] for row in range(rows)]))


def batches(job):
    """Yields [batch, seq_len + 1] for each step."""
    rows, size, steps = stream(job), job["train"]["global_batch_size"], job["train"]["steps"]
    if steps * size > len(rows):
        raise ValueError(f"expected {steps * size} sequences in {job['data']['train'][0]}, found {len(rows)}")
    yield from rows[: steps * size].split(size)


def rate_factor(job, step):
    """The learning rate of the 0-based step, as a part of its peak: linear warm-up, then cosine to the end."""
    scheduler, steps = job["scheduler"], job["train"]["steps"]
    warmup, floor = scheduler["warmup_steps"], scheduler["min_lr_ratio"]
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def make_optimizer(job, model):
    """AdamW whose weight decay is for matrices alone."""
    options = job["optimizer"]
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": options["weight_decay"]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = job["train"]["device"] == "cuda"
    return torch.optim.AdamW(groups, lr=options["lr"], betas=(options["beta1"], options["beta2"]), fused=fused)


def load_models(job):
    """(student in fp32, teacher in the run's dtype), on its device."""
    from transformers import AutoModelForCausalLM

    device, dtype = job["train"]["device"], getattr(torch, job["train"]["dtype"])
    load = AutoModelForCausalLM.from_pretrained
    student = load(job["student"]["path"], dtype=torch.float32, local_files_only=True).to(device).train()
    teacher = load(job["teacher"]["path"], dtype=dtype, local_files_only=True).to(device).eval()
    return student, teacher.requires_grad_(False)


def save(job, student, records, totals):
    """The trained model in bf16, as distill writes it, and steps.json, into run.dir."""
    folder = Path(job["run"]["dir"])
    folder.mkdir(parents=True, exist_ok=True)
    student.to(torch.bfloat16 if job["train"]["dtype"] == "bfloat16" else torch.float32)
    student.save_pretrained(folder / "model")
    for file in Path(job["student"]["path"]).glob("tokenizer*"):
        (folder / "model" / file.name).write_bytes(file.read_bytes())
    (folder / "steps.json").write_text(json.dumps({"steps": records, **totals}) + "\n")
