"""check_clang_tidy.py: findings fail, changed sources are chosen, limits and a missing program are reported."""

import json
import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".venv" / "bin" / "clang-tidy"
needs_clang_tidy = pytest.mark.skipif(not PROGRAM.exists(), reason="needs clang-tidy in .venv")
CLEAN = "int* pointer() { return nullptr; }\n"
FINDING = "int* pointer() { return 0; }\n"


@pytest.fixture
def check(script, repository, tmp_path, monkeypatch):
    """A repository with our .clang-tidy and three clean sources, all in the compile database."""
    build = tmp_path / "build"
    build.mkdir()
    shutil.copy(ROOT / ".clang-tidy", repository.folder)
    entries = []
    for name in ("data/a.cpp", "data/b.cpp", "data/c.cpp"):
        source = str(repository.write(name, CLEAN))
        command = ["g++", "-std=c++20", "-o", "a.o", "-c", source]
        entries.append({"directory": str(build), "file": source, "arguments": command})
    (build / "compile_commands.json").write_text(json.dumps(entries))
    base = repository.commit("data: three sources")
    monkeypatch.setenv("PATH", str(PROGRAM.parent), prepend=os.pathsep)

    def run(*arguments, code=0):
        common = ("--root", repository.folder, "--build", build, "--base", base)
        return script("checks/check_clang_tidy.py", *arguments, *common, code=code, output="stdout")

    return run


@needs_clang_tidy
def test_a_finding_in_a_changed_source_fails(check, repository):
    repository.write("data/a.cpp", FINDING)
    output = check(code=1)
    assert "modernize-use-nullptr" in output and "0 of 1 sources are clean" in output
    repository.write("data/a.cpp", "// changed\n" + CLEAN)
    assert "1 of 1 sources are clean" in check()


@needs_clang_tidy
def test_a_changed_header_is_checked_through_its_source(check, repository):
    repository.write("data/b.h", "#pragma once\ninline int* pointer() { return 0; }\n")
    repository.write("data/other.txt", "no source")
    assert "1 of 1" in check()


@needs_clang_tidy
def test_sources_beyond_the_limit_are_named(check, repository):
    for name in ("data/a.cpp", "data/c.cpp"):
        repository.write(name, "// changed\n" + CLEAN)
    assert "1 changed sources were left out: data/c.cpp" in check("--max-files", 1)


@needs_clang_tidy
def test_a_named_source_is_checked_though_it_did_not_change(check):
    assert "1 of 1" in check("data/c.cpp")


def test_a_missing_program_is_not_a_success(check, monkeypatch, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "git").symlink_to(shutil.which("git"))
    monkeypatch.setenv("PATH", str(programs))
    assert "not run" in check(code=77)
