"""scripts/checks/check_docs.py: long lines and paths that do not exist."""

import pytest

LONG = "word " * 24 + "x"  # 121 characters


@pytest.fixture
def check(script, repository):
    repository.write("losses/row_math.h", "")
    repository.write("losses/rows.h", "")
    repository.write("losses/rows.cpp", "")

    def run(text, code=0):
        repository.write("docs/page.md", text)
        return script("checks/check_docs.py", "--root", repository.folder, code=code, output="stdout")

    return run


def test_a_long_line_fails(check):
    assert "docs/page.md:3: expected at most 120 characters, found 121" in check(f"# Title\n\n{LONG}\n", code=1)
    check(LONG[:-1])


@pytest.mark.parametrize(
    "text",
    [f"| {LONG} |", f"```\n{LONG}\n```", f"{LONG} [a page](https://example.org)", f"{LONG} https://example.org"],
    ids=["table", "code block", "link", "address"],
)
def test_tables_code_blocks_and_links_may_be_long(check, text):
    check(text + "\n")


def test_after_a_code_block_lines_count_again(check):
    assert "page.md:4" in check(f"```\n{LONG}\n```\n{LONG}\n", code=1)


@pytest.mark.parametrize(
    "path", ["losses/gone.h", "losses/rows.{h,cu}", "losses/*_gone.h", "losses/gone/", "docs/gone.md"]
)
def test_a_path_that_does_not_exist_fails(check, path):
    assert "page.md:1: no file or folder" in check(f"See `{path}`.\n", code=1)


@pytest.mark.parametrize(
    "text",
    [
        "`losses/row_math.h`, `losses/`, `losses/rows.{h,cpp}`, `losses/row*.h`, `losses/rows.cpp:12`",
        "`elsewhere/gone.h`, `loss.beta`, losses/gone.h without backticks",
        "`losses/rows.cpp --out losses/gone`",
        "```\nlosses/gone.h\n```",
    ],
    ids=["existing", "no path of ours", "argument", "code block"],
)
def test_other_words_are_no_paths(check, text):
    check(text + "\n")
