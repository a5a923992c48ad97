"""What is checked at import: the library goes only with the torch that it was built for."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import distill_losses
from distill_losses._torch_match import mismatch

PACKAGE = Path(distill_losses.__file__).parent


def test_this_build_fits_this_torch():
    assert torch.__version__.startswith(distill_losses.TORCH_VERSION)
    # The kernels are for the CUDA of that torch; the name of a build without any says so.
    kernels = distill_losses.CUDA_VERSION is not None
    label = f"cu{torch.version.cuda.replace('.', '')}" if kernels else "cpu"
    assert distill_losses.__version__.endswith(f"+torch{distill_losses.TORCH_VERSION}.{label}")
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.parametrize(
    "built,found,fits",
    [
        (("2.11.0", "13.0"), ("2.11.0+cu130", "13.0"), True),
        (("2.11.0", "13.0"), ("2.11.0", "13.2"), True),
        (("2.11.0", "13.0"), ("2.11.0+cu126", "12.6"), False),
        (("2.11.0", "13.0"), ("2.11.0+cpu", None), False),
        (("2.11.0", "13.0"), ("2.11.1+cu130", "13.0"), False),
        (("2.11.0", "13.0"), ("2.10.0+cu130", "13.0"), False),
        (("2.11.0", None), ("2.11.0+cpu", None), True),
        (("2.11.0", None), ("2.11.0+cu130", "13.0"), True),
        (("2.11.0", None), ("2.9.0", None), False),
    ],
)
def test_which_versions_fit(built, found, fits):
    assert (mismatch("distill-losses 0", *built, *found) is None) == fits


def imported(tmp_path, torch_version, cuda_version):
    """What an import of a copy of the package does that was built for these versions."""
    copy = tmp_path / "distill_losses"
    shutil.copytree(PACKAGE, copy)
    info = copy / "_build_info.py"
    text = re.sub(r'TORCH_VERSION = ".*"', f"TORCH_VERSION = {torch_version!r}", info.read_text())
    info.write_text(re.sub(r"CUDA_VERSION = .*", f"CUDA_VERSION = {cuda_version!r}", text))
    # -I -S would hide torch; the path of the copy goes first.
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import distill_losses"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_the_import_error_names_both_versions(tmp_path):
    done = imported(tmp_path, "2.3.0", "12.1")
    assert done.returncode == 1
    assert re.search(
        r"ImportError: distill-losses \S+ was built for torch 2\.3\.0 \(CUDA 12\.1\), "
        rf"found torch {re.escape(str(torch.__version__))} \(",
        done.stderr,
    )


def test_a_build_without_kernels_says_so_where_torch_has_cuda(tmp_path):
    done = imported(tmp_path, distill_losses.TORCH_VERSION, None)
    assert done.returncode == 0, done.stderr
    pattern = (
        r"UserWarning: distill-losses \S+ was built without CUDA kernels, and torch \S+ has CUDA \S+: losses of CUDA"
    )
    assert bool(re.search(pattern, done.stderr)) == (torch.version.cuda is not None)


def test_a_build_for_the_cuda_of_torch_does_not_warn(tmp_path):
    done = imported(tmp_path, distill_losses.TORCH_VERSION, torch.version.cuda)
    assert done.returncode == 0 and "distill-losses" not in done.stderr
