#!/usr/bin/env python3
"""Times flash-linear-attention's gated delta rule at the shapes of models_gpu_speed's DeltaSpeed, and its error.

On the first GPU in bf16: first the errors of the output and of the gradients against the recurrence in fp64, for 600
tokens, and then for each shape milliseconds of the forward pass and those of the backward pass (forward and backward
together less the forward pass; medians of 10). Each line is printed as soon as it is known. The backward pass needs
Triton 3.7.1 or newer on Hopper.

Triton tries many variants of each kernel, and compiles all of them for each number of heads anew. So processes compile
a part of them each, side by side, leave them in Triton's cache (TRITON_CACHE_DIR), and end before anything is measured,
at the latest after six tenths of --limit. After --limit the script ends, whatever it has printed by then. With
--for-trainer it compiles alone, in the form in which bench_trainer_peer.py's models call the rule, so that this script
finds the kernels in the cache and does not spend minutes on them.

  pip install fla-core einops && scripts/benches/bench_delta_rule.py --shapes 32x8192x8192,32x65536x65536
  build/release/tests/trainer/models/models_gpu_speed --gtest_filter='DeltaSpeed*'
"""

import script_path

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import threading
import time

from shared.command_line import argument_parser, at_least, fail

SHAPES = [(32, 8192, 8192), (32, 8192, 700), (32, 65536, 65536), (32, 65536, 8192), (48, 8192, 8192), (48, 65536, 8192)]
KEY_HEADS, DIM = 16, 128
PARTS = min(os.cpu_count() or 1, 16)  # processes that compile, for each number of heads
COMPILED_TOKENS = 2048  # Triton compiles the same for more, and the processes share the GPU's memory
TRAINER = 0  # in place of a document's tokens: as transformers calls the rule
COMPILERS = []  # those that run
TOO_LATE = 124  # the exit code after --limit


def milliseconds(call, runs=10):
    import torch

    for _ in range(3):
        call()
    times = []
    for _ in range(runs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def inputs(heads, tokens, document):
    """q, k, v, decay, beta with gradients, and the boundaries of the documents.

    With TRAINER as `document` there are two sequences, no boundaries, and as many heads of queries and keys as of
    values.
    """
    import torch

    options = {"device": "cuda", "dtype": torch.bfloat16}
    batch, key_heads = (2, heads) if document == TRAINER else (1, KEY_HEADS)
    query, key = (torch.randn(batch, tokens, key_heads, DIM, **options) for _ in range(2))
    value = torch.randn(batch, tokens, heads, DIM, **options)
    decay = -torch.rand(batch, tokens, heads, device="cuda")
    beta = torch.rand(batch, tokens, heads, **options)
    ends = None
    if document != TRAINER:
        ends = torch.tensor([*range(0, tokens, document), tokens], device="cuda", dtype=torch.int32)
    return [x.contiguous().requires_grad_() for x in (query, key, value, decay, beta)], ends


def recurrence(query, key, value, decay, beta):
    import torch

    query, key = (
        (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)).repeat_interleave(value.shape[2] // KEY_HEADS, 2)
        for x in (query, key)
    )
    state = query.new_zeros(query.shape[2], DIM, DIM)
    outputs = []
    for t in range(query.shape[1]):
        state = state * decay[0, t, :, None, None].exp()
        held = (state * key[0, t, :, :, None]).sum(1)
        state = state + key[0, t, :, :, None] * ((value[0, t] - held) * beta[0, t, :, None])[:, None]
        outputs.append((state * query[0, t, :, :, None]).sum(1) * DIM**-0.5)
    return torch.stack(outputs)[None]


def shapes_of(text):
    try:
        shapes = [tuple(int(number) for number in shape.split("x")) for shape in text.split(",")]
    except ValueError:
        shapes = [()]
    if any(len(shape) != 3 or shape[0] % KEY_HEADS != 0 for shape in shapes):
        fail(
            f"--shapes: value heads (a multiple of {KEY_HEADS}) x tokens x tokens of a document are expected, "
            f"as 32x8192x700, found {text!r}"
        )
    return shapes


def describe(shape):
    heads, tokens, document = shape
    return f"{heads} value heads, {tokens} tokens, documents of {document}"


def compile_beside(shapes, only_forward, seconds):
    """Runs the first shape of each number of heads in PARTS processes, and ends them after so many seconds."""
    first = {heads: min(document, COMPILED_TOKENS) for heads, _, document in reversed(shapes)}
    begin = time.monotonic()
    more = ["--only-forward"] if only_forward else []
    for part, (heads, document) in itertools.product(range(PARTS), first.items()):
        shape = f"{heads}x{COMPILED_TOKENS}x{document}"
        command = [sys.executable, __file__, "--compile", str(part), "--shapes", shape, *more]
        COMPILERS.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    answers = []
    for process in COMPILERS:
        try:
            lines = process.communicate(timeout=max(0.1, begin + seconds - time.monotonic()))[0].split("\n")
            answers += [line for line in lines if line] or [f"a process ended with {process.returncode}"]
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()  # what is measured next needs its memory
            answers.append("a process was not done in time, and its variants are compiled later")
    COMPILERS.clear()
    problems = [f"{answers.count(answer)} x {answer}" for answer in sorted({*answers} - {"done"})]
    print("; ".join([f"compiled in {time.monotonic() - begin:.0f} s", *problems]), flush=True)


def end_after(seconds):
    """Ends this process and those that compile once so many seconds are over."""

    def end():
        print(f"not done within {seconds} s", flush=True)
        for process in COMPILERS:
            process.kill()
        os._exit(TOO_LATE)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def keep_part_of_variants(part):
    """Leaves each kernel that is defined from now on one part of its variants, and passes over those that cannot run.

    Autotuning passes over them too, but a single variant is called without it.
    """
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.errors import OutOfResources, PTXASError

    whole, run = Autotuner.__init__, Autotuner.run

    def initialise(self, function, names, configs, *args, **kwargs):
        whole(
            self, function, names, configs and (configs[part::PARTS] or [configs[part % len(configs)]]), *args, **kwargs
        )

    def run_if_possible(self, *args, **kwargs):
        try:
            return run(self, *args, **kwargs)
        except (CompileTimeAssertionFailure, OutOfResources, PTXASError):
            return None  # what it would have written does not matter here

    Autotuner.__init__, Autotuner.run = initialise, run_if_possible


def compile_part(rule, shapes, only_forward):
    """What a process of compile_beside does; prints "done", or a line about what went wrong."""
    import torch

    try:
        for shape in shapes:
            tensors, ends = inputs(*shape)
            with torch.set_grad_enabled(not only_forward):
                out = rule(tensors, ends)
            if not only_forward:
                torch.autograd.grad(out, tensors, torch.ones_like(out))
        torch.cuda.synchronize()
        print("done", flush=True)
    except Exception as error:  # whatever Triton or the library's own check raises
        print(first_line(error), flush=True)


def first_line(error):
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def errors(rule, heads, only_forward):
    """Relative errors of the output and of each gradient against fp64; what cannot be computed is left out."""
    import torch

    tensors, ends = inputs(heads, 600, 600)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    out, expected = rule(tensors, ends), recurrence(*exact)
    direction = torch.randn_like(out)
    yield "output", ((out - expected).norm() / expected.norm()).item()
    if only_forward:
        return
    try:
        found = torch.autograd.grad(out, tensors, direction)
    except Exception as error:  # whatever Triton or the library's own check raises
        print(f"no backward pass: {first_line(error)}", flush=True)
        return
    wanted = torch.autograd.grad(expected, exact, direction.double())
    for name, one, other in zip(("q", "k", "v", "decay", "beta"), found, wanted):
        yield name, ((one - other).norm() / other.norm()).item()


def main():
    parser = argument_parser(__doc__)
    all_shapes = ",".join("x".join(map(str, shape)) for shape in SHAPES)
    parser.add_argument(
        "--shapes", default=all_shapes, help="value heads x tokens x tokens of a document (default: %(default)s)"
    )
    parser.add_argument("--only-forward", action="store_true", help="no backward passes")
    parser.add_argument(
        "--for-trainer",
        type=lambda text: [(int(heads), COMPILED_TOKENS, TRAINER) for heads in text.split(",")],
        metavar="HEADS,...",
        help="compile alone, for models with these numbers of value heads",
    )
    parser.add_argument("--limit", type=at_least(1), default=200, help="seconds (default: %(default)s)")
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shapes = shapes_of(args.shapes)
    if args.compile is not None:
        keep_part_of_variants(args.compile)
    try:
        import fla
        import torch
        import triton
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError as error:
        fail(f"expected an environment with torch and flash-linear-attention: {error}")
    if not torch.cuda.is_available():
        fail("expected a CUDA device, found none")

    def rule(tensors, ends):
        return chunk_gated_delta_rule(*tensors, use_qk_l2norm_in_kernel=True, cu_seqlens=ends)[0]

    if args.compile is not None:
        compile_part(rule, shapes, args.only_forward)
        return
    end_after(args.limit)
    versions = f"flash-linear-attention {fla.__version__}, Triton {triton.__version__}, torch {torch.__version__}"
    print(f"{versions}, {torch.cuda.get_device_name()}", flush=True)
    if args.for_trainer:
        compile_beside(args.for_trainer, args.only_forward, 0.9 * args.limit)
        return
    compile_beside(shapes, args.only_forward, 0.6 * args.limit)
    found = errors(rule, shapes[0][0], args.only_forward)
    print("errors against fp64: " + ", ".join(f"{name} {error:.1e}" for name, error in found), flush=True)
    torch.cuda.empty_cache()
    for shape in shapes:
        measure(rule, shape, args.only_forward)


def measure(rule, shape, only_forward):
    """Prints the milliseconds of a shape."""
    import torch

    tensors, ends = inputs(*shape)
    with torch.no_grad():
        forward = milliseconds(lambda: rule(tensors, ends))
    print(f"{describe(shape)}: forward {forward:.3f} ms", flush=True)
    if only_forward:
        return
    direction = torch.randn_like(tensors[2])
    try:
        both = milliseconds(lambda: torch.autograd.grad(rule(tensors, ends), tensors, direction))
    except Exception as error:  # as in errors()
        print(f"{describe(shape)}: no backward pass: {first_line(error)}", flush=True)
        return
    print(f"{describe(shape)}: backward {both - forward:.3f} ms", flush=True)


if __name__ == "__main__":
    main()
