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
    assert f"+torch{torch.__version__.replace('+', '.')}" in distill_losses.__version__
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


def test_the_import_error_names_both_versions(tmp_path):
    """A copy of the package that was built for an older torch."""
    copy = tmp_path / "distill_losses"
    shutil.copytree(PACKAGE, copy)
    info = copy / "_build_info.py"
    text = re.sub(r'TORCH_VERSION = ".*"', 'TORCH_VERSION = "2.3.0"', info.read_text())
    info.write_text(re.sub(r"CUDA_VERSION = .*", 'CUDA_VERSION = "12.1"', text))
    # -I -S would hide torch; the path of the copy goes first.
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import distill_losses"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(
        r"ImportError: distill-losses \S+ was built for torch 2\.3\.0 \(CUDA 12\.1\), "
        rf"found torch {re.escape(str(torch.__version__))} \(",
        done.stderr,
    )
