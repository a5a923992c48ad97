"""The text of scripts/studies/quality.sh: files of packages, duplicates, what is held out."""

import hashlib
import json
import random
import subprocess
import zipfile

import pytest
import yaml

from quality import documents, prompts
from quality.near_duplicates import Seen
from quality.sources import read_sources

WORDS = [f"{a}{b}" for a in ("ba", "ce", "di", "fo", "gu", "la", "me") for b in ("nk", "rt", "st", "lm", "pt", "x")]


def lines_of(seed, count):
    rng = random.Random(seed)
    return ["".join(rng.choice(WORDS) + " " for _ in range(9)).strip() for _ in range(count)]


def python_file(seed):
    return "\n".join(f"name_{line.replace(' ', '_')} = 'value of {line}'" for line in lines_of(seed, 30)) + "\n"


def page(seed):
    paragraphs = "".join(f"<p>{line}.</p>\n" for line in lines_of(seed, 30))
    return (
        f"<html><head><title>x</title></head><body><nav>skip me</nav><main><h1>T</h1>{paragraphs}</main></body></html>"
    )


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def packages(tmp_path):
    """A table of one wheel and one Debian package for each other kind, which lie in the folder of downloads."""
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    wheel = downloads / "some_code-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for number in range(12):
            archive.writestr(f"some/m{number}.py", python_file(number))
        archive.writestr("some/tests/test_m.py", python_file(99))
        archive.writestr("some/copy.py", python_file(3) + "extra = 'one line more than in the other file'\n")
        archive.writestr("some/short.py", "x = 1\n")
    table = {
        "code": [
            {
                "wheel": "Some.Code",
                "version": "1.0",
                "sha256": sha256(wheel),
                "license": "MIT",
                "include": ["**.py"],
                "exclude": ["**/tests/**"],
            }
        ]
    }
    for kind, first in (("reference", 100), ("prose", 200)):
        root = tmp_path / kind
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN" / "control").write_text(
            f"Package: {kind}-doc\nVersion: 1:2.0\nArchitecture: all\nMaintainer: a <a@b>\nDescription: d\n"
        )
        folder = root / "usr" / "share" / "doc" / kind
        (folder / "html" / "deep").mkdir(parents=True)
        for number in range(12):
            (folder / "html" / ("deep" if number % 2 else "") / f"p{number}.html").write_text(page(first + number))
        (folder / "changelog.html").write_text(page(999))
        package = downloads / f"{kind}-doc_1%3a2.0_all.deb"
        subprocess.run(["dpkg-deb", "--root-owner-group", "-b", root, package], check=True, capture_output=True)
        table[kind] = [
            {
                "deb": f"{kind}-doc",
                "version": "1:2.0",
                "sha256": sha256(package),
                "license": "GPL",
                "include": [f"usr/share/doc/{kind}/html/**.html"],
            }
        ]
    path = tmp_path / "sources.yaml"
    path.write_text(yaml.safe_dump(table))
    return path, downloads


def make_text(script, packages, out, **options):
    table, downloads = packages
    arguments = ["--sources", table, "--downloads", downloads, "--out", out, "--validation-kb", 1, "--test-kb", 2]
    return script("studies/quality.py", "text", *arguments, "--excerpt", 1000, **options)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_train_and_held_out_documents_share_nothing_and_come_out_alike_twice(tmp_path, packages, script):
    make_text(script, packages, tmp_path / "one")
    make_text(script, packages, tmp_path / "two")
    names = ("train", "validation", "test-code", "test-reference", "test-prose", "test-code-whole")
    for name in (*names, "manifest"):
        file = f"{name}.json{'l' if name != 'manifest' else ''}"
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
    sets = {name: {document["source"] for document in read(tmp_path / "one" / f"{name}.jsonl")} for name in names}
    assert sets["test-code-whole"] == sets["test-code"]
    disjoint = [sets[name] for name in names[:-1]]
    assert all(disjoint) and sum(map(len, disjoint)) == len(set.union(*disjoint)) == 36
    for kind in ("code", "reference", "prose"):
        assert {name.split("/")[0] for name in sets[f"test-{kind}"]} == {kind}
    files = {source for sources in disjoint for source in sources}
    assert not any("tests/" in name or "changelog" in name or "short.py" in name for name in files)
    assert len({"code/Some.Code/some/copy.py", "code/Some.Code/some/m3.py"} & files) == 1, "a near duplicate"
    text = "".join(document["text"] for name in names for document in read(tmp_path / "one" / f"{name}.jsonl"))
    assert "skip me" not in text and "<p>" not in text


def test_the_manifest_says_what_became_of_each_package(tmp_path, packages, script):
    make_text(script, packages, tmp_path / "text")
    manifest = json.loads((tmp_path / "text" / "manifest.json").read_text())
    code = next(package for package in manifest["packages"] if package["kind"] == "code")
    assert code["files"] == {"taken": 13, "short": 1} and code["duplicates"] == {"near duplicate": 1}
    assert code["license"] == "MIT" and code["pinned"]
    prose = next(package for package in manifest["packages"] if package["kind"] == "prose")
    assert prose["version"] == "1:2.0" and prose["files"] == {"taken": 12}
    for name, file in manifest["files"].items():
        assert file["sha256"] == sha256(tmp_path / "text" / f"{name}.jsonl")


def test_a_damaged_download_is_named_and_removed(tmp_path, packages, script):
    wheel = packages[1] / "some_code-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes() + b"x")
    error = make_text(script, packages, tmp_path / "text", code=1)
    assert "some_code-1.0-py3-none-any.whl: expected SHA-256" in error
    assert not wheel.exists() and not (tmp_path / "text").exists()


def test_another_version_of_a_debian_package_is_taken_and_recorded(tmp_path, packages, script):
    table = yaml.safe_load(packages[0].read_text())
    table["prose"][0] |= {"version": "1:1.9", "sha256": "0" * 64}
    packages[0].write_text(yaml.safe_dump(table))
    assert "not the pinned versions: prose-doc" in make_text(script, packages, tmp_path / "text")
    manifest = json.loads((tmp_path / "text" / "manifest.json").read_text())
    prose = next(package for package in manifest["packages"] if package["kind"] == "prose")
    assert prose["version"] == "1:2.0" and not prose["pinned"]


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda table: table.update(poems=[]), "expected one of code, reference, prose, found poems"),
        (lambda table: table["code"][0].pop("license"), "Some.Code: expected keys"),
        (lambda table: table["code"][0].update(deb="x"), "expected one of deb and wheel"),
    ],
)
def test_a_mistake_in_the_table_is_named(packages, change, expected):
    table = yaml.safe_load(packages[0].read_text())
    change(table)
    packages[0].write_text(yaml.safe_dump(table))
    with pytest.raises(ValueError, match=expected):
        read_sources(packages[0])


def test_the_table_of_the_page_is_sound():
    sources = read_sources()
    assert len({source.name for source in sources}) == len(sources) > 40
    rust = {source.kind: source for source in sources if source.package == "rust-doc"}
    book = "usr/share/doc/rust-doc/html/book/ch01.html"
    api = "usr/share/doc/rust-doc/html/std/vec/struct.Vec.html"
    assert rust["prose"].takes(book) and not rust["prose"].takes(api)
    assert rust["reference"].takes(api) and not rust["reference"].takes(book)


def test_near_duplicates_are_found_and_others_are_not():
    seen = Seen()
    first = lines_of(1, 60)
    assert seen.reason("\n".join(first)) is None
    assert seen.reason("   ".join(first[0].split(" ")) + "\n" + "\n".join(first[1:])) == "duplicate", "white space"
    assert seen.reason("\n".join(first[:55] + lines_of(2, 5))) == "near duplicate"
    assert seen.reason("\n".join(first[:15] + lines_of(3, 45))) is None, "a quarter in common"
    assert seen.reason("\n".join(lines_of(4, 60))) is None
    assert seen.reason("}\n" * 50) is None, "short lines alone say nothing"


@pytest.mark.parametrize(
    "text, kind, reason",
    [
        ("word " * 200, "prose", None),
        ("word " * 50, "prose", "short"),
        ("word " * 100_000, "prose", "long"),
        ("1234 5678\n" * 200, "code", "tables"),
        ("word " * 200, "code", "very long lines"),
        ("word\n" * 200 + "\ufffd", "code", "damaged characters"),
    ],
    ids=["taken", "short", "long", "tables", "lines", "damaged"],
)
def test_why_a_document_is_left_out(text, kind, reason):
    assert documents.why_skipped(text, kind) == reason


SOURCE = '''import os


class Box:
    def volume(self, depth):
        """The volume.

        More text.
        """
        area = self.width * self.height
        if depth < 0:
            raise ValueError(depth)
        return area * depth

    def short(self):
        """One line of body only."""
        return 1


def undocumented(x):
    y = x
    z = y
    return z
'''


def test_a_prompt_is_the_first_half_of_a_function():
    """Without a line feed at its end, which a tokenizer would not join with the next line's indentation."""
    assert list(prompts.functions(SOURCE)) == [
        'def volume(self, depth):\n    """The volume.\n\n    More text.\n    """\n    area = self.width * self.height'
    ]


@pytest.mark.parametrize(
    "completion, good",
    [
        ("\n    return 1\n\ndef other(", True),
        (" + 2\n    return 1\n", True),  # the prompt's last line goes on
        ("\n    return (1\n\ndef other(", False),
        ("\n    if x:\n        return 1\n    y = (1 +", True),  # the cut line is dropped
        ("\n    y = 2\n    if x:\n        # why\n  ", True),  # cut within a block
        ("\n    y = call(1,\n        2,\n  3", False),  # no statement is whole
        ("\n    y = 1\n    return call(1,\n        2,\n  3", True),  # cut within a bracket
        (" =\n    y = 1\n", False),
        ("\n    else:\n        y = 1\n", False),
        ("\nx = 1\n", False),  # no body
        ("\n\n", False),
        ("\n    # words\n    # and words\n", False),  # no statement
        ("\n    a = 1\n  b = 2\n", False),  # bad indentation
        ("\n    a = '\x00'\n    b = 1\n", False),
    ],
)
def test_whether_a_continued_function_parses(completion, good):
    assert prompts.parses('def f(x):\n    """Doc."""\n    x = 1', completion) == good
