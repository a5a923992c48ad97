"""A cache of concatenated documents serves the runs whose sequences have the same tokens to the left, and no other."""

import json
import struct

import pytest
import xxhash

import read_cache
import tiny
from cache_kinds import FORWARD_KL, KINDS, capture, content
from run_results import steps_of, weights_of

SHUFFLED = {"shuffle": True, "seed": 5}


@pytest.fixture
def stream(tmp_path, models, ragged_shard):
    """The configuration of a run with packing: concat; with `cache` its teacher is read from there."""

    def build(name, cache=None, ranks=1, micro=2, dtype="float32", kind=None, contexts="refuse", **sections):
        data = {"eval": [{"path": ragged_shard}]} | SHUFFLED | sections.pop("data", {})
        train = {"steps": 12, "micro_batch_size": micro, "global_batch_size": 12, "dtype": dtype}  # two epochs and more
        train |= {"deterministic": tiny.DEVICE == "cuda"} | sections.pop("train", {})
        sections.setdefault("eval", {"every": 6})
        contexts = sections.pop("contexts", None)
        built = tiny.base_config(
            tmp_path / name, *models["qwen3"], ragged_shard, data=data, train=train, parallel={"processes": ranks}
        )
        built |= sections
        if kind:
            built |= {"loss": FORWARD_KL, "cache": dict(KINDS[kind])}
        built["cache"] = built.get("cache", {}) | {"part_tokens": 200}
        built["cache"] |= {} if contexts is None else {"other_contexts": contexts}
        if cache is not None:
            built["teacher"] = {"source": "cache", "cache": str(cache)}
        return built

    return build


def micro_of(micro):
    """Of a capture: another one than the run's, where products do not depend on it."""
    return 3 if tiny.DEVICE == "cpu" else micro


@pytest.mark.parametrize(
    "dtype, order", [("float32", SHUFFLED), ("bfloat16", SHUFFLED), ("float32", {"shuffle": False})]
)
@pytest.mark.parametrize("ranks, micro", [(1, 2), (1, 6), (tiny.RANKS, 2)])
def test_a_run_from_the_cache_is_the_online_run_bit_for_bit(tmp_path, stream, dtype, order, ranks, micro):
    capture(stream("base", micro=micro_of(micro), dtype=dtype, data=order), tmp_path / "cache")
    online = tiny.train(tmp_path, stream("online", ranks=ranks, micro=micro, dtype=dtype, data=order))
    cached = tiny.train(
        tmp_path, stream("cached", tmp_path / "cache", ranks=ranks, micro=micro, dtype=dtype, data=order)
    )
    assert steps_of(cached) == steps_of(online)
    assert weights_of(cached) == weights_of(online)


def test_the_rows_of_equal_sequences_serve_whatever_captured_them(tmp_path, stream):
    """data.eval is the shard of data.train, and is not shuffled: a run that does not shuffle reads its rows."""
    capture(stream("base", micro=micro_of(2)), tmp_path / "cache")
    straight = {"shuffle": False, "seed": 9}
    online = tiny.train(tmp_path, stream("online", data=straight))
    cached = tiny.train(tmp_path, stream("cached", tmp_path / "cache", data=straight))
    assert steps_of(cached) == steps_of(online)
    assert weights_of(cached) == weights_of(online)


def test_mixed_data_sets_find_their_rows_with_other_weights(tmp_path, stream, ragged_shard):
    other = tiny.make_shard(tmp_path / "other.dtok", tiny.random_documents(4, [40, 7, 33, 80, 12] * 5))
    sets = [{"path": ragged_shard, "weight": 3}, {"path": other}]
    capture(stream("base", micro=micro_of(2), data={"train": sets}), tmp_path / "cache")
    sets[0]["weight"] = 0.7
    online = tiny.train(tmp_path, stream("online", data={"train": sets}))
    cached = tiny.train(tmp_path, stream("cached", tmp_path / "cache", data={"train": sets}))
    assert steps_of(cached) == steps_of(online)
    assert weights_of(cached) == weights_of(online)


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path, stream):
    capture(stream("base"), tmp_path / "cache")

    def run(name, steps):
        built = stream(name, tmp_path / "cache", train={"steps": steps}, checkpoint={"every": 4})
        return built | {"scheduler": {"type": "constant"}}

    whole = tiny.train(tmp_path, run("whole", 8))
    tiny.train(tmp_path, run("half", 4))
    assert weights_of(tiny.train(tmp_path, run("half", 8), "--resume")) == weights_of(whole)


def test_ranks_write_what_one_process_writes_and_verify_computes_it_again(tmp_path, stream, models):
    capture(stream("base"), tmp_path / "one")
    tiny.need_devices(tiny.RANKS)
    capture(stream("base"), tmp_path / "ranks", parallel_processes=tiny.RANKS)
    assert content(tmp_path / "ranks") == content(tmp_path / "one")
    shown = tiny.distill("verify", "--cache", tmp_path / "one", "--teacher", models["qwen3"][1], "--samples", 40).stdout
    assert "(100%) are the same bit for bit" in shown
    planned = capture(stream("base"), tmp_path / "third", "--dry-run").stdout
    rows = sum(entry[4] for entry in tables(tmp_path / "one"))
    said = int(planned.split(" tokens with a target")[0].split()[-1])
    assert rows <= said <= 1.1 * rows + 80  # whether a document's last token has a target is not looked at


def tables(cache):
    return [entry for path in sorted(cache.glob("part-*.dtc")) for entry in read_cache.read_table(path.read_bytes())]


def test_contexts_are_those_that_the_format_says(tmp_path, stream):
    """Computed in Python, as docs/teacher_cache.md has them; sequences are full but for the last of each data set."""
    capture(stream("base"), tmp_path / "cache")
    manifest = json.loads((tmp_path / "cache" / "manifest.json").read_text())
    assert manifest["version"] == 3 and manifest["packing"] == "concat"
    assert manifest["shuffle"] is True and manifest["data_seed"] == 5
    hashes = [bytes.fromhex(file["header_hash"]) for file in manifest["data"]]
    at, context, starts = 0, 1, 0
    for shard, document, begin, tokens, _, _, found in tables(tmp_path / "cache"):
        starts += found == 1
        at, context = (0, 1) if found == 1 else (at, context)
        assert found == context
        place = struct.pack("<Q32sqqq", context, hashes[shard], document, begin, tokens)
        at, context = at + tokens, max(2, xxhash.xxh3_64_intdigest(place))
        assert at <= 32
        if at == 32:
            at, context = 0, 1
    assert starts > 40


@pytest.mark.parametrize(
    "data, message",
    [
        (
            {"seed": 6},
            "expected those of data.seq_len 32 and data.seed 6, found the cache captured with data.seq_len 32",
        ),
        ({"shuffle": False}, "expected those of data.seq_len 32 and data.shuffle: false"),
        ({"seq_len": 16}, "expected those of data.seq_len 16 and data.seed 5"),
        ({"packing": "pack"}, "data.packing: expected concat, with which the cache"),
    ],
)
def test_other_sequences_are_refused_before_the_first_step(tmp_path, stream, data, message):
    off = {"every": 0}  # the stream of data.eval, which is not shuffled, would be there as well
    capture(stream("base", data={"eval": []}, eval=off), tmp_path / "cache")
    for other in ("refuse", "allow"):
        run = stream(f"run-{other}", tmp_path / "cache", contexts=other, eval=off, data={"eval": []} | data)
        found = tiny.distill("--config", tiny.write_config(tmp_path, run), code=tiny.BAD_INPUT).stderr
        assert message in found
        assert not (tmp_path / f"run-{other}" / "run" / "metrics.jsonl").exists()


def test_a_cache_of_whole_documents_is_refused_and_not_touched(tmp_path, stream):
    capture(stream("base", data={"packing": "pack"}), tmp_path / "cache")
    before = content(tmp_path / "cache")
    run = tiny.write_config(tmp_path, stream("run", tmp_path / "cache", contexts="allow"))
    assert "data.packing: expected pack, with which" in tiny.distill("--config", run, code=tiny.BAD_INPUT).stderr
    message = capture(stream("base"), tmp_path / "cache", code=tiny.BAD_INPUT).stderr
    assert "packing: expected concat, found pack" in message
    assert content(tmp_path / "cache") == before
