"""Several teachers: each on its rows alone, in memory, metrics, caches, resumption and on ranks; bad input."""

import json
import re
import shutil
import sys

import numpy as np
import pytest

import tiny
from memory_plans import check_against_measured, profile
from run_results import files, state_files, timeless, weights_of

sys.path.append(str(tiny.REPOSITORY / "scripts"))

from token_shards.shard_file import Shard, ShardSpec

STILL = {"lr": 1e-20, "weight_decay": 0.0}  # steps that change no bit of the student
NUMBERS = ("loss", "hard", "soft", "teacher_ce", "forward_kl", "reverse_kl", "agreement", "valid_tokens")
CODE_LOSS = {"divergence": "forward_kl", "temperature": 2.0, "hard_weight": 0.25}


def named_shard(path, documents, names):
    shard = Shard(ShardSpec(tiny.VOCAB, bytes(32)))
    for (tokens, in_loss), name in zip(documents, names):
        shard.add(np.asarray(tokens, np.uint32), in_loss, None, name)
    shard.write(path)
    return str(path)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Three data sets: of math, of documents that name either teacher, of code; and the documents of the second by
    their teacher."""
    folder = tmp_path_factory.mktemp("sources")
    lengths = [5, 61, 17, 40, 2, 33, 90, 47] * 3
    # Every row has tokens with a target, by which its step names its teacher.
    documents = [
        [(tokens, np.ones(len(tokens), bool)) for tokens, _ in tiny.random_documents(seed, lengths)]
        for seed in (3, 4, 5)
    ]
    names = ["math" if index % 3 else "code" for index in range(len(lengths))]
    parts = {
        name: tiny.make_shard(folder / f"{name}.dtok", [d for d, own in zip(documents[1], names) if own == name])
        for name in ("math", "code")
    }
    return {
        "math": tiny.make_shard(folder / "a.dtok", documents[0]),
        "both": named_shard(folder / "b.dtok", documents[1], names),
        "code": tiny.make_shard(folder / "c.dtok", documents[2]),
        "parts": parts,
    }


@pytest.fixture(scope="module")
def teachers(models):
    """The teachers of the tests: of other sizes, families, and losses."""
    return {
        "math": {"path": models["llama"][1]},
        "code": {"path": models["qwen3"][1], "loss": CODE_LOSS},
    }


@pytest.fixture
def config(tmp_path, models, teachers, sources):
    def build(name="run", own=teachers, **sections):
        data = sections.pop("data", {})
        sections["train"] = {"deterministic": tiny.DEVICE == "cuda"} | sections.get("train", {})
        train = [
            {"path": sources["math"], "weight": 2, "teacher": "math"},
            sources["both"],
            {"path": sources["code"], "teacher": "code"},
        ]
        out = tiny.base_config(
            tmp_path / name, models["llama"][0], "", "", data={"train": train, "packing": "pack", **data}, **sections
        )
        del out["teacher"]
        out["teachers"] = [{"name": name, **keys} for name, keys in own.items()]
        return out

    return build


def alone(config, name, sources, folder):
    """The run of one of the teachers, on its rows."""
    out = json.loads(json.dumps(config))
    (own,) = [dict(one) for one in out.pop("teachers") if one["name"] == name]
    own.pop("name")
    out["loss"] |= own.pop("loss", {})
    if out["loss"]["divergence"] != "jsd":
        out["loss"].pop("beta", None)
    out["teacher"] = own
    weights = {
        one["teacher"]: one["weight"] for one in out["data"]["train"] if isinstance(one, dict) and "weight" in one
    }
    both = {"path": sources["parts"][name], "weight": share_of(sources, name)}
    mine = {"path": sources[name], "weight": weights.get(name, 1)}
    out["data"]["train"] = [mine, both] if name == "math" else [both, mine]
    out["data"].pop("teacher_sequences", None)
    out["run"]["dir"] = str(folder / "run")
    return out


def share_of(sources, name):
    """The share of a teacher's tokens in the data set that names both."""
    from token_shards import shard_file

    tokens = {one: sum(map(len, shard_file.read(path)[1])) for one, path in sources["parts"].items()}
    return tokens[name] / sum(tokens.values())


@pytest.mark.parametrize("packing, shuffle", [("pack", True), ("pack", False), ("concat", True)])
def test_each_row_loses_what_it_does_in_a_run_with_its_teacher_alone(tmp_path, config, sources, packing, shuffle):
    """Steps of one row each: their losses and gradients are those of the two runs, bit for bit."""
    train = {"steps": 40, "micro_batch_size": 1, "global_batch_size": 1}
    data = {"packing": packing, "shuffle": shuffle, "seed": 3}
    whole = config(train=train, data=data, optimizer=STILL)
    steps, _ = tiny.read_metrics(tiny.train(tmp_path / "run", whole))
    rows = {name: [step for step in steps if list(step["teachers"]) == [name]] for name in ("math", "code")}
    assert len(rows["math"]) + len(rows["code"]) == 40 and min(map(len, rows.values())) > 10
    for name, own in rows.items():
        single = alone(whole, name, sources, tmp_path / name)
        single["train"]["steps"] = len(own)
        expected, _ = tiny.read_metrics(tiny.train(tmp_path / name, single))
        for found, reference in zip(own, expected, strict=True):
            for number in (*NUMBERS, "grad_norm"):
                assert found[number] == reference[number], (name, found["step"], number)
            assert found["teachers"][name] == {key: reference[key] for key in found["teachers"][name]}


def test_metrics_are_by_teacher_and_add_up(tmp_path, config, sources):
    held_out = [{"path": sources["both"]}, {"path": sources["math"], "teacher": "math"}]
    sections = {"train": {"steps": 6}, "data": {"eval": held_out}, "eval": {"every": 3}}
    run = tiny.train(tmp_path / "run", config(**sections))
    steps, evaluations = tiny.read_metrics(run)
    for values in [*steps, *(one["eval"] for one in evaluations)]:
        own = values["teachers"].values()
        assert sum(one["valid_tokens"] for one in own) == values["valid_tokens"]
        for number in ("loss", "hard", "forward_kl"):
            mean = sum(one[number] * one["valid_tokens"] for one in own) / values["valid_tokens"]
            assert values[number] == pytest.approx(mean, rel=1e-6)
    assert all(len(one["eval"]["teachers"]) == 2 for one in evaluations) and len(evaluations) == 2
    # The whole evaluation, every document once: its numbers are those of the command, and of the teachers alone.
    config_of = config(**sections)
    report = tiny.evaluate(tmp_path, config_of, student_path=run / "model")
    assert report["teachers"] == evaluations[-1]["eval"]["teachers"]
    log = (run / "log.txt").read_text()
    assert re.search(r"eval after step 6 .*; math: loss .*, kl .*, \d+ tokens; code: loss", log)
    path = tiny.write_config(tmp_path / "one", config_of)
    command = ["eval", "--config", path, "--student", run / "model", "--json", "--teacher"]
    for name in ("math", "code"):
        single = json.loads(tiny.distill(*command, name).stdout)
        for number, value in report["teachers"][name].items():
            assert single[number] == pytest.approx(value, rel=1e-6), (name, number)


def test_a_limited_evaluation_reads_rows_of_each_teacher(tmp_path, config, sources):
    """In proportion to their rows, and one micro-batch at least; each teacher's are its first ones."""
    held_out = [
        {"path": sources["math"], "teacher": "math"},
        {"path": sources["code"], "teacher": {"math": 3, "code": 1}},
    ]
    sections = {"train": {"steps": 1}, "data": {"eval": held_out}, "scheduler": {"warmup_steps": 0}}
    whole = tiny.write_config(tmp_path / "whole", config(**sections))
    rows = {}
    for name in ("math", "code"):
        said = tiny.distill("eval", "--config", whole, "--teacher", name).stdout
        rows[name] = int(re.search(r"(\d+) sequences", said)[1])
    assert rows["math"] > 3 * rows["code"] > 9
    for batches in (1, 8):
        settings = config(eval={"batches": batches}, **sections)
        found = tiny.evaluate(tmp_path / "all", settings)["teachers"]
        path = tiny.write_config(tmp_path / "one", settings)
        for name in rows:
            own = max(1, int(batches * rows[name] / sum(rows.values()) + 0.5))
            command = ["eval", "--config", path, "--json", "--teacher", name, "--set", f"eval.batches={own}"]
            single = json.loads(tiny.distill(*command).stdout)
            assert found[name]["valid_tokens"] == single["valid_tokens"], (batches, name)
            assert found[name]["loss"] == pytest.approx(single["loss"], rel=1e-6)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_plan_is_exact(tmp_path, config, models, long_shard, processes):
    """A large teacher and a small one, with other vocabularies and losses; every token has a target."""
    own = {"math": {"path": models["llama"][1]}, "code": {"path": models["qwen3"][0], "loss": CODE_LOSS}}
    train = {"steps": 6, "micro_batch_size": 2, "global_batch_size": 4 * processes}
    dealt = [{"path": long_shard, "teacher": {"math": 3, "code": 2}}]  # every order comes
    sections = {"loss": {"memory_cap_mb": 1, "min_chunk_size": 16}, "scheduler": {"warmup_steps": 1}}
    for order in (["math", "code"], ["code", "math"]):
        wanted = config(
            own={name: own[name] for name in order},
            train=train,
            data={"seq_len": 256, "packing": "concat", "train": dealt},
            parallel={"processes": processes},
            **sections,
        )
        report = profile(tmp_path / order[0], wanted, "--steps", "6")
        check_against_measured(report, workspace_too=processes == 1)  # Gloo copies on threads of its own


def test_adapters_on_one_base_cost_adapters(tmp_path, config, models):
    """Two teachers on one base, which is the student's, too: the plan and the run have its weights once."""
    peft = pytest.importorskip("peft")
    from adapters import peft_folder

    base = models["llama"][0]
    adapters = {}
    for seed, name in enumerate(("math", "code")):
        adapters[name] = peft_folder(tmp_path / name, base, r=2 + 2 * seed)
    own = {name: {"path": base, "adapter": folder} for name, folder in adapters.items()}
    sections = {"train": {"steps": 4, "micro_batch_size": 2, "global_batch_size": 4}}
    sections["student"] = {"lora": {"rank": 4, "targets": "all-linear"}}
    one = profile(tmp_path / "one", config("one", own=own, **sections), "--steps", "4")
    check_against_measured(one)
    copy = shutil.copytree(base, tmp_path / "copy")
    apart = {"math": own["math"], "code": own["code"] | {"path": str(copy)}}
    two = profile(tmp_path / "two", config("two", own=apart, **sections), "--steps", "4")
    base_bytes = sum(t.numel() * 4 for t in tiny.load_weights(base).values())
    more = two["plan"]["phases"]["head"]["peak"] - one["plan"]["phases"]["head"]["peak"]
    assert more == pytest.approx(base_bytes, rel=0.02)
    plan = tiny.distill("plan", "--config", tiny.write_config(tmp_path / "one", config("one", own=own, **sections)))
    assert "one copy of the frozen weights for the student and the teacher math, the teacher code" in plan.stdout
    assert peft is not None


def test_a_cache_for_each_teacher(tmp_path, config, teachers):
    """Runs from two caches, of other kinds or of the same, and from one beside a teacher that runs."""
    online = config("online", train={"steps": 8}, optimizer=STILL)
    expected, _ = tiny.read_metrics(tiny.train(tmp_path / "online", online))
    path = tiny.write_config(tmp_path / "online", online)
    refused = tiny.distill("capture", "--config", path, code=tiny.BAD_INPUT).stderr
    assert (
        "--teacher: expected the name of one of the teachers of the configuration, math or code, found none" in refused
    )
    cached = {name: teachers[name] | {"cache": str(tmp_path / f"cache-{name}")} for name in teachers}
    to_capture = config("capture", own=cached, train={"steps": 8})
    path = tiny.write_config(tmp_path / "capture", to_capture)
    for name in cached:
        tiny.distill("capture", "--config", path, "--teacher", name)
    for own in (("math", "code"), ("code",)):
        read = {
            name: {**keys, "source": "cache"} if name in own else dict(teachers[name]) for name, keys in cached.items()
        }
        found, _ = tiny.read_metrics(
            tiny.train(tmp_path / "-".join(own), config("-".join(own), own=read, train={"steps": 8}, optimizer=STILL))
        )
        for step, reference in zip(found, expected, strict=True):
            assert step["teachers"] == reference["teachers"]
            assert step["grad_norm"] == reference["grad_norm"]
    # Another teacher's cache, or one of other rows.
    swapped = {name: {"cache": cached[name]["cache"], "source": "cache"} for name in cached}
    swapped["math"]["cache"], swapped["code"]["cache"] = swapped["code"]["cache"], swapped["math"]["cache"]
    swapped["code"]["loss"] = CODE_LOSS
    tiny.expect_refused(
        tmp_path / "swapped", config("swapped", own=swapped), ["teachers: math: data.train: ", "is not in the cache"]
    )


def test_two_halves_equal_the_whole_bit_for_bit(tmp_path, config, sources):
    """The second run loses what it did after step 4, as if it had been killed."""
    sections = {"checkpoint": {"every": 4}, "data": {"eval": [{"path": sources["both"]}]}, "eval": {"every": 4}}
    whole = tiny.train(tmp_path / "whole", config("whole", train={"steps": 8}, **sections))
    half = config("half", train={"steps": 8}, **sections)
    run = tiny.train(tmp_path / "half", half)
    shutil.rmtree(run / "checkpoints" / "step-8")
    shutil.rmtree(run / "model")
    tiny.train(tmp_path / "half", half, "--resume")
    assert files(run / "model") == files(whole / "model")
    assert state_files(run, 8) == state_files(whole, 8)
    for found, reference in zip(tiny.read_metrics(run), tiny.read_metrics(whole), strict=True):
        assert timeless(found) == timeless(reference)


@pytest.mark.parametrize("shard_teacher", [True, False])
def test_three_ranks_equal_one(tmp_path, config, shard_teacher, teachers):
    """With one number of sequences in a row that have one teacher; each teacher is sharded as it says."""
    own = {name: dict(keys) for name, keys in teachers.items()}
    own["code"]["parallel"] = {"shard_teacher": shard_teacher}
    train = {"steps": 6, "micro_batch_size": 2, "global_batch_size": 12}
    results = {}
    for processes in (1, tiny.RANKS):
        parallel = {"processes": processes, "debug_checks": processes > 1}
        name = f"ranks-{processes}"
        wanted = config(name, own=own, train=train, data={"teacher_sequences": 12}, parallel=parallel)
        results[processes] = tiny.train(tmp_path / name, wanted)
    (one, _), (several, _) = (tiny.read_metrics(run) for run in results.values())
    for step, reference in zip(several, one, strict=True):
        assert step["teachers"].keys() == reference["teachers"].keys()
        for name, values in step["teachers"].items():
            assert values["valid_tokens"] == reference["teachers"][name]["valid_tokens"]
            assert values["loss"] == pytest.approx(reference["teachers"][name]["loss"], rel=1e-4)
        assert step["grad_norm"] == pytest.approx(reference["grad_norm"], rel=1e-3)
    difference = tiny.relative_difference(*(tiny.load_weights(run / "model") for run in reversed(results.values())))
    assert difference < 2e-4
    # A run goes on with another number of ranks, since the number of sequences is in its configuration.
    wanted = config(f"ranks-{tiny.RANKS}", own=own, train=train | {"steps": 8}, data={"teacher_sequences": 12})
    tiny.train(tmp_path / f"ranks-{tiny.RANKS}", wanted, "--resume")
    wanted["data"]["teacher_sequences"] = 4
    wanted["train"]["steps"] = 9
    path = tiny.write_config(tmp_path / f"ranks-{tiny.RANKS}", wanted)
    assert "the data that it began with" in tiny.distill("--config", path, "--resume", code=tiny.BAD_INPUT).stderr


def test_replay_shows_each_samples_loss(tmp_path, config):
    run = tiny.train(tmp_path / "run", config(train={"steps": 5}, checkpoint={"every": 2, "keep": 5}))
    path = tmp_path / "run" / "config.yaml"
    said = tiny.distill("replay", "--config", path, "--step", "5").stdout
    losses = re.findall(r"sample \d+: loss ([\d.]+) over (\d+) tokens", said)
    step = tiny.read_metrics(run)[0][4]
    tokens = sum(int(count) for _, count in losses)
    assert tokens == step["valid_tokens"]
    assert sum(float(loss) * int(count) for loss, count in losses) / tokens == pytest.approx(step["loss"], rel=1e-4)


def test_one_name_in_a_list_is_a_run_with_one_teacher(tmp_path, models, sources, config):
    listed = config("listed", own={"math": {"path": models["llama"][1]}}, train={"steps": 4})
    listed["data"]["train"] = [{"path": sources["math"]}]
    plain = tiny.base_config(
        tmp_path / "plain", *models["llama"], sources["math"], data={"packing": "pack"}, train={"steps": 4}
    )
    runs = [tiny.train(tmp_path / name, one) for name, one in (("listed", listed), ("plain", plain))]
    assert weights_of(runs[0]) == weights_of(runs[1])


def without(config, *names):
    return config | {"teachers": [one for one in config["teachers"] if one["name"] not in names]}


def test_bad_input_is_named_before_anything_expensive(tmp_path, config, models, sources, teachers):
    good = config()
    third = {"name": "law", "path": models["llama"][1]}
    cases = {
        "a teacher that no row names": (
            good | {"teachers": [*good["teachers"], third]},
            ["teachers: expected documents of law, found none in"],
        ),
        "a row whose teacher is not there": (
            without(good | {"data": good["data"] | {"train": [sources["both"]]}}, "code")
            | {"teachers": [good["teachers"][0], third]},
            [
                f"{sources['both']}: document 0: expected the name of its teacher, one of math, law (teachers), "
                "found code",
            ],
        ),
        "a row without a teacher": (
            good | {"data": good["data"] | {"train": [sources["math"]]}},
            [
                f"{sources['math']}: document 0: expected the name of its teacher, one of math, code (teachers), "
                "found none",
            ],
        ),
        "a data set of another teacher": (
            good | {"data": good["data"] | {"train": [{"path": sources["math"], "teacher": "law"}]}},
            ["data.train: expected one of the teachers math, code", "teacher law"],
        ),
        "the same name twice": (
            good | {"teachers": [*good["teachers"], good["teachers"][0]]},
            ["teachers[2].name: expected another name than that of an earlier teacher, found math"],
        ),
        "both": (good | {"teacher": {"path": models["llama"][1]}}, ["teachers: expected either teacher or teachers"]),
        "a key that no teacher has": (
            good | {"teachers": [{"name": "math", "path": "x", "loss": {"chunk_size": 4}}]},
            ["teachers[0].loss.chunk_size: expected a key of a teacher"],
        ),
        "a value out of range": (
            good | {"teachers": [{"name": "math", "path": "x", "loss": {"temperature": -1}}]},
            ["teachers[0].loss.temperature: expected"],
        ),
        "no name": (good | {"teachers": [{"path": "x"}]}, ["teachers[0].name: expected the name"]),
        "a folder that is not there": (
            good | {"teachers": [good["teachers"][0], {"name": "code", "path": "missing"}]},
            ["teachers[1] (code) teacher.path: expected a Hugging Face folder, found nothing at missing"],
        ),
        "sequences that do not divide": (
            good | {"data": good["data"] | {"teacher_sequences": 3}},
            ["data.teacher_sequences: expected a multiple of train.micro_batch_size, 2, that divides"],
        ),
    }
    for name, (wrong, says) in cases.items():
        tiny.expect_refused(tmp_path / name.replace(" ", "-"), wrong, says)


def test_tokenizers_that_differ_are_named_with_the_teacher(tmp_path, config, models):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    folders = {}
    for name, folder in (("student", models["llama"][0]), ("math", models["llama"][1]), ("code", models["qwen3"][1])):
        folders[name] = shutil.copytree(folder, tmp_path / name)
        vocab = {f"w{index}": index for index in range(tiny.VOCAB)}
        if name == "code":
            vocab["x7"] = vocab.pop("w7")
        Tokenizer(WordLevel(vocab, unk_token="w0")).save(str(folders[name] / "tokenizer.json"))
    wrong = config(own={name: {"path": str(folders[name])} for name in ("math", "code")})
    wrong["student"]["path"] = str(folders["student"])
    tiny.expect_refused(tmp_path, wrong, ["teachers: code: ", "w7"])


def test_the_students_own_words_are_judged_by_their_prompts_teacher(tmp_path, models, teachers, sources):
    """Rounds beside data.train: completions have the teacher of their prompt, and a resumed run goes on alike."""
    import onpolicy_runs

    build = onpolicy_runs.config_in(tmp_path, models, sources["both"])

    def own(name):
        out = build(
            name,
            train={"steps": 8, "micro_batch_size": 1, "global_batch_size": 4},
            onpolicy={"fraction": 0.5, "every": 4},
            checkpoint={"every": 2, "keep": 9},
            data={"packing": "pack", "seq_len": 64},
        )
        del out["teacher"]
        out["teachers"] = [{"name": name, **keys} for name, keys in teachers.items()]
        out["data"]["train"] = [
            {"path": sources["math"], "teacher": "math"},
            {"path": sources["code"], "teacher": "code"},
        ]
        return out

    run = tiny.train(tmp_path / "whole", own("whole"))
    lines = onpolicy_runs.completions(run, 0)
    assert {line["teacher"] for line in lines} == {"math", "code"}
    (shard,) = onpolicy_runs.round_folder(run, 0).glob("*.dtok")
    from token_shards import shard_file

    assert shard_file.read_teacher_names(shard) == [line["teacher"] for line in lines]
    steps, _ = tiny.read_metrics(run)
    assert {name for step in steps for name in step["teachers"]} == {"math", "code"}
    half = own("half")
    again = tiny.train(tmp_path / "half", half)
    for step in (6, 8):
        shutil.rmtree(again / "checkpoints" / f"step-{step}")
    shutil.rmtree(again / "model")
    tiny.train(tmp_path / "half", half, "--resume")
    assert weights_of(again) == weights_of(run)
