"""scripts/checks/slowest_tests.py: tests of both runners in one list, the slowest first."""

PYTEST = """<testsuites><testsuite><testcase classname="tests.data.test_a" name="test_x[1]" time="2.5"/>
<testcase classname="tests.data.test_a" name="test_y" time="0.1"/></testsuite></testsuites>"""
CTEST = """<testsuite><testcase name="losses_test" classname="losses_test" time="7.25"/></testsuite>"""


def test_the_slowest_tests_of_both_runners_come_first(tmp_path, script):
    (tmp_path / "pytest.xml").write_text(PYTEST)
    (tmp_path / "ctest.xml").write_text(CTEST)
    assert script("checks/slowest_tests.py", tmp_path, "--count", 2).splitlines() == [
        "the 2 slowest of 3 tests, which took 10 s one after the other:",
        "     7.2 s  losses_test",
        "     2.5 s  tests/data/test_a.py::test_x[1]",
    ]


def test_a_folder_without_times_is_an_error(tmp_path, script):
    assert "no test case" in script("checks/slowest_tests.py", tmp_path, code=1)
