"""The versions in a wheel's metadata, for the back end (`[[tool.dynamic-metadata]]` in pyproject.toml).

The project's version is the one of the root CMakeLists.txt. A wheel's version also names the torch that it was built
for, 0.1.0+torch2.11.0.cu130, and it depends on that torch exactly: libtorch's C++ interface changes between releases.
"""

import importlib.util
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
# An sdist has the sources of the repository in tree/.
ROOTS = (HERE.parents[2], HERE.parent / "tree")


def _first_match(name, pattern):
    for root in ROOTS:
        if (root / name).is_file() and (match := re.search(pattern, (root / name).read_text())):
            return match[1]
    raise RuntimeError(f"{name}: expected a line with {pattern}, found none under {' or '.join(map(str, ROOTS))}")


def project_version():
    return _first_match("CMakeLists.txt", r"project\(distill VERSION ([\d.]+)")


def required_torch():
    return _first_match("scripts/cmake/libtorch.cmake", r"set\(DISTILL_TORCH_REQUIRED ([\d.]+)\)")


def installed_torch():
    """The version of the torch package of this Python, such as 2.11.0+cu130; torch is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise RuntimeError(
            f"no torch in this environment, expected {required_torch()}: install it and build with "
            "--no-build-isolation, or build in isolation, where pip installs it"
        )
    text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text()
    return re.search(r"__version__ = '([^']+)'", text)[1]


def wheel_version():
    """0.1.0+torch2.11.0.cu130 for torch 2.11.0+cu130."""
    return f"{project_version()}+torch{installed_torch().replace('+', '.')}"


class Provider:
    """Sets `version` and the dependency on torch."""

    def __init__(self):
        self.state = "wheel"

    def build_state(self, build_state):
        self.state = build_state

    def dynamic_metadata(self, settings, project):
        # Sources are not built for any torch yet.
        version = project_version() if self.state == "sdist" else wheel_version()
        return {"version": version, "dependencies": [f"torch=={required_torch()}"]}
