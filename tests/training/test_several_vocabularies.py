"""Vocabulary maps together with several teachers, of whom one needs one, and with a teacher that has an adapter."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import adapters
import onpolicy_runs
import tiny
import vocabularies
from model_files import change_keys
from run_results import steps_of, weights_of
from token_shards.shard_file import Shard, ShardSpec
from token_shards.tokenizer_files import TokenizerFiles

BASE = vocabularies.BASE
SAME = {f"t{i}": i for i in range(BASE)}
STUDENT = SAME | {"<own>": BASE}
MATH = SAME | {"<own>": BASE}  # the student's tokens
CODE = SAME | {"<call>": BASE}  # lacks <own>, and has a token that the student lacks
MOVED = {text: BASE - id for text, id in CODE.items()}  # the same with other ids
NAMES = ["math", "code", "math", "math", "code"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, models):
    """Models by name; `moved` is `code` with other ids."""
    folder = tmp_path_factory.mktemp("mapped")
    rows = np.arange(tiny.TEACHER_VOCAB)
    reordered = np.concatenate([rows[: BASE + 1][::-1], rows[BASE + 1 :]])
    (student, math), (_, code) = models["llama"], models["qwen2"]
    return {
        "student": vocabularies.with_rows(student, folder / "student", rows[: tiny.VOCAB], STUDENT),
        "math": vocabularies.with_rows(math, folder / "math", rows, MATH),
        "code": vocabularies.with_rows(code, folder / "code", rows, CODE),
        "moved": vocabularies.with_rows(code, folder / "moved", reordered, MOVED),
    }


def documents_of(seed, count=20, most=BASE):
    random = np.random.default_rng(seed)
    return [(random.integers(0, most, n), np.ones(n, bool)) for n in random.integers(8, 60, count)]


def named_shard(path, tokenizer, documents, names):
    files = TokenizerFiles.load(Path(tokenizer))
    shard = Shard(ShardSpec(files.vocab_size, files.hash))
    for (tokens, in_loss), name in zip(documents, names, strict=True):
        shard.add(np.asarray(tokens, np.uint32), in_loss, None, name)
    shard.write(path)
    return str(path)


@pytest.fixture(scope="module")
def shards(tmp_path_factory, folders):
    folder = tmp_path_factory.mktemp("mapped-data")
    return {
        "both": named_shard(folder / "both.dtok", folders["student"], documents_of(1), NAMES * 4),
        "math": named_shard(folder / "math.dtok", folders["student"], documents_of(2), ["math"] * 20),
        "own": named_shard(folder / "own.dtok", folders["student"], documents_of(3, most=BASE + 1), NAMES * 4),
    }


@pytest.fixture
def config(tmp_path, folders, shards):
    def build(name, code="moved", train="both", held_out="both", ranks=1, **sections):
        """A run with two teachers; `code`: the folder of the second one, or its keys."""
        data = {"packing": "pack", "shuffle": True, "train": [{"path": shards[train]}]}
        data["eval"] = [{"path": shards[held_out]}]
        run = {"steps": 6, "micro_batch_size": 1, "global_batch_size": 4, "deterministic": tiny.DEVICE == "cuda"}
        sections = {"eval": {"every": 3}, "parallel": {"processes": ranks}, "checkpoint": {"every": 3}} | sections
        out = tiny.base_config(tmp_path / name, folders["student"], "", "", data=data, train=run, **sections)
        del out["teacher"]
        own = {"path": folders[code]} if isinstance(code, str) else code
        out["data"]["teacher_sequences"] = 2
        out["teachers"] = [{"name": "math", "path": folders["math"]}, {"name": "code"} | own]
        return out

    return build


def without_mass(steps):
    """Of evaluations without the dropped mass, which is summed over rows in another order."""
    text = re.sub(r'"teacher_dropped_mass": [^,}]+,? ?', "", json.dumps(steps))
    return json.loads(re.sub(r", }", "}", text))


def test_a_teacher_with_other_ids_beside_one_with_the_students(tmp_path, config):
    """The run is that of the same teacher with the student's ids, bit for bit; so is one that ended half-way."""
    equal = tiny.train(tmp_path / "equal", config("equal", code="code"))
    settings = config("moved")
    said = tiny.distill("--config", tiny.write_config(tmp_path / "moved", settings)).stderr
    run = Path(settings["run"]["dir"])
    assert without_mass(steps_of(run)) == without_mass(steps_of(equal)) and weights_of(run) == weights_of(equal)
    assert "teacher code: vocabulary: the loss compares 190 tokens of both models, 189 of which have another id" in said
    assert 'the tokenizer of the teacher code has 1 token that the student\'s lacks: 0 ("<call>")' in said
    assert 'the teacher code\'s lacks: 190 ("<own>")' in said and "the teacher math's lacks" not in said
    _, evaluations = tiny.read_metrics(run)
    for line in evaluations:
        own = line["eval"]["teachers"]
        assert 0 < own["code"]["teacher_dropped_mass"] < 0.05 and "teacher_dropped_mass" not in own["math"]
    shutil.rmtree(run / "checkpoints" / "step-6")
    shutil.rmtree(run / "model")
    tiny.train(tmp_path / "moved", settings, "--resume")
    assert weights_of(run) == weights_of(equal)


def test_ranks_with_a_mapped_teacher_train_as_one(tmp_path, config):
    runs = [tiny.train(tmp_path / f"ranks-{ranks}", config(f"ranks-{ranks}", ranks=ranks)) for ranks in (1, 2)]
    for one, two in zip(*(tiny.read_metrics(run)[0] for run in runs), strict=True):
        assert one["teachers"].keys() == two["teachers"].keys()
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert tiny.relative_difference(*(tiny.load_weights(run / "model") for run in reversed(runs))) < 2e-4


def test_a_cache_of_the_mapped_teacher_beside_the_other_one(tmp_path, folders, config):
    online = tiny.train(tmp_path / "online", config("online"))
    cache = str(tmp_path / "cache")
    to_capture = config("capture", code={"path": folders["moved"], "cache": cache})
    tiny.distill("capture", "--config", tiny.write_config(tmp_path / "capture", to_capture), "--teacher", "code")
    run = tiny.train(tmp_path / "cached", config("cached", code={"source": "cache", "cache": cache}))
    assert steps_of(run) == steps_of(online) and weights_of(run) == weights_of(online)


@pytest.mark.parametrize("held_out", ["both", "math"])
def test_too_much_dropped_mass_of_one_teacher_is_named(tmp_path, folders, config, held_out):
    """Whichever comes first in the data, and on the documents to train on where it has none that are held out."""
    for code in ("moved", "code"):
        limited = {"path": folders[code], "max_dropped_mass": 1e-9}
        settings = config(f"{code}-refused", code=limited, held_out=held_out)
        path = tiny.write_config(tmp_path / code, settings)
        said = tiny.distill("--config", path, code=tiny.BAD_INPUT).stderr
        assert "teachers: code: teacher.max_dropped_mass: expected at most 1e-09, found" in said
        assert re.search(
            r"the teacher code's mean probability of its 1 tokens that have no part in the loss: \S+", said
        )
        assert not (Path(settings["run"]["dir"]) / "metrics.jsonl").exists()


def test_a_token_that_one_teacher_lacks(tmp_path, folders, config):
    """No document may have it, of whichever teacher; or all documents end at it."""
    said = tiny.distill(
        "--config", tiny.write_config(tmp_path, config("refused", train="own")), code=tiny.BAD_INPUT
    ).stderr
    assert f'id {BASE} ("<own>"): expected a token of both tokenizers, found one that student or teacher lacks' in said
    mask = {"path": folders["moved"], "missing_tokens": "mask"}
    run = tiny.train(tmp_path / "masked", config("masked", code=mask, train="own"))
    assert re.search(
        r"data.train: \d+ of these documents have a token that the teacher lacks", (run / "log.txt").read_text()
    )
    assert all(step["loss"] > 0 for step in tiny.read_metrics(run)[0])


@pytest.mark.parametrize("whole", [[], ["lm_head", "embed_tokens", "norm"]])
def test_a_teacher_with_an_adapter_and_other_ids(tmp_path, folders, shards, whole):
    """Against its merged model, which has these ids too; an adapter of matrices alone also against the teacher with the
    student's ids, bit for bit."""
    adapter = adapters.peft_folder(tmp_path / "adapter", folders["moved"], modules_to_save=whole or None)
    merged = adapters.load_peft(folders["moved"], adapter).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    vocabularies.give_tokenizer(tmp_path / "merged", MOVED)

    def run(name, teacher, student=None):
        train = {"steps": 4, "global_batch_size": 4, "deterministic": tiny.DEVICE == "cuda"}
        data = {"packing": "pack", "eval": [{"path": shards["both"]}]}
        out = tiny.base_config(
            tmp_path / name, folders["student"], "", shards["both"], data=data, train=train, eval={"every": 2}
        )
        out["teacher"] = teacher
        out["student"] = student or out["student"]
        return tiny.train(tmp_path / name, out)

    def losses(folder):
        steps, evaluations = tiny.read_metrics(folder)
        return [line["loss"] for line in steps] + [line["eval"]["teacher_dropped_mass"] for line in evaluations]

    adapted = {"path": folders["moved"], "adapter": adapter}
    found = run("adapted", adapted)
    assert losses(found) == pytest.approx(losses(run("merged-run", {"path": str(tmp_path / "merged")})), rel=1e-4)
    # A student with adapters in the folder of the same base, whose documents have the ids of another tokenizer.
    lora = {"path": folders["moved"], "tokenizer": folders["student"], "lora": {"rank": 4, "targets": "all-linear"}}
    copies = [run(f"own-{name}", teacher, lora) for name, teacher in (
        ("adapted", adapted), ("merged", {"path": str(tmp_path / "merged")}))]  # fmt: skip
    assert losses(copies[0]) == pytest.approx(losses(copies[1]), rel=1e-4)
    assert "one copy" not in (copies[0] / "log.txt").read_text()
    if not whole:
        same = Path(shutil.copytree(adapter, tmp_path / "same"))
        change_keys(same / "adapter_config.json", base_model_name_or_path=folders["code"])
        equal = run("equal", {"path": folders["code"], "adapter": str(same)})
        assert without_mass(steps_of(found)) == without_mass(steps_of(equal)) and weights_of(found) == weights_of(equal)
    else:
        assert "lm_head" in " ".join(load_file(Path(adapter) / "adapter_model.safetensors"))


def test_rounds_are_judged_by_the_limit_of_their_own_teacher(tmp_path, folders):
    """Where there is no text: of a round's first sequences, whose teacher here is the one with other ids."""
    random = np.random.default_rng(11)
    documents = [(tokens, np.arange(len(tokens)) >= 4) for tokens, _ in documents_of(4, count=40)]
    documents = [(tokens[:8], in_loss[:8]) for tokens, in_loss in documents]
    names = ["code" if random.random() < 0.9 else "math" for _ in documents]
    prompts = named_shard(tmp_path / "prompts.dtok", folders["student"], documents, names)
    build = onpolicy_runs.config_in(tmp_path, {"llama": (folders["student"], folders["math"])}, prompts)

    def settings(name, **code):
        out = build(name, onpolicy_runs.command("--vocab", BASE))
        del out["teacher"]
        out["teachers"] = [{"name": "math", "path": folders["math"]}, {"name": "code", "path": folders["moved"]} | code]
        return out

    tiny.train(tmp_path / "open", settings("open", max_dropped_mass=1))
    path = tiny.write_config(tmp_path / "limited", settings("limited", max_dropped_mass=1e-9))
    said = tiny.distill("--config", path, code=tiny.BAD_INPUT).stderr
    assert "teachers: code: teacher.max_dropped_mass: expected at most 1e-09, found" in said
