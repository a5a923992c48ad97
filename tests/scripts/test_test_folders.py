"""Where tests stand, as CONTRIBUTING.md says."""

import subprocess
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_SOURCES = {"fuzz", "losses/emulation"}  # below tests/
SOURCES = (".cpp", ".h", ".cu", ".cuh")


def folders(files):
    return {str(file.parent) for file in files}


def test_a_folder_of_cpp_tests_is_that_of_its_sources():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [PurePath(line) for line in listed.splitlines()]
    sources = folders(file for file in files if file.suffix in SOURCES and file.parts[0] != "tests")
    tests = [file.relative_to("tests") for file in files if file.parts[0] == "tests" and file.stem.endswith("_test")]
    found = folders(file for file in tests if file.suffix in SOURCES)
    assert len(found) > 20 and found - sources == WITHOUT_SOURCES
