"""check_headers.py: a header that needs what its includers include is found, also when another file changed."""

import json
import shutil

import pytest

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def check(script, repository, tmp_path):
    """A repository with a good header, a source that includes it, and a compile database with a precompiled header."""
    build = tmp_path / "build"
    build.mkdir()
    (build / "pch.hxx").write_text("#include <string>\n")
    source = repository.write("data/a.cpp", '#include "data/a.h"\n')
    command = [
        "g++",
        "-std=c++20",
        "-Werror",
        f"-I{repository.folder}",
        "-include",
        f"{build}/pch.hxx",
        "-o",
        "a.o",
        "-c",
    ]
    entry = {"directory": str(build), "file": str(source), "arguments": [*command, str(source)]}
    (build / "compile_commands.json").write_text(json.dumps([entry]))
    repository.write("data/a.h", "#pragma once\n#include <string>\nstd::string a();\n")
    repository.commit("data: a")

    def run(*arguments, code=0):
        common = ("--root", repository.folder, "--build", build, "--jobs", 1)
        return script("checks/check_headers.py", *arguments, *common, code=code, output="stdout")

    return run


def test_a_header_that_lacks_an_include_fails(check, repository):
    repository.write("data/lacks.h", "#pragma once\nstd::string lacks();\n")
    output = check("--all", code=1)
    assert "data/lacks.h does not compile alone" in output and "1 of 2 compile alone" in output
    repository.write("data/lacks.h", "#pragma once\n#include <string>\nstd::string lacks();\n")
    assert "2 of 2 compile alone" in check("--all")


def test_a_header_is_compiled_again_only_when_a_file_that_it_includes_changes(check, repository):
    repository.write("data/b.h", '#pragma once\n#include "data/a.h"\ninline std::string b() { return a(); }\n')
    assert "(2 compiled" in check("--all")
    assert "(0 compiled" in check("--all")
    repository.write("data/a.h", "#pragma once\nint a();\n")
    output = check("--all", code=1)
    assert "data/b.h does not compile alone" in output and "(2 compiled" in output


def test_by_default_changed_headers_are_checked(check, repository):
    repository.write("data/b.h", '#pragma once\n#include "data/a.h"\ninline std::string b() { return a(); }\n')
    repository.write("data/lacks.h", "#pragma once\nstd::string lacks();\n")
    base = repository.commit("data: b, and a bad one")
    assert "0 of 0 compile alone" in check("--base", base)
    repository.write("data/a.h", "#pragma once\n#include <string>\nstd::string a();\nint more();\n")
    assert "1 of 1 compile alone" in check("--base", base)
    repository.commit("data: a change")
    assert "1 of 1 compile alone" in check()


@pytest.mark.parametrize(
    "now, code",
    [
        ("#pragma once\nnamespace std { class Other; }\nint a(); // std::string\n", 1),  # without the include
        ("#pragma once\n#include <string>\nstd::string other();\n", 1),  # without the name
        ("#pragma once\n#include <string>\n// Says more.\nstd::string a(int number = 0);\n", 0),
    ],
)
def test_includers_of_a_header_that_has_lost_something_are_checked(check, repository, now, code):
    repository.write("data/b.h", '#pragma once\n#include "data/a.h"\ninline std::string b() { return a(); }\n')
    repository.write("data/c.h", '#pragma once\n#include "data/b.h"\n')
    repository.commit("data: b, and c")
    repository.write("data/a.h", now)
    assert ("1 of 3 compile alone" if code else "1 of 1 compile alone") in check("--base", "HEAD", code=code)


def test_on_a_branch_changes_count_from_where_it_left_main(check, repository):
    repository.git("switch", "--quiet", "--create", "side")
    repository.write("data/b.h", "#pragma once\n")
    repository.commit("data: b")
    repository.commit("data: nothing more")
    assert "1 of 1 compile alone" in check()


def test_named_headers_are_checked(check, repository):
    repository.write("data/lacks.h", "#pragma once\nstd::string lacks();\n")
    assert "1 of 1 compile alone" in check("data/a.h")
    check("data/lacks.h", code=1)


def test_a_cuda_header_without_a_configured_cuda_source_is_named(check, repository):
    repository.write("data/kernel.cuh", "#pragma once\n")
    assert "not checked, for want of a configured source: data/kernel.cuh" in check("--all")
