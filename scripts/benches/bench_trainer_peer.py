#!/usr/bin/env python3
"""Measures a PyTorch trainer of the shapes of bench_trainer.sh: FSDP2, transformers, Liger, torchao's float8.

  scripts/benches/bench_trainer_peer.py --student 1b --teacher 8b          # one GPU
  torchrun --nproc-per-node 2 bench_trainer_peer.py --student 8b --teacher 8b --no-checkpointing --json OUT

The models are those of transformers with random weights, on random tokens; experts take its grouped products. The
student has fp32 weights under FSDP2 (bf16 parameters, fp32 reduction), activation checkpointing and torch.compile of
each block, and fused AdamW. The teacher is frozen, in bf16 and sharded by FSDP2 too; it is whole on the only GPU, and
on each with --teacher-float8 unless --shard-teacher is given. The loss is JSD(0.5), computed in the forward of lm_head.
A global batch has the same tokens on any number of ranks.

Of Qwen3.5's layers the gated delta rule and the convolution are flash-linear-attention's and causal-conv1d's. On a GPU
the script ends where transformers would run its slow reference instead, unless --torch-delta-rule allows that. The
backward pass needs Triton 3.7.1 or newer on Hopper.

With --lora RANK the student has adapters of peft on every matrix of its blocks, in the dtype of its frozen weights, and
the teacher is the student without them, so that the weights are in memory once. That is for one GPU.

Each step prints its time (of the slowest rank), tokens per second of a GPU, loss and peak memory (of the fullest GPU);
the last line has the median time and the peak of the last half of the steps. Without a GPU, for tests:

  bench_trainer_peer.py --device cpu --dtype float32 --head plain --no-compile --student tiny --teacher tiny \\
    --vocab 1000 --sequence 64
"""

import script_path

import contextlib
import importlib.util
import json
import os
import sys
from importlib import metadata
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import bench_inputs
from peers_trainer.delta_kernels import delta_functions, has_delta_rule, missing_kernels
from peers_trainer.lora import OwnBase, adapted_student
from peers_trainer.models import make_student, make_teacher
from peers_trainer.steps import attention_kernels, measured_step, random_tokens, summary_of, train_step
from shared.command_line import argument_parser, at_least, fail

# module: for pip
PACKAGES = {"transformers": "transformers", "liger_kernel": "liger-kernel", "torchao": "torchao", "peft": "peft"}
# What decides the figures of layers with a gated delta rule, too.
DELTA_PACKAGES = ["fla-core", "causal-conv1d", "triton"]


def parse_arguments(arguments=None):
    """The options; combinations that cannot work end the script."""
    parser = argument_parser(__doc__)
    parser.add_argument("--student", choices=bench_inputs.SHAPES, default="1b")
    parser.add_argument("--teacher", choices=bench_inputs.SHAPES, default="8b")
    parser.add_argument("--vocab", type=at_least(1), help="tokens; default: those of the student's family")
    parser.add_argument("--sequence", type=at_least(1), default=4096, help="tokens of a sequence")
    parser.add_argument("--batch", type=at_least(1), default=2, help="sequences of each GPU in a step")
    parser.add_argument("--steps", type=at_least(1), default=8)
    parser.add_argument(
        "--head",
        choices=("liger-chunked", "liger-fused", "plain"),
        default="liger-chunked",
        help="Liger's LigerFusedLinearJSDLoss, its LigerFusedLinearJSDFunction, or whole logits without Liger",
    )
    parser.add_argument("--chunk", type=at_least(1), default=1024, help="tokens of a chunk of liger-chunked")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="both models compute in it"
    )
    parser.add_argument(
        "--teacher-float8", choices=("rowwise", "tensorwise"), help="torchao's recipe for the teacher's blocks"
    )
    parser.add_argument(
        "--student-float8",
        choices=("rowwise", "rowwise_with_gw_hp", "tensorwise"),
        help="torchao's recipe for the student's blocks",
    )
    parser.add_argument(
        "--attention",
        choices=("sdpa", "flex_attention"),
        default="sdpa",
        help="transformers' implementation; sdpa computes windows with a mask",
    )
    parser.add_argument(
        "--shard-teacher", action="store_true", help="shard a teacher in float8, too, which is whole otherwise"
    )
    parser.add_argument(
        "--torch-delta-rule",
        action="store_true",
        help="on a GPU, allow transformers' reference in PyTorch for gated delta rules and their convolution",
    )
    parser.add_argument("--lora", type=at_least(1), metavar="RANK", help="train adapters; the teacher is their base")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--no-checkpointing", dest="checkpointing", action="store_false", help="keep activations")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the steps and their summary to this file too")
    options = parser.parse_args(arguments)
    options.vocab = options.vocab or bench_inputs.config(options.student)["vocab_size"]
    if options.json and options.json.is_dir():
        parser.error(f"--json: expected a file, found the folder {options.json}")
    if options.shard_teacher and not options.teacher_float8:
        parser.error("--shard-teacher: expected --teacher-float8 beside it, since other teachers are sharded always")
    if options.lora and options.student != options.teacher:
        parser.error(f"--lora: expected the student's shape as --teacher, found {options.teacher}")
    if options.lora and int(os.environ.get("WORLD_SIZE", 1)) > 1:
        parser.error("--lora: expected one GPU, found several ranks")
    if options.device == "cpu":
        if options.head == "liger-fused":
            parser.error("--head: expected plain or liger-chunked with --device cpu, found liger-fused")
        for name in ("teacher_float8", "student_float8"):
            if recipe := getattr(options, name):
                parser.error(f"--{name.replace('_', '-')}: expected none with --device cpu, found {recipe}")
    return options


def require_packages(options):
    """Ends the script where a package that the options need is not installed."""
    needed = {
        "transformers": "the models",
        "liger_kernel": options.head.startswith("liger") and f"--head {options.head}",
        "peft": options.lora and "--lora",
        "torchao": (options.teacher_float8 or options.student_float8) and "float8",
    }
    for module, use in needed.items():
        if use and importlib.util.find_spec(module) is None:
            install = f"{sys.executable} -m pip install {PACKAGES[module]}"
            fail(f"expected the package {module} for {use}, found none; install it with: {install}")


def require_kernels(options):
    """{function: module of its code} of the delta rule and its convolution; ends the script where no kernel runs."""
    shapes = [shape for shape in (options.student, options.teacher) if has_delta_rule(shape)]
    if not shapes:
        return {}
    functions = delta_functions(shapes[0])
    missing = missing_kernels(functions)
    if missing and options.device == "cuda" and not options.torch_delta_rule:
        fail(f"expected kernels for the gated delta rule of {shapes[0]}: {'; '.join(missing)}; or --torch-delta-rule")
    return functions


def join_ranks(kind):
    """Makes this process one of torchrun's ranks, or the only one; returns (device, rank, number of ranks)."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        if device.index >= torch.cuda.device_count():
            fail(f"--device cuda: expected GPU {device.index} for this rank, found {torch.cuda.device_count()} GPUs")
        torch.cuda.set_device(device)
    alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if world == 1 else {}
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", device_id=device if kind == "cuda" else None, **alone)
    return device, dist.get_rank(), world


def versions():
    """{package: version} of torch and those of PACKAGES and DELTA_PACKAGES that are installed."""
    found = {"torch": torch.__version__}
    for package in [*PACKAGES.values(), *DELTA_PACKAGES]:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def line_of(name, values):
    """One line of output: a step, or the summary of the last ones."""
    line = f"{name}: {values['seconds']:.3f} s, {values['tokens_per_second_per_gpu']:.0f} tok/s per GPU"
    if "loss" in values:
        line += f", loss {values['loss']:.6f}"
    if "allocated_gib" in values:
        line += f", peak {values['allocated_gib']:.1f} GiB allocated, {values['reserved_gib']:.1f} reserved"
    return line


def run(options, device, rank, world, kernels):
    """Trains and prints; returns the report for --json. `kernels`: what require_kernels returns."""
    mesh = init_device_mesh(device.type, (world,))
    if options.lora:
        student = adapted_student(options, device)
        teacher = OwnBase(student)
    else:
        student, teacher = make_student(options, mesh, device), make_teacher(options, mesh, device)
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    say = print if rank == 0 else lambda *values, **settings: None
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    adapters = f" with LoRA of rank {options.lora}" if options.lora else ""
    code = "".join(f", {function} of {module}" for function, module in kernels.items())
    say(
        f"{options.student}{adapters} <- {options.teacher}, {world} x {name}, torch {torch.__version__}{code}",
        flush=True,
    )
    steps, tokens = [], options.batch * options.sequence
    for index in range(options.steps):
        tokens_BS = random_tokens(options, index, rank, world).to(device)
        with attention_kernels(device):
            step = measured_step(lambda batch=tokens_BS: train_step(student, teacher, optimizer, batch), device)
        steps.append(step | {"tokens_per_second_per_gpu": tokens / step["seconds"]})
        say(line_of(f"step {index + 1}", steps[-1]), flush=True)
    summary = summary_of(steps, tokens)
    say(line_of(f"median of the last {len(steps) - len(steps) // 2} steps", summary), flush=True)
    return {
        "device": name,
        "ranks": world,
        "versions": versions(),
        "kernels": kernels,
        "arguments": {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
        "steps": steps,
        "summary": summary,
    }


def main():
    options = parse_arguments()
    require_packages(options)
    kernels = require_kernels(options)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
    device, rank, world = join_ranks(options.device)
    report = run(options, device, rank, world, kernels)
    if options.json and rank == 0:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
