"""The most probable tokens of a teacher, or draws, are captured, and computed again: the same on any ranks."""

import re

import pytest

import read_cache
import tiny
from cache_kinds import KINDS, capture, content, killed_captures


@pytest.mark.parametrize("kind", ["topk", "weighted"])
def test_ranks_and_kills_write_what_one_process_writes(tmp_path, kind_run, kind):
    shard = tiny.make_shard(tmp_path / "long.dtok", tiny.random_documents(8, [61, 128, 33, 90, 250] * 60))
    base = kind_run("base", kind, shard=shard)
    base["cache"]["part_tokens"] = 128
    capture(base, tmp_path / "one")
    expected = content(tmp_path / "one")
    assert not list((tmp_path / "one" / "head").glob("*.safetensors"))  # no weight of the teacher is needed
    tiny.need_devices(tiny.RANKS)
    capture(base, tmp_path / "ranks", parallel_processes=tiny.RANKS)
    assert content(tmp_path / "ranks") == expected
    cache, path = tmp_path / "killed", tiny.write_config(tmp_path, base)
    _, kills = killed_captures(path, cache, 4, kind)
    assert kills >= 1
    tiny.distill("capture", "--config", path, "--set", f"teacher.cache={cache}")
    assert content(cache) == expected


@pytest.mark.skipif(tiny.DEVICE == "cuda", reason="other micro-batches: equal bits on a CPU only")
def test_draws_depend_on_their_place_and_seed_alone(tmp_path, kind_run, cache_of, ragged_shard):
    rows = read_cache.read_rows(cache_of("sampled")).stretches
    # Other sequences: the documents in another shard's company, in other micro-batches.
    other = kind_run("other", "sampled", micro=5, data={"seed": 9, "eval": []})
    capture(other, tmp_path / "other-cache")
    assert read_cache.read_rows(tmp_path / "other-cache").stretches.items() >= {}.items()
    for place, expected in read_cache.read_rows(tmp_path / "other-cache").stretches.items():
        assert [ids for ids, _ in rows[place]] == [ids for ids, _ in expected]
    capture(other | {"cache": other["cache"] | {"seed": 4}}, tmp_path / "seed")
    reseeded = read_cache.read_rows(tmp_path / "seed").stretches
    assert any([r[0] for r in reseeded[place]] != [r[0] for r in rows[place]] for place in reseeded if rows[place])


def test_verify_computes_again(cache_of, models):
    teacher = models["qwen3"][1]

    def verify(kind, temperature=1.0, *flags):
        arguments = ["--cache", cache_of(kind, temperature), "--teacher", teacher, "--samples", 40, *flags]
        return tiny.distill("verify", *arguments).stdout

    for temperature in (1.0, 2.0):
        for kind in KINDS:
            assert "(100%) are the same bit for bit" in verify(kind, temperature)
    text = verify("topk32")
    assert float(re.search(r"KL\(cache \|\| teacher\).* mean ([\d.e+-]+),", text).group(1)) < 1e-6
    share = float(re.search(r"the rest has ([\d.]+)% of the probability", text).group(1))
    assert 1 < share < 90
    assert float(re.search(r"mean ([\d.e+-]+),", verify("topk")).group(1)) < 1e-4
    sigmas = [float(re.search(r"\(([+-][\d.]+) standard errors\)", verify("sampled", t)).group(1)) for t in (1.0, 2.0)]
    assert all(abs(each) < 4 for each in sigmas)
    other = verify("sampled", 1.0, "--seq-len", 64)  # other contexts: no longer draws of this teacher
    assert "(100%)" not in other
