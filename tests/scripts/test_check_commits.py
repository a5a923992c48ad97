"""scripts/checks/check_commits.py: which subjects pass, and which commits are looked at."""

import pytest


def check(script, repository, start, code=0):
    return script("checks/check_commits.py", "--root", repository.folder, "--start", start, code=code, output="stdout")


@pytest.mark.parametrize(
    "subject",
    [
        "losses: " + "x" * 64,  # 72 characters
        "scripts/benches/loss_head: one timer",
        "data, trainer: one MappedFile",
        "bench_loss_head: reads a file",
        "include edges: one more",
    ],
)
def test_a_good_subject_passes(script, repository, subject):
    start = repository.commit("a beginning")
    repository.commit(subject)
    assert "1 checked" in check(script, repository, start)


@pytest.mark.parametrize(
    "subject, problem",
    [
        ("losses: " + "x" * 65, "at most 72 characters, found 73"),
        ("One timer", "beginning such as"),
        ("Losses: one timer", "beginning such as"),
        ("losses:one timer", "beginning such as"),
        ("some of the losses: one timer", "beginning such as"),
    ],
)
def test_a_bad_subject_fails(script, repository, subject, problem):
    start = repository.commit("a beginning")
    repository.commit(subject)
    repository.commit("losses: a later good one")
    output = check(script, repository, start, code=1)
    assert problem in output and subject in output


def test_commits_up_to_the_start_and_merges_are_exempt(script, repository):
    repository.commit("Anything goes here")
    start = repository.commit("And here")
    repository.git("switch", "--quiet", "--create", "side")
    repository.commit("data: on the side")
    repository.git("switch", "--quiet", "main")
    repository.commit("losses: on main")
    repository.git("merge", "--quiet", "--no-ff", "--message", "Merge the side", "side")
    assert "2 checked" in check(script, repository, start)


def test_a_history_without_the_start_is_not_checked(script, repository):
    repository.commit("Anything")
    assert "not checked" in check(script, repository, "4" * 40)


def test_the_message_of_a_commit_hook(script, tmp_path):
    message = tmp_path / "message"
    message.write_text("\n# a comment\nlosses: one timer\n\nA body of any length.\n")
    assert "1 checked" in script("checks/check_commits.py", "--message-file", message)
    message.write_text("One timer\n")
    assert "beginning such as" in script("checks/check_commits.py", "--message-file", message, code=1, output="stdout")
