"""Makes the versions in a wheel's metadata for the back end (`[[tool.dynamic-metadata]]` in pyproject.toml).

The project's version is the one of the root CMakeLists.txt. A wheel's version also names the torch that it was built
for and whether it has kernels: 0.1.0+torch2.11.0.cu130 with them, 0.1.0+torch2.11.0.cpu without. It depends on that
torch exactly: libtorch's C++ interface changes between releases.

A wheel is named before CMake runs, so that this file decides for CMake, too: scripts/cmake/cuda.cmake follows the name
where DISTILL_CUDA is AUTO, and scripts/cmake/wheel_name.cmake refuses to build anything else.
"""

import importlib.util
import os
import re
import runpy
import shlex
import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
# An sdist has the sources of the repository in tree/.
ROOTS = (HERE.parents[2], HERE.parent / "tree")
SYSTEM_TOOLKIT = Path("/usr/local/cuda")

# The settings of this build (`-C cmake.define.DISTILL_CUDA=OFF`); distill_backend.py sets them.
config_settings = {}


def _first_match(name, pattern):
    for root in ROOTS:
        if (root / name).is_file() and (match := re.search(pattern, (root / name).read_text())):
            return match[1]
    raise RuntimeError(f"{name}: expected a line with {pattern}, found none under {' or '.join(map(str, ROOTS))}")


def project_version():
    return _first_match("CMakeLists.txt", r"project\(distill VERSION ([\d.]+)")


def required_torch():
    return _first_match("scripts/cmake/libtorch.cmake", r"set\(DISTILL_TORCH_REQUIRED ([\d.]+)\)")


def cmake_value(name, default=""):
    """What CMake will see as `name`: from CMAKE_ARGS of the environment, or else from the settings of the call."""
    arguments = "\n".join(shlex.split(os.environ.get("CMAKE_ARGS", ""))).replace("-D\n", "-D")
    found = re.findall(rf"^-D{name}(?::\w+)?=(.*)$", arguments, re.MULTILINE)
    if found:
        return found[-1]
    for key in (f"cmake.define.{name}", f"skbuild.cmake.define.{name}"):
        if key in config_settings:
            return config_settings[key]
    return default


def torch_folder():
    """The torch package that is compiled against; torch is not imported."""
    if named := cmake_value("DISTILL_TORCH_DIR"):
        return Path(named)
    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise RuntimeError(
            f"no torch in this environment, expected {required_torch()}: install it and build with "
            "--no-build-isolation, or build in isolation, where pip installs it"
        )
    return Path(spec.submodule_search_locations[0])


def installed_torch():
    """Its release and its version of CUDA, such as 2.11.0 and 13.0; None for a torch without CUDA."""
    folder = torch_folder()
    version = runpy.run_path(str(folder / "version.py"))
    cuda = version["cuda"] if (folder / "lib" / "libtorch_cuda.so").exists() else None
    return version["__version__"].split("+")[0], cuda


def has_nvcc():
    """Whether there is an nvcc where scripts/cmake/cuda.cmake looks for one."""
    if named := cmake_value("CMAKE_CUDA_COMPILER"):
        return shutil.which(named) is not None
    toolkits = (*(root / ".venv" / "cuda-toolkit" for root in ROOTS), SYSTEM_TOOLKIT)
    return any((toolkit / "bin" / "nvcc").exists() for toolkit in toolkits) or bool(
        shutil.which(os.environ.get("CUDACXX", "nvcc"))
    )


def losses_have_kernels(torch_cuda):
    """As DISTILL_CUDA says; AUTO: where torch has CUDA and there is an nvcc."""
    asked = cmake_value("DISTILL_CUDA", "AUTO")
    if asked not in ("AUTO", "ON", "OFF"):
        raise RuntimeError(f"DISTILL_CUDA: expected AUTO, ON or OFF, found {asked!r}")
    if asked == "ON" and torch_cuda is None:
        raise RuntimeError(f"DISTILL_CUDA=ON: expected a torch with CUDA, found one without in {torch_folder()}")
    return asked == "ON" or (asked == "AUTO" and torch_cuda is not None and has_nvcc())


def program_has_kernels(torch_cuda):
    """The program is finished; DISTILL_CUDA_VERSION says what it was built for, empty: without CUDA."""
    built_for = cmake_value("DISTILL_CUDA_VERSION")
    if built_for and torch_cuda is None:
        raise RuntimeError(
            f"DISTILL_CUDA_VERSION={built_for}: expected a torch with CUDA, found one without in {torch_folder()}"
        )
    return bool(built_for)


def wheel_version(has_kernels=losses_have_kernels):
    """0.1.0+torch2.11.0.cu130 with kernels for the CUDA of torch 2.11.0+cu130, 0.1.0+torch2.11.0.cpu without any."""
    release, cuda = installed_torch()
    label = "cu" + cuda.replace(".", "") if has_kernels(cuda) else "cpu"
    return f"{project_version()}+torch{release}.{label}"


class Provider:
    """Sets `version` and the dependency on torch."""

    has_kernels = staticmethod(losses_have_kernels)

    def __init__(self):
        self.state = "wheel"

    def build_state(self, build_state):
        self.state = build_state

    def dynamic_metadata(self, settings, project):
        # Sources are not built for any torch yet.
        version = project_version() if self.state == "sdist" else wheel_version(self.has_kernels)
        return {"version": version, "dependencies": [f"torch=={required_torch()}"]}


class ProgramProvider(Provider):
    has_kernels = staticmethod(program_has_kernels)
