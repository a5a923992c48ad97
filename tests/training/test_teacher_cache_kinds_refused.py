"""What a cache of a few tokens cannot give, and caches that are damaged or of something else, are refused by name."""

import json
import shutil
import subprocess

import numpy as np
import pytest
import xxhash

import read_cache
import tiny
from cache_kinds import COLUMNS, KINDS, capture, content


def refused(tmp_path, config, *flags):
    return tiny.distill("--config", tiny.write_config(tmp_path, config), *flags, code=tiny.BAD_INPUT).stderr


def test_what_a_kind_cannot_give_is_refused_by_its_key(tmp_path, kind_run, cache_of):
    jsd = {"divergence": "jsd", "beta": 0.5}
    message = refused(tmp_path, kind_run("a", "sampled", cache_of("sampled"), loss=jsd))
    assert "loss.divergence" in message and "forward_kl" in message and "found jsd" in message
    for kind in ("topk", "sampled"):
        message = refused(tmp_path, kind_run(f"c-{kind}", kind, cache_of(kind), loss={"temperature": 2.0}))
        assert f"loss.temperature: expected 1, at which the cache {cache_of(kind)}" in message
        assert "found 2" in message
    message = refused(tmp_path, kind_run("d", "topk", cache_of("topk"), loss={"teacher_softcap": 30.0}))
    assert "loss.teacher_softcap: expected 0" in message and "found 30" in message
    message = refused(tmp_path, kind_run("e", None, cache_of("topk")))
    assert "cache.kind: expected topk, which the cache" in message and "set cache.kind: topk" in message
    message = refused(tmp_path, kind_run("f", "sampled", cache_of("topk")))
    assert "cache.kind: expected topk" in message and "found sampled" in message
    capture_config = kind_run("g", "topk")
    message = capture(capture_config, tmp_path / "x", cache_dtype="int8", code=tiny.BAD_INPUT).stderr
    assert "cache.dtype" in message and "float16 or float32" in message
    message = capture(kind_run("h", "sampled"), tmp_path / "x", cache_dtype="float16", code=tiny.BAD_INPUT).stderr
    assert "cache.dtype" in message and "float32 for the weights" in message
    message = capture(capture_config, tmp_path / "x", cache_topk=500, code=tiny.BAD_INPUT).stderr
    assert "cache.topk: expected at most the vocabulary, 211 tokens, found 500" in message
    message = capture(capture_config, tmp_path / "x", cache_samples=5, code=tiny.BAD_INPUT).stderr
    assert "cache.samples" in message and "cache.kind is sampled" in message
    assert not list((tmp_path / "x").glob("part-*")) if (tmp_path / "x").exists() else True


def test_a_capture_at_another_temperature_does_not_touch_a_cache(tmp_path, kind_run, cache_of):
    copy = tmp_path / "copy"
    shutil.copytree(cache_of("topk"), copy)
    before = content(copy)
    base = kind_run("base", "topk", micro=3)
    message = capture(base, copy, loss_temperature=2.0, code=tiny.BAD_INPUT).stderr
    assert "temperature: expected 2.0, found 1.0" in message
    message = capture(base | {"cache": KINDS["sampled"] | {"part_tokens": 200}}, copy, code=tiny.BAD_INPUT).stderr
    assert "kind: expected sampled, found topk" in message
    assert content(copy) == before


def test_tokens_that_the_student_lacks_are_refused(tmp_path, kind_run):
    base = kind_run("base", "topk")
    wide = json.loads(json.dumps(base))
    del wide["student"]
    capture(wide, tmp_path / "wide")
    assert json.loads((tmp_path / "wide" / "manifest.json").read_text())["columns"] == tiny.TEACHER_VOCAB
    message = refused(tmp_path, kind_run("run", "topk", tmp_path / "wide"))
    assert "expected tokens of the student's vocabulary, 211, found those of 224" in message
    assert "capture with student.path" in message


def rewrite(cache, edit):
    """Edits the first part's rows and makes every checksum fit again."""
    path = cache / "part-00000000.dtc"
    data = bytearray(path.read_bytes())
    width = read_cache.HEAD.unpack_from(data)[3]
    rows, count, size, _, magic, _ = read_cache.FOOT.unpack_from(data, len(data) - read_cache.FOOT.size)
    edit(data, read_cache.HEAD.size, width)
    at, table = read_cache.HEAD.size, read_cache.HEAD.size + rows * width
    for i in range(count):
        place = table + i * read_cache.STRETCH.size
        entry = list(read_cache.STRETCH.unpack_from(data, place))
        entry[5] = xxhash.xxh3_64_intdigest(bytes(data[at : at + entry[4] * width]))
        read_cache.STRETCH.pack_into(data, place, *entry)
        at += entry[4] * width
    end = len(data) - read_cache.FOOT.size
    read_cache.FOOT.pack_into(data, end, rows, count, size, xxhash.xxh3_64_intdigest(bytes(data[table:end])), magic, 0)
    sum_ = xxhash.xxh3_64_intdigest(bytes(data[: read_cache.HEAD.size]) + bytes(data[end : end + 56]))
    read_cache.FOOT.pack_into(
        data, end, rows, count, size, xxhash.xxh3_64_intdigest(bytes(data[table:end])), magic, sum_
    )
    path.write_bytes(data)


@pytest.mark.parametrize(
    "kind, at, value, message",
    [
        ("topk", 0, (COLUMNS).to_bytes(2, "little"), "expected tokens below 211, found 211"),
        ("topk", 2, None, "expected every token once"),
        ("topk", 16, np.float16(1.5).tobytes(), "expected log-probabilities, found 1.5"),
        ("topk", 32, np.float32(0.9).tobytes(), "expected probabilities whose sum is 1"),
        ("sampled", 4, (5000).to_bytes(2, "little"), "expected tokens below 211, found 5000"),
        ("weighted", 24, np.float32(-1).tobytes(), "expected weights of 0 or more, found -1"),
        ("weighted", 24, np.float32(np.inf).tobytes(), "expected weights of 0 or more, found inf"),
    ],
)
def test_rows_that_no_teacher_writes_are_named(tmp_path, kind_run, cache_of, kind, at, value, message):
    copy = tmp_path / "copy"
    shutil.copytree(cache_of(kind), copy)

    def edit(data, rows, width):
        data[rows + at : rows + at + len(value or b"xx")] = value or data[rows : rows + 2]

    rewrite(copy, lambda *_: None)
    assert content(copy) == content(cache_of(kind))  # the helper itself changes nothing
    rewrite(copy, edit)
    for command in (
        ("verify", copy),
        ("--config", tiny.write_config(tmp_path, kind_run("run", kind, copy))),
    ):
        done = subprocess.run(
            [tiny.binary(), *map(str, command)], capture_output=True, text=True, timeout=120, env=tiny.environment()
        )
        assert done.returncode == tiny.BAD_INPUT, done.stderr
        assert message in done.stderr and "part-00000000.dtc: document" in done.stderr


def test_damaged_foreign_and_older_caches_are_named(tmp_path, kind_run, cache_of):
    copy = tmp_path / "copy"
    shutil.copytree(cache_of("topk"), copy)
    run = kind_run("run", "topk", copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    assert manifest["version"] == 2 and manifest["temperature"] == 1.0

    def with_manifest(**changes):
        (copy / "manifest.json").write_text(json.dumps(manifest | changes))
        return refused(tmp_path, run)

    assert "version: expected 1 to 5, found 6" in with_manifest(version=6)
    assert "packing: expected a text" in with_manifest(version=3)
    assert "hidden_size: expected an integer" in with_manifest(version=1)
    assert "kind: expected topk or sampled" in with_manifest(kind="hidden")
    assert "entries: expected an integer from 1 to" in with_manifest(entries=4096)
    assert "encoding: expected float16 or float32" in with_manifest(encoding="int8")
    assert "temperature: expected a number above 0" in with_manifest(temperature=0.0)
    assert "is a part of another cache" in with_manifest(entries=9)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    victim = copy / "part-00000001.dtc"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:-1])
    assert "part-00000001.dtc: truncated or damaged" in refused(tmp_path, run)
    victim.write_bytes(whole)
    first = copy / "part-00000000.dtc"
    damaged = bytearray(first.read_bytes())
    damaged[100] ^= 1
    first.write_bytes(damaged)
    done = tiny.distill("verify", copy, code=tiny.BAD_INPUT)
    assert "part-00000000.dtc: bytes" in done.stderr and "are damaged" in done.stderr
