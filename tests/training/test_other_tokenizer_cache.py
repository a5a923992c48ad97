"""A cache of the hidden states of a teacher whose tokenizer splits the text otherwise: runs from it are online runs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import memory_plans
import other_tokenizers
import test_other_tokenizer
import tiny
from cache_kinds import capture, change_manifest, content
from run_results import steps_of, weights_of
from test_other_tokenizer import config_of

CHATS = {"seq_len": 192, "teacher_seq_len": 192}


def from_cache(config, cache, **teacher):
    """The run that has the cache and no teacher's folder."""
    kept = {key: config["teacher"][key] for key in ("alignment", "token_pairs")}
    return config | {"teacher": kept | {"source": "cache", "cache": str(cache)} | teacher}


@pytest.fixture(scope="module")
def cache_of(tmp_path_factory, pair, texts):
    """The cache of the texts with some settings, captured when it is asked for first."""
    found = {}

    def cache(dtype="float32", **settings):
        key = (dtype, *settings.items())
        if key not in found:
            folder = tmp_path_factory.mktemp("own-tokens")
            capture(config_of(folder, pair, texts, train={"dtype": dtype}), folder / "cache", **settings)
            found[key] = folder / "cache"
        return found[key]

    return cache


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("loss", ["jsd", "reverse"])
def test_a_run_from_the_cache_is_the_online_run_bit_for_bit(tmp_path, pair, texts, cache_of, dtype, loss):
    sections = {"train": {"dtype": dtype}, "data": {"shuffle": True}, "eval": {"every": 3}}
    online = tiny.train(tmp_path, config_of(tmp_path / "online", pair, texts, loss, **sections))
    config = config_of(tmp_path / "cached", pair, texts, loss, **sections)
    cached = tiny.train(tmp_path, from_cache(config, cache_of(dtype)))
    assert steps_of(cached) == steps_of(online)
    assert weights_of(cached) == weights_of(online)
    assert steps_of(cached)[0][0]["boundary_share"] > 0.3 and steps_of(cached)[0][0]["teacher_ce"] > 0


@pytest.mark.parametrize("families", [("gemma2", "gemma3"), ("llama", "qwen2")])
def test_packed_chats_documents_that_are_cut_and_softcaps(tmp_path, pair, chats, families):
    models = [
        other_tokenizers.with_model(other_tokenizers.copy_of(folder, tmp_path / name), family, seed)
        for folder, name, family, seed in zip(pair, ("student", "teacher"), families, (1, 2), strict=True)
    ]
    data = {"seq_len": 48, "teacher_seq_len": 40}  # some chats are longer
    base = config_of(tmp_path / "base", models, chats, data=data)
    capture(base, tmp_path / "cache", cache_part_tokens=100)
    for micro in (1, 2):
        sections = {"data": data, "train": {"micro_batch_size": micro}}
        online = tiny.train(tmp_path, config_of(tmp_path / f"online{micro}", models, chats, **sections))
        cached = config_of(tmp_path / f"cached{micro}", models, chats, **sections)
        cached = tiny.train(tmp_path, from_cache(cached, tmp_path / "cache"))
        assert steps_of(cached) == steps_of(online)
        assert weights_of(cached) == weights_of(online)


def test_other_lengths_of_uncut_documents_and_other_pairs_use_the_same_cache(tmp_path, pair, chats):
    capture(config_of(tmp_path / "base", pair, chats, data=CHATS), tmp_path / "cache")
    for name, changes in {
        "longer": {"data": {"seq_len": 230, "teacher_seq_len": 210}},
        "alone": {"data": CHATS, "teacher": {"token_pairs": []}},
    }.items():
        config = config_of(tmp_path / name, pair, chats, **changes)
        online = tiny.evaluate(tmp_path, config)
        if tiny.DEVICE == "cuda":  # whose products sum in an order that depends on the length
            online = pytest.approx(online, rel=1e-6)
        assert tiny.evaluate(tmp_path, from_cache(config, tmp_path / "cache")) == online, name


def test_ranks_capture_and_train_alike_and_a_run_resumes(tmp_path, pair, texts, cache_of):
    tiny.need_devices(2)
    one = config_of(tmp_path / "capture", pair, texts, parallel={"processes": 2})
    capture(one, tmp_path / "cache", cache_part_tokens=200)
    assert content(tmp_path / "cache") == content(cache_of(cache_part_tokens=200))

    def run(name, steps, **sections):
        train = {"steps": steps, "micro_batch_size": 1}
        config = config_of(tmp_path / name, pair, texts, train=train, checkpoint={"every": 3}, **sections)
        return config | {"scheduler": {"type": "constant", "warmup_steps": 2}}

    ranks = {"parallel": {"processes": 2}}
    expected = tiny.train(tmp_path, run("online", 6, **ranks))
    tiny.train(tmp_path, from_cache(run("cached", 3, **ranks), tmp_path / "cache"))
    resumed = tiny.train(tmp_path, from_cache(run("cached", 6, **ranks), tmp_path / "cache"), "--resume")
    assert weights_of(resumed) == weights_of(expected)
    assert steps_of(resumed)[-1] == steps_of(expected)[-1]


def test_int8_is_near_and_the_cache_is_verified_and_shown(tmp_path, pair, texts, cache_of):
    exact, near = cache_of(), cache_of(cache_dtype="int8")
    config = config_of(tmp_path, pair, texts)
    online = tiny.evaluate(tmp_path, config)
    found = tiny.evaluate(tmp_path, from_cache(config, near))
    assert found["loss"] == pytest.approx(online["loss"], rel=0.02) and found["loss"] != online["loss"]
    check = ["--teacher", pair[1], "--samples", "40"]
    assert "(100%) are the same bit for bit" in tiny.distill("verify", "--cache", exact, *check).stdout
    said = tiny.distill("verify", "--cache", near, *check).stdout
    assert 0 < float(re.search(r"KL\(teacher \|\| cache\) mean ([\d.e+-]+)", said).group(1)) < 0.1
    manifest = json.loads((exact / "manifest.json").read_text())
    rows = 2 * sum(int(np.count_nonzero(its_in_loss[1:])) for *_, its_in_loss in other_tokenizers.documents_of(texts))
    shown = tiny.distill("inspect", exact).stdout  # the texts are data.train and data.eval
    assert re.search(rf"rows +{rows} of {manifest['hidden_size'] * 4} bytes", shown)
    first = other_tokenizers.documents_of(texts)[0][2]
    document = tiny.distill("inspect", exact, "--document", "0").stdout
    assert (
        f"document 0 of {next(Path(texts).glob('*.dtok')).name}: {len(first)} tokens of the teacher's own" in document
    )
    assert document.count(" -> ") == len(first) - 1


def test_the_head_is_the_teachers_own(cache_of, pair):
    head = tiny.load_weights(cache_of() / "head")["lm_head.weight"]
    its = tiny.load_weights(Path(pair[1]))["lm_head.weight"]
    tokens = len(other_tokenizers.Vocabulary(pair[1], {}).keys)
    assert head.shape == its.shape and tokens < len(its)
    assert head[:tokens].equal(its[:tokens]) and not head[tokens:].any()
    assert (cache_of() / "head/tokenizer.json").read_bytes() == (Path(pair[1]) / "tokenizer.json").read_bytes()


def test_beside_a_teacher_that_runs(tmp_path, pair, texts):
    same = other_tokenizers.with_model(other_tokenizers.copy_of(pair[0], tmp_path / "same"), "llama", 5)
    plain = plain_shard(tmp_path / "plain.dtok", pair, texts)
    train = {"micro_batch_size": 2, "global_batch_size": 2}

    def config(name, **keys):
        out = config_of(tmp_path / name, pair, texts, train=train)
        out["teachers"] = [{"name": "same", "path": same}, {"name": "other", **out.pop("teacher"), **keys}]
        out["data"]["train"] = [{"path": plain, "teacher": "same"}, {"path": texts, "teacher": "other"}]
        del out["data"]["eval"]
        return out

    cache = str(tmp_path / "cache")
    path = tiny.write_config(tmp_path / "capture", config("capture", cache=cache))
    tiny.distill("capture", "--config", path, "--teacher", "other")
    online = tiny.train(tmp_path, config("online"))
    cached = tiny.train(tmp_path, config("cached", cache=cache, source="cache"))
    assert steps_of(cached) == steps_of(online)
    assert weights_of(cached) == weights_of(online)
    assert {name for step in steps_of(cached)[0] for name in step["teachers"]} == {"same", "other"}


def plain_shard(path, pair, texts):
    """Documents without a text of the teacher's."""
    spec = test_other_tokenizer.spec_of(pair)
    shard = other_tokenizers.shard_file.Shard(
        other_tokenizers.shard_file.ShardSpec(spec.vocab_size, spec.tokenizer_hash)
    )
    for tokens, in_loss, _, _ in other_tokenizers.documents_of(texts)[::2]:
        shard.add(tokens, in_loss)
    shard.write(path)
    return str(path)


def test_the_plan_of_capture_and_run(tmp_path, pair, texts, cache_of):
    base = config_of(tmp_path / "base", pair, texts)
    on_paper = base | {"teacher": base["teacher"] | {"cache": str(tmp_path / "cache")}}
    shown = tiny.distill("plan", "--config", tiny.write_config(tmp_path / "paper", on_paper)).stdout
    done = capture(base, tmp_path / "cache", memory_limit_gib=16)
    found, planned = map(int, re.search(r"memory: (\d+) bytes .* rank 0, (\d+) planned", done.stderr).groups())
    on_the_host = 6 * 2 * 32 * 64 * 4 + 8 * 2 * 32 * 8 * 6  # rows on their way to the disk, batches that are read ahead
    if tiny.DEVICE == "cpu":  # whose memory is what a capture measures
        assert found - memory_plans.UNPLANNED - on_the_host <= planned <= 1.1 * found
    rows, width = map(int, re.search(r"(\d+) tokens with a target, .* of (\d+) bytes each", done.stderr).groups())
    assert f"{rows} tokens with a target, in the teacher's own tokens, of {width} bytes each" in shown
    assert f" parts, {rows} rows," in tiny.distill("verify", tmp_path / "cache").stdout and width == 4 * 64
    config = from_cache(config_of(tmp_path / "run", pair, texts, data={"teacher_seq_len": 48}), tmp_path / "cache")
    plan = tiny.plan(tmp_path, config)
    assert plan["cached_bytes_per_token"] == width and plan["cached_bytes_per_step"] == 4 * 48 * width
    rows_ahead = 8 * 2 * 48 * width  # are measured, too
    report = memory_plans.profile(tmp_path, config, "--steps", 2)
    memory_plans.check_peaks(report, 1.25, unplanned=memory_plans.UNPLANNED + rows_ahead)


def test_what_does_not_fit_is_refused(tmp_path, pair, texts, chats, cache_of):
    def refused(name, says, config):
        tiny.expect_refused(tmp_path / name, config, says)

    cache = cache_of()
    run = from_cache(config_of(tmp_path / "run", pair, texts), cache)
    for kind in ("topk", "sampled"):
        loss = {"divergence": "forward_kl"}
        refused(kind, ["cache.kind: hidden with alignment: bytes"], run | {"cache": {"kind": kind}, "loss": loss})
        config = config_of(tmp_path / kind, pair, texts, cache={"kind": kind}) | {"loss": loss}
        done = capture(config, tmp_path / "none", code=tiny.BAD_INPUT)
        assert "cache.kind: hidden with alignment: bytes" in done.stderr
    refused(
        "tokens",
        ["expected rows of the student's tokens", "found rows of the teacher's own"],
        {**run, "teacher": {"source": "cache", "cache": str(cache)}},
    )
    same = other_tokenizers.with_model(other_tokenizers.copy_of(pair[0], tmp_path / "same"), "llama", 5)
    plain = plain_shard(tmp_path / "plain.dtok", pair, texts)
    online = tiny.base_config(tmp_path / "plain", pair[0], same, plain, data={"packing": "pack"})
    capture(online, tmp_path / "of_tokens")
    refused(
        "bytes",
        ["expected rows of the teacher's own tokens", "found rows of the student's"],
        from_cache(config_of(tmp_path / "bytes", pair, texts), tmp_path / "of_tokens"),
    )
    refused("data", ["is not in the cache"], from_cache(config_of(tmp_path / "data", pair, chats, data=CHATS), cache))
    refused("teacher", ["teacher_hash, against teacher.path"], from_cache(run, cache, path=same))
    short = tmp_path / "short" / "cache"
    capture(config_of(tmp_path / "short", pair, chats, data={"seq_len": 48, "teacher_seq_len": 40}), short)
    refused(
        "cut",
        ["data.seq_len 192 and data.teacher_seq_len 192", "captured with data.seq_len 48 and data.teacher_seq_len 40"],
        from_cache(config_of(tmp_path / "cut", pair, chats, data=CHATS), short),
    )
    change_manifest(short, lambda manifest: manifest.update(packing="concat"))
    refused(
        "packing",
        ["packing: expected pack"],
        from_cache(config_of(tmp_path / "packing", pair, chats, data=CHATS), short),
    )
