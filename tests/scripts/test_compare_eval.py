"""scripts/compare_eval.py: the table and its verdict."""

import json

import pytest

BEFORE = {
    "hard": 4.0,
    "forward_kl": 2.0,
    "reverse_kl": 3.0,
    "agreement": 0.25,
    "accuracy": 0.2,
    "student_entropy": 5.0,
    "teacher_entropy": 1.0,
    "valid_tokens": 1234,
}
AFTER = BEFORE | {"hard": 3.0, "forward_kl": 0.5, "agreement": 0.5}


@pytest.fixture
def report(tmp_path):
    def write(name, values):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(values))
        return f"{name}={path}"

    return write


def test_the_table_has_every_number_and_its_change(script, report):
    text = script("compare_eval.py", report("before", BEFORE), report("after", AFTER), "--require-kl-drop", "75")
    lines = {line[:30].strip(): line[30:].split() for line in text.splitlines()}
    assert "before" in text.splitlines()[0] and "after" in text.splitlines()[0]
    rows = [line.split() for line in text.splitlines()]
    assert any(row[-4:] == ["2.0000", "0.5000", "-75.0", "%"] for row in rows)
    assert any(row[-4:] == ["54.60", "20.09", "-63.2", "%"] for row in rows), "perplexity"
    assert any(row[-4:] == ["25.00", "50.00", "+100.0", "%"] for row in rows), "agreement in per cent"
    assert any(row[-2:] == ["1,234", "1,234"] for row in rows), lines


@pytest.mark.parametrize(
    "after, expected",
    [
        (AFTER | {"forward_kl": 1.3}, "forward KL fell by 35.0 %, expected at least 40 %"),
        (AFTER | {"hard": 4.5}, "cross-entropy did not fall"),
        (AFTER | {"valid_tokens": 99}, "not the same set"),
        ({"loss": 1}, "no number 'forward_kl'"),
        ([], "no number 'forward_kl'"),
    ],
)
def test_a_bad_result_fails(script, report, after, expected):
    error = script(
        "compare_eval.py", report("before", BEFORE), report("after", after), "--require-kl-drop", "40", code=1
    )
    assert expected in error


def test_missing_and_broken_files_are_named(tmp_path, script, report):
    assert "nowhere.json" in script("compare_eval.py", report("before", BEFORE), "after=nowhere.json", code=1)
    (tmp_path / "broken.json").write_text("{")
    assert "broken.json" in script(
        "compare_eval.py", report("before", BEFORE), f"after={tmp_path / 'broken.json'}", code=1
    )
    assert "NAME=FILE" in script("compare_eval.py", "before", "after", code=1)
