"""scripts/studies/conformance.py: ours is exact in every case, conventions are recognised, the page is up to date."""

import json
from pathlib import Path

import pytest
import torch

from conformance.cases import CASES, IGNORED, exact_loss, problem_of
from conformance.measure import step_of, verdict
from conformance.page import page

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_ours_is_exact_in_every_case(tmp_path, script):
    script("studies/conformance.py", "measure", "--only", "distill", "--out", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())["results"]["distill"]["cases"]
    assert list(found) == [case.name for case in CASES]
    for name, cell in found.items():
        exact, limit = ("error", 4e-3) if "bf16" in name else ("exact", 3e-6)
        assert cell["text"] == exact and cell["gradient_error"] < limit and cell["loss_error"] < limit, name


def case_named(name):
    return next(case for case in CASES if case.name == name)


def scaled(factor):
    return lambda *arguments: exact_loss(*arguments) * factor


@pytest.mark.parametrize(
    "name, loss_of, mean, expected",
    [
        ("JSD 0.5", exact_loss, False, "exact"),
        ("forward KL, T 2", scaled(4), False, "times T squared"),
        ("forward KL, prompts masked", scaled(0.5), False, "divided by all tokens"),
        ("forward KL, ragged", scaled(1.01), False, "differs"),
        ("JSD 0.5", scaled(float("nan")), False, "not finite"),
        ("forward KL, no targets", exact_loss, False, "exact"),
        (
            "forward KL, ragged micro-batches",
            lambda problem, index, *leaves: (
                exact_loss(problem, index, *leaves)
                * problem.targets
                / (problem.batches[index].labels_BS != IGNORED).sum()
            ),
            True,
            "mean of the micro-batches' means",
        ),
    ],
)
def test_conventions_are_recognised(name, loss_of, mean, expected):
    problem = problem_of(case_named(name))
    assert verdict(problem, step_of(problem, loss_of, torch.float64, mean))["text"] == expected


def test_a_wrong_gradient_of_a_right_loss_is_seen():
    problem = problem_of(case_named("JSD 0.5"))
    step = step_of(problem, exact_loss, torch.float64)
    step.gradient[0] += 1e-3
    found = verdict(problem, step)
    assert found["text"] == "differs" and found["loss_error"] == 0 and found["gradient_error"] > 1e-4


def test_the_page_is_that_of_the_results():
    results = json.loads((DOCS / "conformance.json").read_text())
    assert (DOCS / "conformance.md").read_text() == page(results), "run scripts/studies/conformance.py page"
    assert all(found["version"] or name == "distill" for name, found in results["results"].items())


def test_misuse_is_an_error(script):
    message = script("studies/conformance.py", "measure", "--only", "trl", "--out", "unused", code=2)
    assert "--only: expected some of distill, TRL GKD" in message and "found trl" in message
