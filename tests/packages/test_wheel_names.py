"""The version in a wheel's name says whether it has kernels, and CMake builds nothing else under that name."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from build import BuildBackendException, ProjectBuilder

from wheels import ROOT, fake_torch

CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
PROJECT = re.search(r"project\(distill VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def named(package, tmp_path, **defines):
    """The local part of the version that the back end gives to a wheel of a folder, as pip and build call it."""
    settings = {f"cmake.define.{name}": str(value) for name, value in defines.items()}
    builder = ProjectBuilder(ROOT / package, python_executable=sys.executable)
    folder = Path(builder.prepare("wheel", tempfile.mkdtemp(dir=tmp_path), settings))
    version = re.search(r"^Version: (.*)$", (folder / "METADATA").read_text(), re.MULTILINE)[1]
    assert folder.name == f"distill_{'losses' if package.startswith('losses') else 'cpp'}-{version}.dist-info"
    public, local = version.split("+")
    assert public == PROJECT
    return local


def test_no_name_is_another_projects():
    """Names on PyPI that belong to others: of distributions, and of commands that several of these install."""
    projects = [
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text()) for folder in ("losses/python", "apps/python")
    ]
    names = [project["project"]["name"] for project in projects]
    commands = [command for project in projects for command in project["project"].get("scripts", {})]
    assert names == ["distill-losses", "distill-cpp"] and commands == ["distill-cpp"]
    foreign = {
        "distill-trainer", "distil-trainer", "distill-anything", "distill-llm", "distil-llm", "distill-slm", "distill",
    }  # fmt: skip
    # PyPI refuses a new name that differs from another one in separators, or in letters that look alike.
    alike = str.maketrans({"l": "1", "i": "1", "o": "0", "-": None, "_": None, ".": None})
    taken = {name.lower().translate(alike) for name in foreign}
    assert not [name for name in (*names, *commands) if name.lower().translate(alike) in taken]


def test_no_document_installs_by_name_what_is_not_published():
    documents = [path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/python/README.md")]]
    lines = [
        line
        for path in documents
        for line in path.read_text().splitlines()
        if re.search(r"pip install .*distill", line)
    ]
    assert lines and not [line for line in lines if re.search(r"pip install (-\S+ )*distill[\w-]*( |`|$)", line)]


@pytest.fixture
def torch(tmp_path):
    return fake_torch(tmp_path / "torch", "2.11.0+cu130", "13.0")


@pytest.fixture
def torch_without_cuda(tmp_path):
    return fake_torch(tmp_path / "torch_without_cuda", "2.11.0+cpu", None)


@pytest.fixture
def nvcc(tmp_path):
    path = tmp_path / "nvcc"
    path.touch(mode=0o755)
    return path


@pytest.mark.parametrize("asked", ["AUTO", "ON", None])
def test_losses_with_kernels(tmp_path, torch, nvcc, asked):
    defines = {} if asked is None else {"DISTILL_CUDA": asked}
    assert (
        named("losses/python", tmp_path, DISTILL_TORCH_DIR=torch, CMAKE_CUDA_COMPILER=nvcc, **defines)
        == "torch2.11.0.cu130"
    )


def test_losses_without_kernels(tmp_path, torch, torch_without_cuda, nvcc, monkeypatch):
    def local(folder, compiler, **defines):
        return named("losses/python", tmp_path, DISTILL_TORCH_DIR=folder, CMAKE_CUDA_COMPILER=compiler, **defines)

    for name in (
        local(torch, nvcc, DISTILL_CUDA="OFF"),
        local(torch, tmp_path / "no_nvcc"),
        local(torch_without_cuda, nvcc),
    ):
        assert name == "torch2.11.0.cpu"
    monkeypatch.setenv("CMAKE_ARGS", "-G Ninja -DDISTILL_CUDA:STRING=OFF")
    assert local(torch, nvcc) == "torch2.11.0.cpu"


def test_losses_that_cannot_be_named(tmp_path, torch, torch_without_cuda, capfd):
    for folder, asked, error in (
        (torch_without_cuda, "ON", "DISTILL_CUDA=ON: expected a torch with CUDA, found one without in "),
        (torch, "off", "DISTILL_CUDA: expected AUTO, ON or OFF, found 'off'"),
    ):
        with pytest.raises(BuildBackendException):
            named("losses/python", tmp_path, DISTILL_TORCH_DIR=folder, DISTILL_CUDA=asked)
        assert error in capfd.readouterr().err


def test_the_program_is_named_after_its_program(tmp_path, torch):
    for cuda, label in (("13.0", "cu130"), ("", "cpu")):
        local = named("apps/python", tmp_path, DISTILL_TORCH_DIR=torch, DISTILL_CUDA_VERSION=cuda)
        assert local == f"torch2.11.0.{label}"


def cmake(*arguments, cwd):
    return subprocess.run([CMAKE, *map(str, arguments)], cwd=cwd, capture_output=True, text=True)


def defined(**values):
    return [f"-D{name}={value}" for name, value in values.items()]


@pytest.mark.parametrize(
    "version,cuda,fits",
    [
        ("0.1.0+torch2.11.0.cu130", "13.0", True),
        ("0.1.0+torch2.11.0.cu130", "13.2", True),
        ("0.1.0+torch2.11.0.cpu", "", True),
        ("0.1.0+torch2.11.0.cu130", "", False),
        ("0.1.0+torch2.11.0.cpu", "13.0", False),
        ("0.1.0+torch2.11.0.cu126", "13.0", False),
        ("0.1.0+torch2.10.0.cu130", "13.0", False),
        ("0.1.0", "", False),
    ],
)
def test_which_names_fit_what_is_built(tmp_path, version, cuda, fits):
    values = defined(
        SKBUILD=2, SKBUILD_PROJECT_VERSION_FULL=version, DISTILL_TORCH_VERSION="2.11.0", DISTILL_CUDA_VERSION=cuda
    )
    done = cmake(*values, "-P", ROOT / "scripts" / "cmake" / "wheel_name.cmake", cwd=tmp_path)
    assert (done.returncode == 0) == fits, done.stderr
    if not fits:
        text = " ".join(done.stderr.split())
        assert f"the version of this wheel is '{version}', but what is built, with" in text
        assert ("no kernels" if not cuda else f"kernels for CUDA {cuda}") in text
        assert f"has to be called '<version>+torch2.11.0.{'cpu' if not cuda else 'cu13[0-9]+'}'" in text


def configured(build, version, **values):
    return cmake(
        *("-S", ROOT, "-B", build, "-G", "Ninja"),
        *defined(SKBUILD=2, SKBUILD_PROJECT_VERSION_FULL=version, Python_EXECUTABLE=sys.executable),
        *defined(DISTILL_LOSSES_ONLY="ON", DISTILL_TESTS="OFF", **values),
        cwd=ROOT,
    )


def test_a_build_of_the_losses_follows_its_name_or_fails(tmp_path):
    without = f"{PROJECT}+torch2.11.0.cpu"
    done = configured(tmp_path / "cpu", without)  # whether or not there is an nvcc
    assert done.returncode == 0, done.stderr
    (info,) = (tmp_path / "cpu").rglob("_build_info.py")
    assert f'VERSION = "{without}"' in info.read_text() and 'CUDA_VERSION = "" or None' in info.read_text()
    done = configured(tmp_path / "off", f"{PROJECT}+torch2.11.0.cu130", DISTILL_CUDA="OFF")
    assert done.returncode != 0
    assert "but what is built, with no kernels, has to be called" in " ".join(done.stderr.split())


@pytest.mark.parametrize("needs_cuda", [False, True])
@pytest.mark.parametrize("cuda", ["", "13.0"])
def test_the_program_is_what_its_name_says(tmp_path, needs_cuda, cuda):
    program = tmp_path / "bundle" / "bin" / "distill"
    program.parent.mkdir(parents=True)
    (tmp_path / "bundle" / "lib").mkdir()
    program.write_bytes(b"\x7fELF\0libtorch_cpu.so\0" + (b"libtorch_cuda.so\0" if needs_cuda else b""))
    done = cmake(
        *("-S", ROOT / "apps" / "python", "-B", tmp_path / "build"),
        *defined(SKBUILD=2, DISTILL_BUNDLE=tmp_path / "bundle", DISTILL_CUDA_VERSION=cuda),
        f"-DSKBUILD_PROJECT_VERSION_FULL={PROJECT}+torch2.11.0.{'cu130' if cuda else 'cpu'}",
        cwd=tmp_path,
    )
    fits = needs_cuda == bool(cuda)
    assert (done.returncode == 0) == fits, done.stderr
    assert fits or f"found '{cuda}', and the program needs" in " ".join(done.stderr.split())
