#!/usr/bin/env python3
"""Times flash-linear-attention's gated delta rule at the shapes of models_gpu_speed's DeltaSpeed, and its error.

For each shape, on the first GPU in bf16: milliseconds of the forward pass, then those of the backward pass (forward and
backward together less the forward pass; medians of 10). At last, for 600 tokens, the errors of the output and of the
gradients against the recurrence in fp64. The backward pass needs Triton 3.7.1 or newer on Hopper.

Triton tries many variants of each kernel, and compiles all of them for each number of heads anew. Before each pass,
processes compile a part of them each, side by side, and leave them in Triton's cache (TRITON_CACHE_DIR).

  pip install fla-core einops && scripts/benches/bench_delta_rule.py --shapes 32x8192x8192,32x65536x65536
  build/release/tests/trainer/models/models_gpu_speed --gtest_filter='DeltaSpeed*'
"""

import script_path

import argparse
import os
import statistics
import subprocess
import sys
import time

from shared.command_line import argument_parser, fail

SHAPES = [(32, 8192, 8192), (32, 8192, 700), (32, 65536, 65536), (32, 65536, 8192), (48, 8192, 8192), (48, 65536, 8192)]
KEY_HEADS, DIM = 16, 128
PARTS = min(os.cpu_count() or 1, 16)  # processes that compile


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
    """q, k, v, decay, beta with gradients, and the boundaries of the documents."""
    import torch

    options = {"device": "cuda", "dtype": torch.bfloat16}
    query, key = (torch.randn(1, tokens, KEY_HEADS, DIM, **options) for _ in range(2))
    value = torch.randn(1, tokens, heads, DIM, **options)
    decay = -torch.rand(1, tokens, heads, device="cuda")
    beta = torch.rand(1, tokens, heads, **options)
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


def start_compilers(shapes):
    """Processes that wait for the name of a pass, run it with their part of the variants, and answer with a line."""
    first = {heads: "x".join(map(str, (heads, tokens, document))) for heads, tokens, document in reversed(shapes)}
    return [
        subprocess.Popen(
            [sys.executable, __file__, "--compile", str(part), "--shapes", ",".join(first.values())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in range(PARTS)
    ]


def compile_pass(compilers, which):
    start = time.monotonic()
    for compiler in compilers:
        print(which, file=compiler.stdin, flush=True)
    answers = [compiler.stdout.readline().strip() for compiler in compilers]
    problems = sorted({answer or "a process ended" for answer in answers} - {"done"})
    print(f"compiled the {which} pass in {time.monotonic() - start:.0f} s", *problems, sep="; ", flush=True)


def keep_part_of_variants(part):
    """Leaves each kernel that is defined from now on one part of its variants."""
    from triton.runtime.autotuner import Autotuner

    whole = Autotuner.__init__

    def initialise(self, function, names, configs, *args, **kwargs):
        whole(
            self, function, names, configs and (configs[part::PARTS] or [configs[part % len(configs)]]), *args, **kwargs
        )

    Autotuner.__init__ = initialise


def compile_on_demand(rule, shapes):
    import torch

    for line in sys.stdin:
        try:
            for shape in shapes:
                tensors, ends = inputs(*shape)
                with torch.set_grad_enabled(line.strip() == "backward"):
                    out = rule(tensors, ends)
                if out.requires_grad:
                    torch.autograd.grad(out, tensors, torch.ones_like(out))
            torch.cuda.synchronize()
            del tensors, ends, out
            torch.cuda.empty_cache()  # what is measured next needs the memory
            print("done", flush=True)
        except Exception as error:  # whatever Triton or the library's own check raises
            print(str(error).splitlines()[0] if str(error) else type(error).__name__, flush=True)


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
        print(f"no backward pass: {str(error).splitlines()[0]}")
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
        compile_on_demand(rule, shapes)
        return
    versions = f"flash-linear-attention {fla.__version__}, Triton {triton.__version__}, torch {torch.__version__}"
    print(f"{versions}, {torch.cuda.get_device_name()}", flush=True)
    compilers = start_compilers(shapes)
    forward = {}
    compile_pass(compilers, "forward")
    for shape in shapes:
        tensors, ends = inputs(*shape)
        with torch.no_grad():
            forward[shape] = milliseconds(lambda: rule(tensors, ends))  # noqa: B023
        print(f"{describe(shape)}: forward {forward[shape]:.3f} ms", flush=True)
    if not args.only_forward:
        compile_pass(compilers, "backward")
    for compiler in compilers:  # what is measured next needs their memory
        compiler.stdin.close()
        compiler.wait()
    if not args.only_forward:
        for shape in shapes:
            tensors, ends = inputs(*shape)
            try:
                direction = torch.randn_like(tensors[2])
                both = milliseconds(lambda: torch.autograd.grad(rule(tensors, ends), tensors, direction))  # noqa: B023
                print(f"{describe(shape)}: backward {both - forward[shape]:.3f} ms", flush=True)
            except Exception as error:  # as in errors()
                print(f"{describe(shape)}: no backward pass: {str(error).splitlines()[0]}", flush=True)
                break
    found = errors(rule, shapes[0][0], args.only_forward)
    print("errors against fp64: " + ", ".join(f"{name} {error:.1e}" for name, error in found), flush=True)


if __name__ == "__main__":
    main()
