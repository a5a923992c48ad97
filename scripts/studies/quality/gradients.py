"""Gradients of a student's first step by the plain PyTorch loop and by TRL's GKDTrainer, in fp32 and in bf16.

  scripts/studies/quality.py gradients --work work/quality --student half

Prints norms, and how far the gradients are from each other: the norm of the difference over the norm of the gradient in
fp32. It says whether a program that ends elsewhere in bf16 computes something else, or has the same rounding.
"""

import json
import tempfile
from pathlib import Path


def add_arguments(parser):
    parser.add_argument("--work", type=Path, default=Path("work/quality"), help="folder of the inputs")
    parser.add_argument("--student", default="half")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")


class FirstStep(Exception):
    """Has the gradient, and ends the training."""


def job(args, dtype, folder):
    """As that of the peers (peers.py), for one step."""
    shard = min((args.work / "data" / "train").glob("*.dtok"))
    config = {
        "student": {"path": str(args.work / "students" / args.student)},
        "teacher": {"path": str(args.work / "teacher")},
        "data": {"train": [str(shard)], "seq_len": args.seq_len, "packing": "concat", "shuffle": False},
        "loss": {"divergence": "jsd", "beta": 0.5},
        "train": {
            "steps": 1,
            "micro_batch_size": args.sequences,
            "global_batch_size": args.sequences,
            "device": args.device,
            "dtype": dtype,
        },
        "optimizer": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.0, "max_grad_norm": 1e9},
        "scheduler": {"type": "cosine", "warmup_steps": 1, "min_lr_ratio": 0.1},
    }
    path = Path(folder) / "job.yaml"
    path.write_text(json.dumps(config))
    return path


def first_gradient(train, config):
    """All gradients as one vector, at the first call of the optimizer."""
    import torch

    from . import peer_job

    class Reader(torch.optim.AdamW):
        def step(self, *_):
            weights = (weight for group in self.param_groups for weight in group["params"])
            raise FirstStep(torch.cat([weight.grad.flatten().double() for weight in weights]))

    make = peer_job.make_optimizer
    peer_job.make_optimizer = lambda _, model: Reader(model.parameters(), lr=1e-3)
    try:
        train(peer_job.read_job(config))
    except FirstStep as found:
        return found.args[0]
    finally:
        peer_job.make_optimizer = make
    raise RuntimeError(f"{train}: took no step")


def main(args):
    from . import plain_loop, trl_loop

    programs = {"plain": lambda one: plain_loop.train(one, "plain"), "trl": trl_loop.train}
    with tempfile.TemporaryDirectory() as folder:
        found = {
            (name, dtype): first_gradient(train, job(args, dtype, folder))
            for dtype in ("float32", "bfloat16")
            for name, train in programs.items()
        }
    exact = found["plain", "float32"]
    result = {
        f"{name} {dtype}": {"norm": float(one.norm()), "from plain float32": float((one - exact).norm() / exact.norm())}
        for (name, dtype), one in found.items()
    }
    apart = found["trl", "bfloat16"] - found["plain", "bfloat16"]
    result["trl bfloat16"]["from plain bfloat16"] = float(apart.norm() / exact.norm())
    print(json.dumps(result, indent=1))
