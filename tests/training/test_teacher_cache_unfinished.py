"""A cache that a training run of an earlier version wrote (teacher.source: capture) is read, and completed."""

import shutil

import pytest

import teacher_rows
import tiny
from cache_kinds import begun_by_a_run, capture, content
from run_results import steps_of, weights_of

OFF = {"eval": {"every": 0}}


@pytest.fixture
def captured(tmp_path, kind_run):
    """A whole cache of data.train, and the configuration of a run of its kind and packing."""

    def build(kind, packing="pack"):
        data = {"packing": packing, "eval": []}

        def run(name, cache=None, **settings):
            return kind_run(name, kind, cache, data=data, **OFF, **settings)

        capture(run("captured", micro=3), tmp_path / "whole")
        assert len(list((tmp_path / "whole").glob("part-*.dtc"))) > 4
        shutil.copytree(tmp_path / "whole", tmp_path / "cache")
        return tmp_path / "whole", tmp_path / "cache", run

    return build


def parts_of(cache):
    return {name: data for name, data in content(cache).items() if name.startswith("part-")}


def stretches_of(cache):
    """Shard, document, begin, tokens, rows and checksum of the rows (and the context) of each stretch, sorted."""
    return sorted(entry for data in parts_of(cache).values() for entry in teacher_rows.read_table(data))


@pytest.mark.parametrize("packing", ["pack", "concat"])
@pytest.mark.parametrize("kind", [None, "topk", "weighted"])
@pytest.mark.parametrize("ranks", [1, tiny.RANKS])
def test_a_capture_adds_what_a_run_has_not_come_to(tmp_path, captured, models, kind, packing, ranks):
    tiny.need_devices(ranks)
    whole, cache, run = captured(kind, packing)
    begun_by_a_run(cache, keep=lambda number: number % 3 == 1)
    begun = parts_of(cache)
    (cache / "part-00000099.dtc.partial").write_bytes(b"of a process that was killed")
    refused = tiny.distill("--config", tiny.write_config(tmp_path, run("early", cache)), code=tiny.BAD_INPUT).stderr
    assert "if a training run began this cache, `distill capture` completes it" in refused
    # In other micro-batches than those of the rows that are there.
    done = capture(run("more", micro=2), cache, parallel_processes=ranks)
    assert "cache: a training run began it; rows are missing in " in done.stderr
    assert stretches_of(cache) == stretches_of(whole)  # all of them, and none twice
    assert begun.items() < parts_of(cache).items() and not list(cache.glob("*.partial"))
    verified = tiny.distill("verify", "--cache", cache, "--teacher", models["qwen3"][1], "--samples", 9).stdout
    assert "(100%) are the same bit for bit" in verified
    runs = [tiny.train(tmp_path, run(each.name, each)) for each in (whole, cache)]
    assert steps_of(runs[0]) == steps_of(runs[1]) and weights_of(runs[0]) == weights_of(runs[1])


def test_a_completion_that_was_killed_goes_on(tmp_path, captured):
    whole, cache, run = captured(None)
    begun_by_a_run(cache, keep=lambda number: number == 0)
    capture(run("first"), cache)
    sorted(cache.glob("part-*.dtc"))[2].unlink()
    left = parts_of(cache)
    capture(run("second"), cache, "--dry-run")
    assert parts_of(cache) == left
    capture(run("second"), cache)
    assert left.items() < parts_of(cache).items() and stretches_of(cache) == stretches_of(whole)


def test_a_whole_one_is_read_and_left_as_it_is(tmp_path, captured):
    whole, cache, run = captured("topk")
    begun_by_a_run(cache, keep=lambda number: True)
    before = content(cache)
    assert "rows are missing in 0 of" in capture(run("again"), cache).stderr
    assert content(cache) == before
    runs = [tiny.train(tmp_path, run(each.name, each)) for each in (whole, cache)]
    assert weights_of(runs[0]) == weights_of(runs[1])


def test_what_it_cannot_take_is_refused_and_not_touched(tmp_path, captured, models, ragged_shard):
    _, cache, run = captured(None)
    begun_by_a_run(cache, keep=lambda number: number == 0)
    before = content(cache)
    other = tiny.make_shard(tmp_path / "other.dtok", tiny.random_documents(4, [40, 7, 33]))
    evaluated = run("evaluated") | {"eval": {"every": 3}}
    evaluated["data"]["eval"] = [{"path": other}]
    for flags in ([], ["--dry-run"]):
        message = capture(evaluated, cache, *flags, code=tiny.BAD_INPUT).stderr
        assert "was begun by a training run" in message and "set data.eval: [] to complete it" in message
        longer = run("longer")
        longer["data"]["seq_len"] = 48
        assert "seq_len: expected 48, found 32" in capture(longer, cache, *flags, code=tiny.BAD_INPUT).stderr
    assert content(cache) == before


def test_a_run_no_longer_writes_a_cache_and_says_what_does(tmp_path, kind_run, models):
    run = kind_run("run")
    run["teacher"] |= {"source": "capture", "cache": str(tmp_path / "cache")}
    path = tiny.write_config(tmp_path, run)
    for command in ([], ["capture"]):
        message = tiny.distill(*command, "--config", path, code=tiny.BAD_INPUT).stderr
        assert f"{path}" in message and 'teacher.source: expected one of model, cache, found "capture"' in message
        assert "set teacher.source: cache" in message and "`distill capture --config FILE`" in message
    run["teacher"]["source"] = "cache"
    path = tiny.write_config(tmp_path, run)
    tiny.distill("capture", "--config", path)  # the two commands
    tiny.distill("--config", path)
