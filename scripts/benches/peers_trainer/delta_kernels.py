"""Which code transformers runs for the gated delta rule and its convolution: kernels, or its reference in PyTorch.

transformers takes flash-linear-attention and causal-conv1d where Python can import them, and otherwise, with no more
than a warning, loops in PyTorch that are many times slower. It decides while it is imported.
"""

import importlib
import inspect
import sys

import torch

import bench_inputs

# function of transformers' module: module of the package that replaces it, what to install for it
KERNELS = {
    "torch_chunk_gated_delta_rule": ("fla.ops.gated_delta_rule", "flash-linear-attention"),
    "causal_conv1d_fn": ("causal_conv1d", "causal-conv1d"),
}


def has_delta_rule(shape):
    """Whether layers of this shape of bench_inputs.py have a gated delta rule."""
    return "linear_key_head_dim" in bench_inputs.config(shape)


def delta_functions(shape):
    """{function of KERNELS: the module whose code runs for it} in the model class of a shape with a delta rule."""
    import transformers

    model_class = getattr(transformers, bench_inputs.config(shape)["architectures"][0])
    module = sys.modules[model_class.__module__]
    return {name: implementation(getattr(module, name)).__module__ for name in KERNELS}


def implementation(function):
    """What transformers' wrapper calls; RuntimeError where its form is not the one that is known."""
    while function is not None:
        found = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
        if "implementation" in found:
            return found["implementation"]
        function = getattr(function, "__wrapped__", None)
    import transformers

    raise RuntimeError(
        f"transformers {transformers.__version__}: expected a wrapper with the variable `implementation`, which says "
        "whether a kernel or the reference in PyTorch runs, found none"
    )


def leave_kernels_uncompiled(causal):
    """Keeps torch.compile out of the kernels of a delta rule where the model calls them.

    Dynamo refuses causal-conv1d's operators' outputs, and left to itself would try to compile each function on the way
    to them. And within a compiled block transformers takes its own reference for the rule, even where it has found a
    kernel: torch 2.11 traces `torch.compiler.is_exporting()`, which transformers 5.17 asks, as true.
    """
    module = sys.modules[type(causal).__module__]
    for name in KERNELS:
        function = getattr(module, name, None)
        if function is not None and not implementation(function).__module__.startswith("transformers."):
            setattr(module, name, torch.compiler.disable(function))


def missing_kernels(functions):
    """A line for each of delta_functions() that is transformers' reference in PyTorch, with the reason."""
    lines = []
    for name, (package, install) in KERNELS.items():
        if functions[name].startswith("transformers."):
            try:
                importlib.import_module(package)
                reason = "it can be imported now, and could not when transformers was"
            except Exception as error:  # a package that is installed may fail in any way
                reason = f"{type(error).__name__}: {error}"
            lines.append(f"{name} is transformers' reference in PyTorch, since {install} cannot be imported ({reason})")
    return lines
