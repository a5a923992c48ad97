"""What keeps a teacher's cache from being silently wrong: its head, damaged parts, teachers that are not finite."""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

import read_cache
import tiny
from cache_kinds import capture, change_manifest, content, in_no_order
from model_files import changed_copy, setting
from run_results import steps_of, weights_of


@pytest.fixture
def other_teacher(tmp_path):
    """Of the same shape as the tests' teacher, with other weights."""
    folder = tmp_path / "other-teacher"
    return tiny.make_model(folder, "qwen3", seed=7, tied=True, vocab=tiny.TEACHER_VOCAB, hidden=64, layers=3)


def refused(folder, config, *flags):
    return tiny.distill("--config", tiny.write_config(folder, config), *flags, code=tiny.BAD_INPUT).stderr


def hidden_cache(kind_run, folder, teacher=None):
    config = kind_run("captured")
    config["teacher"]["path"] = teacher or config["teacher"]["path"]
    capture(config, folder)
    return config["teacher"]["path"]


def test_a_capture_into_an_emptied_folder_has_the_head_of_its_own_teacher(tmp_path, kind_run, other_teacher):
    cache = tmp_path / "cache"
    hidden_cache(kind_run, cache)
    for path in [cache / "manifest.json", *cache.glob("part-*")]:
        path.unlink()
    hidden_cache(kind_run, cache, other_teacher)
    done = tiny.distill("verify", "--cache", cache, "--teacher", other_teacher, "--samples", 5)
    assert "mean 0, largest 0 nats" in done.stdout
    online = kind_run("online")
    online["teacher"]["path"] = other_teacher
    runs = [tiny.train(tmp_path, each) for each in (online, kind_run("run", None, cache))]
    assert steps_of(runs[0]) == steps_of(runs[1]) and weights_of(runs[0]) == weights_of(runs[1])


def test_a_teacher_with_chat_templates_of_their_own_names_is_captured(tmp_path, kind_run, other_teacher):
    template = Path("additional_chat_templates") / "tool_use.jinja"
    (other_teacher / template).parent.mkdir()
    (other_teacher / template).write_text("{{ tools }}")
    hidden_cache(kind_run, tmp_path / "cache", other_teacher)
    assert (tmp_path / "cache" / "head" / template).read_text() == "{{ tools }}"
    tiny.distill("verify", tmp_path / "cache")


def test_a_head_without_weights_is_not_kept_for_hidden_states(tmp_path, kind_run):
    cache = tmp_path / "cache"
    capture(kind_run("topk", "topk"), cache)
    for path in [cache / "manifest.json", *cache.glob("part-*")]:
        path.unlink()
    hidden_cache(kind_run, cache)
    tiny.train(tmp_path, kind_run("run", None, cache))


@pytest.mark.parametrize("ranks", [1, tiny.RANKS])
def test_another_head_and_a_damaged_one_are_refused(tmp_path, kind_run, other_teacher, ranks):
    cache, other = tmp_path / "cache", tmp_path / "other"
    hidden_cache(kind_run, cache)
    hidden_cache(kind_run, other, other_teacher)
    own = tmp_path / "own"
    shutil.move(cache / "head", own)
    shutil.copytree(other / "head", cache / "head")
    run = kind_run("run", None, cache, ranks=ranks)
    message = refused(tmp_path, run)
    list_hash = hashlib.sha256((own / "checksums.xxh3").read_bytes()).hexdigest()
    assert f"{cache}/head: is not the head of this cache: expected a checksums.xxh3 with sha256 {list_hash}" in message
    assert "is not the head of this cache" in tiny.distill("verify", cache, code=tiny.BAD_INPUT).stderr
    base = kind_run("captured")
    assert "is not the head of this cache" in capture(base, cache, code=tiny.BAD_INPUT).stderr
    shutil.rmtree(cache / "head")
    shutil.copytree(own, cache / "head")
    weights = bytearray((own / "model.safetensors").read_bytes())
    weights[-100] ^= 1
    (cache / "head" / "model.safetensors").write_bytes(weights)
    for command in ([], ["--dry-run"]):
        message = refused(tmp_path, run, *command)
        assert "head/model.safetensors: is damaged" in message and "expected checksum" in message
    assert not (tmp_path / "run" / "run" / "metrics.jsonl").exists()
    path = tiny.write_config(tmp_path / "eval", run)
    assert "head/model.safetensors: is damaged" in tiny.distill("eval", "--config", path, code=tiny.BAD_INPUT).stderr


def without_head_hash(cache):
    """The cache as earlier versions wrote it."""
    change_manifest(cache, lambda manifest: manifest.pop("head"))


def test_a_cache_without_a_hash_of_its_head_stays_readable(tmp_path, kind_run):
    cache, old = tmp_path / "cache", tmp_path / "old"
    hidden_cache(kind_run, cache)
    assert "head" in json.loads((cache / "manifest.json").read_text())
    shutil.copytree(cache, old)
    without_head_hash(old)
    tiny.distill("verify", old)
    runs = [tiny.train(tmp_path, kind_run(each.name, None, each)) for each in (cache, old)]
    assert weights_of(runs[0]) == weights_of(runs[1])
    sorted(old.glob("part-*.dtc"))[1].unlink()
    capture(kind_run("captured"), old)  # goes on as it was
    assert "head" not in json.loads((old / "manifest.json").read_text())
    tiny.distill("verify", old)


@pytest.mark.parametrize("kind", [None, "topk", "sampled"])
def test_the_importer_gives_a_cache_the_identity_that_the_program_gives_it(tmp_path, kind_run, kind, monkeypatch):
    monkeypatch.syspath_prepend(str(tiny.REPOSITORY / "scripts"))
    from teacher_cache import folder

    cache = tmp_path / "cache"
    capture(kind_run("base", kind), cache)
    manifest = json.loads((cache / "manifest.json").read_text())
    assert manifest["head"] == folder.head_hash(cache)
    shuffled = dict(sorted(manifest.items()))  # the order of the file's members is free
    if kind != "sampled":  # which no import makes
        assert (cache / "part-00000000.dtc").read_bytes()[32:64] == folder.cache_id(shuffled)


@pytest.mark.parametrize("kind", [None, "topk"])
def test_a_capture_goes_on_only_from_parts_that_are_its_own(tmp_path, kind_run, kind):
    cache, base = tmp_path / "cache", kind_run("base", kind)
    capture(base, cache)
    whole = content(cache)
    victim = cache / "part-00000001.dtc"
    foreign = tmp_path / "foreign"
    capture(base, foreign, data_seq_len=48)
    for wrong, says in (
        (whole[victim.name][:-1], "truncated or damaged"),
        (whole["part-00000000.dtc"], "is a part of another cache: expected part 1"),
        ((foreign / victim.name).read_bytes(), "is a part of another cache"),
    ):
        victim.write_bytes(wrong)
        for flags in ([], ["--dry-run"]):
            message = capture(base, cache, *flags, code=tiny.BAD_INPUT).stderr
            assert f"{victim}: {says}" in message and "remove the file" in message
        assert victim.read_bytes() == wrong
    victim.unlink()
    capture(base, cache)
    assert content(cache) == whole
    (cache / "manifest.json").unlink()
    message = capture(base, cache, code=tiny.BAD_INPUT).stderr
    assert "expected manifest.json next to the parts of a cache" in message and "part-00000000.dtc" in message


def test_a_folder_of_something_else_is_no_place_for_a_cache(tmp_path, kind_run):
    base = kind_run("base")
    shutil.copytree(base["student"]["path"], tmp_path / "model")
    before = content(tmp_path / "model")
    for flags in ([], ["--dry-run"]):
        message = capture(base, tmp_path / "model", *flags, code=tiny.BAD_INPUT).stderr
        assert "teacher.cache: expected a cache, or a folder that is empty or not there yet" in message
    assert content(tmp_path / "model") == before
    (tmp_path / "empty").mkdir()
    capture(base, tmp_path / "empty")


@pytest.fixture
def overflowing(tmp_path, models):
    """A teacher of finite weights whose hidden states are not all finite."""
    change = setting("model.norm.weight", 5, 2e38)  # times more than 1.7: infinite
    return changed_copy(models["qwen3"][1], tmp_path / "overflowing", change)


@pytest.mark.parametrize("kind", [None, "topk", "sampled", "weighted"])
def test_a_teacher_that_is_not_finite_ends_its_capture(tmp_path, kind_run, overflowing, kind, ragged_shard):
    base = kind_run("base", kind)
    base["teacher"]["path"] = overflowing
    message = capture(base, tmp_path / "cache", code=tiny.BAD_INPUT).stderr
    assert re.search(rf"{ragged_shard}: document \d+, token \d+: the teacher predicts what is no distribution", message)


def float8(config, *exceptions, **keys):
    config = json.loads(json.dumps(config))
    config["teacher"] |= {"dtype": "float8", "float8_exceptions": list(exceptions)}
    config["float8"] = {"max_mean_kl": 100.0} | keys
    return config


def test_a_float8_teacher_passes_its_check_before_it_is_captured(tmp_path, kind_run):
    base, cache = kind_run("base"), tmp_path / "cache"
    message = capture(float8(base, max_mean_kl=1e-6), cache, code=tiny.BAD_INPUT).stderr
    assert "float8.max_mean_kl" in message and "expected a mean KL of at most 1e-06" in message
    assert not list(cache.glob("part-*"))
    done = capture(float8(base, "1.o", "2"), cache)
    assert "float8 teacher against the same in its compute dtype" in done.stderr
    assert json.loads((cache / "manifest.json").read_text())["precision"].endswith("in float8, all but 2, 1.o")
    message = capture(float8(base, "1.down", "2"), cache, code=tiny.BAD_INPUT).stderr
    assert "precision: expected" in message and "all but 2, 1.down" in message and "all but 2, 1.o" in message
    capture(float8(base, "2", "1.o"), cache)  # the same, said otherwise


def verified(cache, teacher, *flags):
    return tiny.distill("verify", "--cache", cache, "--teacher", teacher, "--samples", 9, *flags).stdout


def test_verify_computes_a_float8_teacher_in_float8(tmp_path, kind_run, models):
    capture(float8(kind_run("base"), "1.o", "2"), tmp_path / "cache")
    text = verified(tmp_path / "cache", models["qwen3"][1])
    assert "mean 0, largest 0 nats" in text and "(100%) are the same bit for bit" in text


def test_verify_needs_no_keys_of_the_teacher_again(tmp_path, kind_run, models):
    folder = tmp_path / "teacher"
    changed_copy(models["qwen3"][1], folder, my_note=True, strange=1)
    base = kind_run("base", "topk")
    base["teacher"] |= {"path": str(folder), "ignore_config_keys": ["my_note", "strange"]}
    capture(base, tmp_path / "cache")
    assert "(100%) are the same bit for bit" in verified(tmp_path / "cache", folder)


@pytest.mark.parametrize("packing", ["pack", "concat"])
@pytest.mark.parametrize("kind", [None, "topk"])
def test_verify_takes_what_is_there_of_a_cache_that_has_not_all_documents(tmp_path, kind_run, models, kind, packing):
    cache = tmp_path / "cache"
    off = {"eval": {"every": 0}, "scheduler": {"warmup_steps": 1}}
    capture(kind_run("base", kind, data={"packing": packing, "eval": []}, **off), cache)
    in_no_order(cache, keep=lambda number: number == 1)
    stretches = len(read_cache.read_table((sorted(cache.glob("part-*.dtc"))[0]).read_bytes()))
    assert stretches > 0
    text = verified(cache, models["qwen3"][1])
    assert "(100%) are the same bit for bit" in text
    tokens = int(re.search(r": (\d+) tokens computed again", text)[1])
    assert tokens > 0


@pytest.mark.parametrize("packing", ["pack", "concat"])
def test_a_cache_that_a_run_of_an_earlier_version_wrote_is_read_and_left_as_it_is(tmp_path, kind_run, packing):
    def run(name, cache=None):
        return kind_run(name, "topk", cache, data={"packing": packing, "eval": []}, eval={"every": 0})

    cache, other = tmp_path / "cache", tmp_path / "other"
    capture(run("captured"), cache)
    shutil.copytree(cache, other)
    in_no_order(other)
    before = content(other)
    assert weights_of(tiny.train(tmp_path, run("again", other))) == weights_of(tiny.train(tmp_path, run("once", cache)))
    assert "is the cache of something else" in capture(run("captured"), other, code=tiny.BAD_INPUT).stderr
    assert content(other) == before
    in_no_order(other, keep=lambda number: number == 0)
    refused = tiny.distill("--config", tiny.write_config(tmp_path, run("some", other)), code=tiny.BAD_INPUT).stderr
    assert "`distill capture` writes a cache of all of them, in another folder" in refused


def test_a_run_no_longer_writes_a_cache_and_says_what_does(tmp_path, kind_run):
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
