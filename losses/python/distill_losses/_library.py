"""Loads the operators' shared library, once it is certain that it fits the torch that is installed."""

import warnings
from pathlib import Path

import torch

from . import _build_info
from ._torch_match import mismatch


def load() -> None:
    """Registers the operators as torch.ops.distill; ImportError where they were built for another torch.

    A build without kernels works on the CPU with any torch. It warns where torch has CUDA, since the first loss on a
    GPU would fail: its version ends in `.cpu`, but pip installs it with any torch of that release.
    """
    problem = mismatch(
        f"distill-losses {_build_info.VERSION}",
        _build_info.TORCH_VERSION,
        _build_info.CUDA_VERSION,
        str(torch.__version__),
        torch.version.cuda,
    )
    if problem is not None:
        raise ImportError(problem)
    if _build_info.CUDA_VERSION is None and torch.version.cuda is not None:
        warnings.warn(
            f"distill-losses {_build_info.VERSION} was built without CUDA kernels, and torch {torch.__version__} has "
            f"CUDA {torch.version.cuda}: losses of CUDA tensors will fail; build it where nvcc is, without "
            "DISTILL_CUDA=OFF",
            stacklevel=3,
        )
    torch.ops.load_library(Path(__file__).with_name("libdistill_losses.so"))
