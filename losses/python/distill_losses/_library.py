"""Loads the operators' shared library, once it is certain that it fits the torch that is installed."""

from pathlib import Path

import torch

from . import _build_info
from ._torch_match import mismatch


def load() -> None:
    """Registers the operators as torch.ops.distill; ImportError where they were built for another torch."""
    problem = mismatch(
        f"distill-losses {_build_info.VERSION}",
        _build_info.TORCH_VERSION,
        _build_info.CUDA_VERSION,
        str(torch.__version__),
        torch.version.cuda,
    )
    if problem is not None:
        raise ImportError(problem)
    torch.ops.load_library(Path(__file__).with_name("libdistill_losses.so"))
