"""The wheel of distill-losses: what is in it, and its own test suite against the installed package."""

import re
import sys
import tarfile
import zipfile

import torch

from wheels import ROOT, checked, local_version, needs_cuda, version_of


def test_the_package_passes_its_own_tests(losses, tmp_path):
    suite = ROOT / "losses" / "python" / "tests"
    # The GPU tests are a set of their own (scripts/test_gpu.sh).
    without_gpu = [] if torch.cuda.is_available() else ["--ignore", suite / "test_cuda.py"]
    output = losses.run(
        losses.python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *without_gpu,
        suite,
        cwd=tmp_path,
    )
    assert re.search(r"\d+ passed", output) and "skipped" not in output


def test_the_name_and_the_metadata_say_for_which_torch_and_whether_there_are_kernels(losses):
    kernels = needs_cuda(losses.site_packages / "distill_losses" / "libdistill_losses.so")
    assert version_of(losses.wheel, "distill_losses") == local_version(kernels)
    with zipfile.ZipFile(losses.wheel) as wheel:
        (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
        assert f"\nRequires-Dist: torch=={torch.__version__.split('+')[0]}\n" in wheel.read(metadata).decode()


def test_the_wheel_brings_no_library_of_torch_or_cuda(losses):
    with zipfile.ZipFile(losses.wheel) as wheel:
        libraries = [name.split("/")[-1] for name in wheel.namelist() if ".so" in name]
    assert "libdistill_losses.so" in libraries
    assert not [name for name in libraries if not re.match(r"lib(distill_losses|absl_\w+)\.so", name)]


def test_the_library_finds_what_it_needs_without_the_folders_of_this_machine(losses):
    library = losses.site_packages / "distill_losses" / "libdistill_losses.so"
    assert re.findall(r"R(?:UN)?PATH\)\s+Library r(?:un)?path: \[(.*)\]", checked("readelf", "-d", library)) == [
        "$ORIGIN/libs"
    ]


def test_the_sdist_has_every_source_that_the_wheel_is_compiled_from(losses, tmp_path):
    build = (sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path)
    checked(*build, cwd=ROOT / "losses" / "python")
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {"/".join(member.name.split("/")[1:]) for member in archive.getmembers()}
    tracked = checked("git", "ls-files", "losses", "data/base", "scripts/cmake", "CMakeLists.txt", cwd=ROOT).split()
    compiled = [name for name in tracked if not name.startswith("losses/python/")]
    assert compiled and not [name for name in compiled if f"tree/{name}" not in names]
    assert {"pyproject.toml", "packaging/distill_version.py", "packaging/distill_backend.py"} <= names
    assert "distill_losses/functional.py" in names
