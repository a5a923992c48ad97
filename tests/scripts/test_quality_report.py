"""The tables of docs/quality.md: from results to the page, and that the page is up to date."""

import json
from pathlib import Path

import pytest

from quality import report
from quality.results import Figures, spread
from quality.study import Study

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("code", "reference", "prose")


def final(row, seed, kl, ce, lr=1e-3, tokens=2_097_152, purpose="final"):
    tests = {
        kind: {"forward_kl": kl + number, "hard": ce + number, "agreement": 0.5, "valid_tokens": 100}
        for number, kind in enumerate(KINDS)
    }
    points = [{"tokens": tokens // 2, "ce": ce + 2}, {"tokens": tokens, "ce": ce}]
    if row != "labels" or purpose == "again":  # as those of 2026, whose labels had no teacher for evaluations
        points = [point | {"kl": kl + 1 - number} for number, point in enumerate(points)]
    return {
        "purpose": purpose,
        "student": "half",
        "row": row,
        "tokens": tokens,
        "lr": lr,
        "seed": seed,
        "validation": points,
        "tests": tests,
        "calibration_error": {"all": 0.02},
        "functions": 10,
        "continuations_that_parse": 0.3,
    }


@pytest.fixture
def results(tmp_path):
    """Two rows with three seeds each."""
    folder = tmp_path / "results"
    folder.mkdir()
    for seed in (1, 2, 3):
        for row, kl, ce in (("labels", 2.0, 4.0), ("forward_kl", 1.0, 3.5)):
            result = final(row, seed, kl + seed / 100, ce)
            (folder / f"half-{row}-s{seed}.json").write_text(json.dumps(result))
    return folder


def figures(folder):
    return Figures(Study("gpu"), report.read(folder))


def test_a_cell_is_the_mean_and_the_spread_of_the_seeds(results):
    table = report.table_kl(figures(results))
    assert "| half | labels only | 2.020 ± 0.010 | 3.020 ± 0.010 | 4.020 ± 0.010 |" in table
    assert "|  | forward KL | 1.020 ± 0.010 |" in table
    assert spread([1.0]) is None


def test_the_tokens_to_a_kl_are_interpolated(results):
    """KL falls from 2.01 to 1.01 (and so on) between 1 and 2 million tokens; the target is 1.1."""
    table = report.table_reached(figures(results))
    assert "| half | forward KL | 1.1 | 2.01 ± 0.01 |" in table and "labels" not in table
    for seed in (1, 2, 3):  # the target is 3.1, which forward KL has by its first evaluation
        write(results, final("reverse_kl", seed, 3.0 + seed / 100, 5.0))
    assert "| half | forward KL | 3.1 | at most 1.05 ± 0.00 |" in report.table_reached(figures(results))
    points = [{"tokens": 100, "kl": 3.0}, {"tokens": 200, "kl": 1.0}]
    assert report.reached(points, "kl", 2.0) == 150
    assert report.reached(points, "kl", 3.5) == 100
    assert report.reached(points, "kl", 0.5) is None
    assert report.reached([{"tokens": 1}], "kl", 0.5) is None


def test_how_many_tokens_labels_need(results):
    """Labels have 4.0 after 2 million tokens and 3.0 after 8: 3.5 lies half-way on the logarithmic axis."""
    longer = final("labels", 1, 0, 3.0, tokens=8_388_608) | {"purpose": "scaling"}
    also = final("forward_kl", 1, 0, 2.0, tokens=8_388_608) | {"purpose": "scaling"}
    (results / "a.json").write_text(json.dumps(longer))
    (results / "b.json").write_text(json.dumps(also))
    other = final("forward_kl", 1, 0, 3.6, lr=2e-3) | {"purpose": "scaling"}
    (results / "c.json").write_text(json.dumps(other))
    (results / "d.json").write_text(json.dumps(final("mix_50", 1, 0.5, 5.0)))
    lines = report.table_tokens(figures(results)).splitlines()[2:]
    assert lines == [
        "| 2.10 | labels only | 0.001, of 1 | 4.0000 | - | - |",
        "|  | forward KL | 0.001, of 2 | 3.5000 | 1.0100 | 4.2 (2.00 times) |",
        "|  | 0.5 forward KL + 0.5 labels | 0.001, of 1 | 5.0000 | 0.5000 | at most 2.1 |",
        "| 8.39 | labels only | 0.001, of 1 | 3.0000 | - | - |",
        "|  | forward KL | 0.001, of 1 | 2.0000 | 0.0000 | more than 8.4 |",
    ]


def test_models_before_training_have_a_student_of_their_own(results):
    for name in ("teacher", "width"):
        (results / f"model-{name}.json").write_text(json.dumps(final("labels", 1, 0.25, 2.0) | {"purpose": "model"}))
    lines = report.table_kl(figures(results)).splitlines()
    assert lines[-2:] == [
        "| - | the teacher itself | 0.250 | 1.250 | 2.250 |",
        "| width | before training | 0.250 | 1.250 | 2.250 |",
    ]
    lines = report.table_others(figures(results)).splitlines()
    assert lines[-2] == "| - | the teacher itself | - | - | 50.0 | 2.0 | 30.0 |"
    assert lines[-1] == "| width | before training | - | - | 50.0 | 2.0 | 30.0 |"


def test_the_check_needs_a_difference_beyond_the_spread(results, script):
    assert "code: KL of labels only minus that of forward KL: 1.0000 nats" in script(
        "studies/quality.py", "check", "--results", results
    )
    output = script("studies/quality.py", "check", "--results", results)
    assert "code: cross-entropy of labels only minus that of forward KL: 0.5000 nats, spread 0.0000\n" in output
    close = json.loads((results / "half-labels-s1.json").read_text())
    for kind in KINDS:
        close["tests"][kind] |= {"forward_kl": -3.0, "hard": -8.0}
    (results / "half-labels-s1.json").write_text(json.dumps(close))
    assert "does not beat labels only in KL" in script("studies/quality.py", "check", "--results", results, code=1)
    for seed in (1, 2, 3):
        (results / f"half-labels-s{seed}.json").write_text(json.dumps(final("labels", seed, 2.0, 3.0)))
    assert "-0.5000 nats, spread 0.0000: labels are better" in script(
        "studies/quality.py", "check", "--results", results
    )
    assert "no student with results" in script("studies/quality.py", "check", "--results", results.parent, code=1)


def write(folder, result):
    name = f"{result['purpose']}-{result['student']}-{result['row']}-{result['tokens']}-lr{result['lr']:g}"
    (folder / f"{name}-s{result['seed']}.json").write_text(json.dumps(result))


def test_a_measure_that_came_later_is_that_of_the_same_run_again(results):
    """The published models are gone, so that only models of `run --again` have it."""
    for file in results.iterdir():
        result = json.loads(file.read_text())
        del result["continuations_that_parse"]
        file.write_text(json.dumps(result))
    assert report.table_others(figures(results)).count("| - |") == 2
    assert "labels" not in report.table_reached(figures(results))
    for seed in (1, 2, 3):
        again = final("labels", seed, 1.05, 4.0, purpose="again") | {"continuations_that_parse": seed / 10}
        write(results, again)
    table = report.table_others(figures(results))
    assert "| half | labels only | 0.001 | 3 | 50.0 ± 0.0 | 2.0 ± 0.0 | 20.0 ± 10.0 |" in table
    assert "| half | labels only | 1.1 | 2.04 ± 0.00 |" in report.table_reached(figures(results))


def test_rows_that_were_trained_again_must_be_within_the_spread(results, script, tmp_path):
    """The published KLs are 1.01, 1.02 and 1.03: their spread is 0.01."""
    published, again = tmp_path / "gpu.json", tmp_path / "again"
    script("studies/quality.py", "merge", "--results", results, "--out", published)
    again.mkdir()
    arguments = ("compare", "--results", again, "--published", published)
    assert "no row with at least two seeds" in script("studies/quality.py", *arguments, code=1)
    for seed in (1, 2, 3):
        write(again, final("forward_kl", seed, 1.009 + seed / 100, 3.5, purpose="again"))
    output = script("studies/quality.py", *arguments)
    assert "half, forward KL, code: KL 1.0290, published 1.0200 with spread 0.0100: within it" in output
    for seed in (1, 2, 3):
        write(again, final("forward_kl", seed, 1.011 + seed / 100, 3.5, purpose="again"))
    assert "not within the published spread: half, forward KL, code" in script("studies/quality.py", *arguments, code=1)


def page(names=tuple(report.TABLES)):
    return "# Page\n\n" + "".join(
        f"<!-- table {name} of gpu -->\nold\n<!-- end of table -->\n\ntext\n" for name in names
    )


def test_the_page_gets_its_tables_and_a_stale_one_is_found(results, script, tmp_path):
    doc = tmp_path / "quality.md"
    doc.write_text(page())
    script("studies/quality.py", "merge", "--results", results, "--out", tmp_path / "quality" / "gpu.json")
    assert "a table is not the one of the results" in script(
        "studies/quality.py", "report", "--doc", doc, "--check", code=1
    )
    script("studies/quality.py", "report", "--doc", doc)
    text = doc.read_text()
    assert "2.020 ± 0.010" in text and "old" not in text and text.count("text\n") == len(report.TABLES)
    script("studies/quality.py", "report", "--doc", doc, "--check")
    doc.write_text(text.replace("2.020", "2.021"))
    script("studies/quality.py", "report", "--doc", doc, "--check", code=1)
    doc.write_text(page(["kl", "rumours"]))
    error = script("studies/quality.py", "report", "--doc", doc, code=1)
    assert "missing tables: cross_entropy of gpu" in error and "unknown ones: rumours of gpu" in error
    assert "experts" not in error, "a table that no result fills is not missing"


def test_merged_results_keep_what_was_there_before(results, script, tmp_path):
    merged = tmp_path / "all.json"
    script("studies/quality.py", "merge", "--results", results, "--out", merged)
    (results / "half-labels-s1.json").unlink()
    script("studies/quality.py", "merge", "--results", results, "--out", merged)
    assert len(json.loads(merged.read_text())) == 6
    assert report.table_kl(figures(merged)).count("±") == 6


def test_the_head_of_the_table_is_over_all_kinds_together(results):
    """Of three kinds with equally many tokens, whose KLs are 1.02, 2.02 and 3.02."""
    assert "| forward KL | 2.020 ± 0.010 | 4.500 ± 0.000 | 50.0 ± 0.0 |" in report.table_head(figures(results))


@pytest.mark.parametrize("page", ["docs/quality.md", "README.md"])
def test_the_pages_of_this_repository_have_the_tables_of_its_results(script, page):
    """Against docs/quality/gpu.json of this tree."""
    script("studies/quality.py", "report", "--doc", ROOT / page, "--check")
