"""Rounds of teachers with several tokenizers, each of which judges its own prompts."""

import re
import shutil

import numpy as np
import pytest

import other_tokenizers
import tiny
from aligned_rounds import LOGPROBS, config_in, tokenizer_of
from onpolicy_runs import TRANSFORMERS, completions, judged, round_folder
from run_results import losses_of, weights_of


@pytest.fixture
def three_teachers(tmp_path, aligned_pair, aligned_prompts, questions):
    """config(name, engine, **sections): two teachers with tokenizers of their own, and one with the student's that has
    its own prompts."""
    config, pair = config_in(tmp_path, aligned_pair, aligned_prompts), aligned_pair
    third = other_tokenizers.make_tokenizer(
        tmp_path / "third", [(tiny.REPOSITORY / "docs" / "ranks.md").read_text()], 380, ["<|end|>", "<|x|>"]
    )
    other_tokenizers.with_model(third, "llama", 4, hidden=64)
    same = other_tokenizers.copy_of(pair[0], tmp_path / "same")
    other_tokenizers.with_model(same, "llama", 5, hidden=64)
    records = [{"prompt": question, "completion": "x"} for question in questions]
    shards = {
        name: other_tokenizers.tokenize(pair[0], teacher, part, tmp_path / f"{name}-prompts", "--prompts")[0]
        for name, teacher, part in (("other", pair[1], records[::3]), ("third", third, records[1::3]))
    }
    own = [one | {"teacher_prompt": "Say no: " + one["prompt"]} for one in records[2::3]]
    shards["same"] = other_tokenizers.tokenize(pair[0], None, own, tmp_path / "same-prompts", "--prompts")[0]

    def build(name, engine=None, **sections):
        settings = config(name, engine, **sections)
        settings["train"]["micro_batch_size"] = 1
        settings["onpolicy"]["completions"] = 12
        by_bytes = {"alignment": "bytes"}
        settings["teachers"] = [
            {"name": "other", "path": settings.pop("teacher")["path"]} | by_bytes,
            {"name": "same", "path": str(same)},
            {"name": "third", "path": str(third)} | by_bytes,
        ]
        weights = {"other": 1, "same": 1, "third": 3}  # the first sequences are of the last shard
        settings["onpolicy"]["prompts"] = [
            {"path": path, "teacher": name, "weight": weights[name]} for name, path in shards.items()
        ]
        return settings

    return build


def test_teachers_with_several_tokenizers_have_a_shard_each(tmp_path, three_teachers, aligned_pair):
    run = tiny.train(tmp_path, three_teachers("run", TRANSFORMERS, onpolicy={"max_bad": 0.5}))
    for number in range(3):
        lines = completions(run, number)
        assert {line["teacher"] for line in lines} == {"other", "same", "third"}
        in_order = [[line for line in lines if line["teacher"] == name] for name in ("same", "other", "third")]
        for place, own in enumerate(in_order):
            shard = round_folder(run, number) / f"shard-{place:05d}.dtok"
            _, tokens, masks = other_tokenizers.shard_file.read(shard)
            its = other_tokenizers.shard_file.read_teacher(shard)
            for line, ids, mask, (its_ids, its_mask) in zip(own, tokens, masks, its, strict=True):
                assert ids[mask].tolist() == line["completion_ids"]
                assert its_ids[its_mask].tolist() == line.get("teacher_ids", line["completion_ids"])
                assert ("teacher_ids" in line) == (line["teacher"] != "same")
                if line["teacher"] == "same":
                    assert tokenizer_of(aligned_pair[0]).decode(its_ids[~its_mask].tolist()).startswith("Say no: ")
        in_order = [line for own in in_order for line in own]
        for one in judged(run, number)["completions"]:
            line = in_order[one["document"]]
            assert line["teacher"] == "third" and one["document"] > 4
            assert one["ids"] == line["completion_ids"]
            np.testing.assert_allclose(one["logprob"], line["logprobs"], atol=1e-3)
    log = (run / "log.txt").read_text()
    for own, engine in re.findall(LOGPROBS, log):
        assert float(own) == pytest.approx(float(engine), abs=1e-3)
    steps = tiny.read_metrics(run)[0]
    for name in ("other", "same", "third"):
        of_teacher = [step["teachers"][name] for step in steps if name in step["teachers"]]
        assert of_teacher and all(("boundary_share" in one) == (name != "same") for one in of_teacher)
    assert tiny.distill("verify", run).stdout.count("on-policy round, ") == 3


def test_rounds_of_several_shards_are_resumed_and_replayed(tmp_path, three_teachers):
    checkpoint = {"every": 1, "keep": 10}
    whole = tiny.train(tmp_path, three_teachers("whole", checkpoint=checkpoint))
    half = three_teachers("half", checkpoint=checkpoint, train={"steps": 6})
    run = tiny.train(tmp_path, half)
    tiny.distill("--config", tiny.write_config(tmp_path, half), "--resume-from", run / "checkpoints" / "step-3")
    assert losses_of(run) == losses_of(whole) and weights_of(run) == weights_of(whole)
    tiny.distill("replay", "--config", tmp_path / "config.yaml", "--step", 4)
    assert losses_of(run / "replay-4")[-1] == losses_of(whole)[3]
    second = round_folder(run, 1) / "shard-00001.dtok"
    shutil.copy(round_folder(run, 0) / "shard-00001.dtok", second)
    arguments = ("--resume-from", run / "checkpoints" / "step-3")
    error = tiny.distill("--config", tiny.write_config(tmp_path, half), *arguments, code=(1, 2)).stderr
    assert "expected the round in which the checkpoint was saved" in error
