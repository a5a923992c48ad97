"""The console script `distill-cpp`: runs the program of this wheel with the libraries of the environment's torch.

torch is found and its version compared without importing it; then this process becomes the program.
"""

import importlib.util
import os
import runpy
import sys
from pathlib import Path

from . import _build_info
from ._torch_match import mismatch

HERE = Path(__file__).resolve().parent
# As the program's own: bad input or environment, nothing was started.
CANNOT_START = 2

__version__ = _build_info.VERSION


def torch_folder() -> Path:
    """The torch package's folder: $DISTILL_TORCH_DIR, or the one that this Python would import."""
    named = os.environ.get("DISTILL_TORCH_DIR")
    if named:
        folder = Path(named)
        origin = "DISTILL_TORCH_DIR"
    else:
        spec = importlib.util.find_spec("torch")
        if spec is None:
            raise RuntimeError(f"{sys.executable}: expected torch {_build_info.TORCH_VERSION}, found no torch")
        folder = Path(spec.submodule_search_locations[0])
        origin = sys.executable
    if not (folder / "lib" / "libtorch_cpu.so").exists():
        raise RuntimeError(f"{origin}: expected a torch package with lib/libtorch_cpu.so, found none in '{folder}'")
    return folder


def check_version(torch: Path) -> None:
    """RuntimeError where the program was built for another torch."""
    version = runpy.run_path(str(torch / "version.py"))
    problem = mismatch(
        f"distill {_build_info.VERSION}",
        _build_info.TORCH_VERSION,
        _build_info.CUDA_VERSION,
        version["__version__"],
        version["cuda"],
    )
    if problem is not None:
        raise RuntimeError(problem)


def library_path(torch: Path) -> str:
    """Where the loader looks: the wheel's own libraries, torch's, those of the CUDA wheels next to torch."""
    nvidia = sorted(str(folder) for folder in torch.parent.glob("nvidia/*/lib"))
    before = os.environ.get("LD_LIBRARY_PATH")
    return ":".join([str(HERE / "lib"), str(torch / "lib"), *nvidia, *([before] if before else [])])


def main() -> int:
    """Replaces this process by the program, with the same arguments; returns only where that cannot be done."""
    program = HERE / "bin" / "distill"
    try:
        torch = torch_folder()
        check_version(torch)
        os.execve(program, [str(program), *sys.argv[1:]], {**os.environ, "LD_LIBRARY_PATH": library_path(torch)})
    except (OSError, RuntimeError) as error:
        print(f"distill-cpp: {error}", file=sys.stderr)
    return CANNOT_START
