"""`distill inspect` of a teacher's cache: what it holds, and the teacher's predictions at the tokens of a document."""

import re
import shutil

import numpy as np
import pytest
import torch

import read_cache
import tiny
from cache_kinds import COLUMNS, KINDS, capture
from reference_training import load
from token_shard import read_shard

DOCUMENT = 14  # 90 tokens, in stretches of at most 32, 37 of them with a target
LINE = re.compile(r" *(\d+)  (\d+) -> (\d+)   (.*); (.*)")


@pytest.fixture
def hidden_cache(tmp_path, kind_run):
    config = kind_run("hidden", data={"eval": []})
    capture(config, tmp_path / "cache")
    return tmp_path / "cache"


def shown_rows(cache, *flags):
    """{place: (token, target, [(percent, id), ...], rest)} of the document."""
    text = tiny.distill("inspect", cache, "--document", DOCUMENT, *flags).stdout
    rows = {}
    for match in filter(None, map(LINE.fullmatch, text.splitlines())):
        place, token, target, likely, rest = match.groups()
        entries = [entry.split("% ") for entry in likely.split(", ")]
        rows[int(place)] = (int(token), int(target), [(float(p), int(i)) for p, i in entries], rest)
    return rows


def stored_rows(cache):
    """{place: row} of the document, by the documentation of the files alone."""
    document = read_shard(shard_of(cache))[DOCUMENT]
    found = {}
    for (_, index, begin, length), own in read_cache.read_rows(cache).stretches.items():
        if index == DOCUMENT:
            marks = np.append(document.in_loss[1:], False)[begin : begin + length]
            found |= dict(zip(begin + np.flatnonzero(marks), own, strict=True))
    return document, found


def shard_of(cache):
    return re.search(r"^data.train +(\S+):", tiny.distill("inspect", cache).stdout, re.MULTILINE)[1]


@pytest.mark.parametrize("kind", ["topk", "sampled", "weighted"])
def test_a_row_is_shown_with_its_most_probable_tokens(cache_of, kind):
    cache = cache_of(kind)
    document, stored = stored_rows(cache)
    shown = shown_rows(cache)
    assert shown.keys() == stored.keys() and len(shown) > 10
    for place, (token, target, likely, rest) in shown.items():
        assert (token, target) == (document.tokens[place], document.tokens[place + 1])
        if kind == "topk":
            ids, values, tail = stored[place]
            weights = dict(zip(ids, np.exp(values), strict=True))
            assert rest == f"{len(ids)} tokens are stored, all others have {100 * tail:.3g}%"
        else:
            weights = {}
            for id, weight in zip(*stored[place], strict=True):
                weights[id] = weights.get(id, 0) + weight
            assert rest == f"{KINDS[kind]['samples']} draws of {len(weights)} different tokens"
        largest = sorted(weights.values(), reverse=True)[: len(likely)]
        assert len(likely) == min(5, len(weights))
        assert [percent for percent, _ in likely] == pytest.approx([100 * w for w in largest], abs=0.051)
        assert all(percent == pytest.approx(100 * weights[id], abs=0.051) for percent, id in likely)


def test_hidden_states_are_shown_as_what_the_head_makes_of_them(hidden_cache, models):
    document, _ = read_shard(shard_of(hidden_cache))[DOCUMENT], None
    shown = shown_rows(hidden_cache)
    model = load(models["qwen3"][1])
    # The stretches begin where the cache says; nothing is before them.
    text = tiny.distill("inspect", hidden_cache, "--document", DOCUMENT).stdout
    places = 0
    for begin, end in re.findall(r"^-- tokens (\d+) to (\d+), part \d+", text, re.MULTILINE):
        tokens = torch.from_numpy(document.tokens[int(begin) : int(end) + 1].astype(np.int64))
        p = model(tokens[None]).logits[0].softmax(-1)
        for place in range(int(begin), int(end) + 1):
            if place in shown:
                _, _, likely, rest = shown[place]
                values, _ = p[place - int(begin)].topk(5)
                assert [percent for percent, _ in likely] == pytest.approx((100 * values).tolist(), abs=0.06)
                assert rest.startswith("norm of the hidden state ")
                places += 1
    assert places == len(shown) > 10


def test_a_cache_is_described(tmp_path, cache_of):
    cache = shutil.copytree(cache_of("topk"), tmp_path / "cache")
    text = tiny.distill("inspect", cache).stdout
    rows = read_cache.read_rows(cache)
    assert f"the 8 most probable tokens of {COLUMNS}" in text
    # data.train and data.eval are the same shard here, whose rows are there twice.
    count = sum(stretch[4] for part in cache.glob("part-*") for stretch in read_cache.read_table(part.read_bytes()))
    assert re.search(rf"^rows +{count} of \d+ bytes .* in {rows.manifest['parts']} parts$", text, re.MULTILINE), text
    assert rows.manifest["teacher"] in text and rows.manifest["tokenizer_hash"] in text
    assert f"{count} rows of 40 documents" in text, text
    assert "was changed" not in text and "not complete" not in text
    # A part that is missing, and data that are not there any more.
    sorted(cache.glob("part-*"))[1].unlink()
    manifest = (cache / "manifest.json").read_text()
    (cache / "manifest.json").write_text(manifest.replace(shard_of(cache), str(tmp_path / "gone.dtok")))
    text = tiny.distill("inspect", cache).stdout
    assert f"parts of {rows.manifest['parts']}: the capture is not complete" in text
    assert str(tmp_path / "gone.dtok") in text
    message = tiny.distill("inspect", cache, "--document", DOCUMENT, code=tiny.BAD_INPUT).stderr
    assert "gone.dtok" in message


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--document", "40"], "expected documents 0 to 39, found 40"),
        (["--html", "page.html"], "--html: expected a token shard"),
        (["--document", "0", "--tokenizer", "nothing"], "nothing"),
    ],
)
def test_what_a_cache_does_not_have_is_refused(cache_of, flags, says):
    assert says in tiny.distill("inspect", cache_of("topk"), *flags, code=tiny.BAD_INPUT).stderr


def test_a_damaged_row_is_named(tmp_path, cache_of):
    cache = shutil.copytree(cache_of("topk"), tmp_path / "cache")
    for part in cache.glob("part-*"):
        data = bytearray(part.read_bytes())
        data[70] ^= 1  # in the first stretch
        part.write_bytes(data)
    message = tiny.distill("inspect", cache, "--documents", "0-39", code=tiny.BAD_INPUT).stderr
    assert "are damaged" in message and "part-" in message and "distill verify" in message
