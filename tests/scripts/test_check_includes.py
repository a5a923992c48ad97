"""scripts/checks/check_includes.py: forbidden edges, slow headers, and includes that do not start at the root."""

import pytest


@pytest.mark.parametrize(
    "name, include, problem",
    [
        ("losses/a.h", '"data/a.h"', "losses/a.h:2: losses includes data/a.h, but may include only data/base"),
        ("data/base/a.h", '"data/a.h"', "data/base includes data/a.h, but may include only nothing"),
        ("trainer/models/a.cpp", '"trainer/sharding/a.h"', "trainer/models includes trainer/sharding/a.h"),
        ("losses/a.h", "<torch/torch.h>", "a header includes <torch/torch.h>"),
        ("losses/b.h", '"near.h"', "include near.h from the repository's root"),
    ],
)
def test_a_forbidden_include_fails(script, repository, name, include, problem):
    for header in ("data/a.h", "trainer/sharding/a.h", "losses/near.h"):
        repository.write(header, "#pragma once\n")
    repository.write(name, f"#pragma once\n#include {include}\n")
    assert problem in script("checks/check_includes.py", "--root", repository.folder, code=1, output="stdout")


def test_allowed_includes_pass(script, repository):
    repository.write("data/base/a.h", "#pragma once\n")
    repository.write("losses/a.h", '#pragma once\n#include "data/base/a.h"\n#include <vector>\n')
    repository.write("losses/a.cpp", '#include "losses/a.h"\n#include <torch/torch.h>\n')
    assert "clean" in script("checks/check_includes.py", "--root", repository.folder)
