#!/usr/bin/env python3
"""Times flash-linear-attention's gated delta rule at the shapes of models_gpu_speed's DeltaSpeed, and its error.

For each shape: milliseconds of the forward pass and of forward and backward together (medians of 10), on the first GPU
in bf16; and, for 2 heads and 600 tokens, the errors of the output and of the gradients against the recurrence in fp64.
The backward pass needs Triton 3.7.1 or newer on Hopper; without it, that column is empty.

  pip install flash-linear-attention && scripts/benches/bench_delta_rule.py
  build/release/tests/trainer/models/models_gpu_speed --gtest_filter='DeltaSpeed*'
"""

import script_path

import statistics

from shared.command_line import argument_parser, fail

SHAPES = [(32, 8192, 8192), (32, 8192, 700), (32, 65536, 65536), (32, 65536, 8192), (48, 8192, 8192), (48, 65536, 8192)]
KEY_HEADS, DIM = 16, 128


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
    query, key = (
        torch.randn(1, tokens, KEY_HEADS, DIM, **options).repeat_interleave(max(heads // KEY_HEADS, 1), 2)[:, :, :heads]
        for _ in range(2)
    )
    value = torch.randn(1, tokens, heads, DIM, **options)
    decay = -torch.rand(1, tokens, heads, device="cuda")
    beta = torch.rand(1, tokens, heads, **options)
    ends = torch.tensor([*range(0, tokens, document), tokens], device="cuda", dtype=torch.int32)
    return [x.contiguous().requires_grad_() for x in (query, key, value, decay, beta)], ends


def recurrence(query, key, value, decay, beta):
    import torch

    query, key = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    state = query.new_zeros(query.shape[2], DIM, DIM)
    outputs = []
    for t in range(query.shape[1]):
        state = state * decay[0, t, :, None, None].exp()
        held = (state * key[0, t, :, :, None]).sum(1)
        state = state + key[0, t, :, :, None] * ((value[0, t] - held) * beta[0, t, :, None])[:, None]
        outputs.append((state * query[0, t, :, :, None]).sum(1) * DIM**-0.5)
    return torch.stack(outputs)[None]


def errors(rule):
    """Relative errors of the output and of each gradient against fp64; what cannot be computed is left out."""
    import torch

    tensors, ends = inputs(2, 600, 600)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    out, expected = rule(tensors, ends), recurrence(*exact)
    direction = torch.randn_like(out)
    yield "output", ((out - expected).norm() / expected.norm()).item()
    try:
        found = torch.autograd.grad(out, tensors, direction)
    except Exception as error:  # whatever Triton or the library's own check raises
        print(f"no backward pass: {str(error).splitlines()[0]}")
        return
    wanted = torch.autograd.grad(expected, exact, direction.double())
    for name, one, other in zip(("q", "k", "v", "decay", "beta"), found, wanted):
        yield name, ((one - other).norm() / other.norm()).item()


def main():
    argument_parser(__doc__).parse_args()
    try:
        import fla
        import torch
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except ImportError as error:
        fail(f"expected an environment with torch and flash-linear-attention: {error}")
    if not torch.cuda.is_available():
        fail("expected a CUDA device, found none")

    def rule(tensors, ends):
        return chunk_gated_delta_rule(*tensors, use_qk_l2norm_in_kernel=True, cu_seqlens=ends)[0]

    print(f"flash-linear-attention {fla.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print("errors against fp64: " + ", ".join(f"{name} {error:.1e}" for name, error in errors(rule)))
    for heads, tokens, document in SHAPES:
        tensors, ends = inputs(heads, tokens, document)
        with torch.no_grad():
            forward = milliseconds(lambda: rule(tensors, ends))  # noqa: B023
            direction = torch.randn_like(rule(tensors, ends))
        try:
            both = milliseconds(lambda: torch.autograd.grad(rule(tensors, ends), tensors, direction))  # noqa: B023
        except Exception:  # as in errors()
            both = float("nan")
        print(
            f"{heads} value heads, {tokens} tokens, documents of {document}: forward {forward:.3f} ms, "
            f"backward {both - forward:.3f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
