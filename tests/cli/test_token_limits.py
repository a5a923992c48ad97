"""Added tokens beyond a model's rows, and those that one of two tokenizers has alone: what runs, and what is named."""

import json
import re

import numpy as np
import pytest

import tiny_job
from token_shards.shard_file import Shard, ShardSpec
from token_shards.tokenizer_files import TokenizerFiles

PAD = {"id": tiny_job.VOCAB, "content": "[PAD]", "special": True}
THINK = {"id": tiny_job.VOCAB + 1, "content": "<think>", "special": True}
CHECK = ("--config", "config.yaml", "--dry-run")


def flags(token):
    return {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, **token}


def write_tokenizer(folder, *added, beside=False):
    """tokenizer.json with these added tokens, or `beside` it in tokenizer_config.json."""
    described = tiny_job.tokenizer()
    if beside:
        decoder = {str(one["id"]): {k: v for k, v in flags(one).items() if k != "id"} for one in added}
        tiny_job.write_json(folder / "tokenizer_config.json", {"added_tokens_decoder": decoder})
    else:
        described["added_tokens"] = [flags(one) for one in added]
    tiny_job.write_json(folder / "tokenizer.json", described)


def write_data(path, tokenizer, *documents):
    """A shard with the hash and size of a folder's tokenizer; `documents` are lists of ids."""
    files = TokenizerFiles.load(tokenizer)
    shard = Shard(ShardSpec(vocab_size=files.vocab_size, tokenizer_hash=files.hash))
    for ids in documents:
        shard.add(np.asarray(ids, dtype=np.int64), None)
    path.unlink(missing_ok=True)
    shard.write(path)


PLAIN = list(range(1, 20))


def both_sets(job, tokenizer, *documents):
    for name in ("train/shard-00000.dtok", "eval.dtok"):
        write_data(job / name, tokenizer, *documents)


@pytest.mark.parametrize("beside", [False, True])
def test_a_token_without_a_row_does_not_matter_where_no_document_uses_it(distill, place, beside):
    for name in ("student", "teacher"):
        write_tokenizer(place / name, PAD, beside=beside)
    both_sets(place, place / "student", PLAIN, PLAIN[::-1])
    for command in (CHECK, ("--config", "config.yaml"), ("eval", "--config", "config.yaml")):
        done = distill(place, *command)
        assert done.returncode == 0, done.stderr
    done = distill(place, "capture", "--config", "config.yaml", "--set", "teacher.cache=cache")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command", [CHECK, ("--config", "config.yaml"), ("eval", "--config", "config.yaml"),
                ("capture", "--config", "config.yaml", "--set", "teacher.cache=cache"),
                ("eval", "--student", "student", "--data", "eval.dtok")],
)  # fmt: skip
def test_a_token_without_a_row_is_named_with_its_document(distill, place, command):
    for name in ("student", "teacher"):
        write_tokenizer(place / name, PAD, beside=True)
    both_sets(place, place / "student", PLAIN, [1, 2, PAD["id"], 3])
    done = distill(place, *command)
    assert done.returncode == 2, done.stdout
    says = (
        'eval.dtok: document 1, token 2: id 64 ("[PAD]"): expected an id below 64, the rows of the model\'s embeddings'
    )
    assert says in done.stderr and "resize_token_embeddings(65)" in done.stderr, done.stderr
    assert not (place / "run").exists() and not (place / "cache" / "manifest.json").exists()


def test_the_source_of_a_mixture_is_named(distill, place):
    for name in ("student", "teacher"):
        write_tokenizer(place / name, PAD)
    both_sets(place, place / "student", PLAIN)
    write_data(place / "more.dtok", place / "student", PLAIN, [PAD["id"], PAD["id"]])
    mixture = "data.train=[{path: train, weight: 2}, more.dtok]"
    done = distill(place, *CHECK, "--set", mixture)
    assert done.returncode == 2
    assert "more.dtok: document 1, token 0: id 64" in done.stderr and "the file has 2 tokens" in done.stderr
    assert "shard-00000.dtok: document" not in done.stderr


@pytest.mark.parametrize("has, lacks", [("teacher", "student"), ("student", "teacher")])
def test_tokens_that_one_tokenizer_adds_are_accepted_where_no_document_uses_them(distill, place, has, lacks):
    write_tokenizer(place / has, PAD, THINK)
    for tokenizer in ("student", "teacher"):
        both_sets(place, place / tokenizer, PLAIN, PLAIN[::-1])
        done = distill(place, "eval", "--config", "config.yaml")
        assert done.returncode == 0, done.stderr
        says = f'the tokenizer of the {has} has 2 tokens that the {lacks}\'s lacks: 64 ("[PAD]"), 65 ("<think>")'
        assert says in done.stderr + done.stdout
    both_sets(place, place / has, PLAIN, [5, THINK["id"], 5])
    done = distill(place, *CHECK)
    assert done.returncode == 2 and 'document 1, token 1: id 65 ("<think>")' in done.stderr


def test_a_token_of_the_teacher_alone_is_refused_although_both_models_have_rows(distill, place):
    """The student's embeddings are padded: there is a row, and its tokenizer has no such token."""
    for name, layers in (("student", 1), ("teacher", 2)):
        tiny_job.write_model(place / name, {**tiny_job.MODEL, "vocab_size": 80, "num_hidden_layers": layers})
    write_tokenizer(place / "teacher", PAD, THINK)
    both_sets(place, place / "teacher", PLAIN, PLAIN)
    assert distill(place, *CHECK).returncode == 0
    both_sets(place, place / "teacher", PLAIN, [5, THINK["id"], 5])
    done = distill(place, *CHECK)
    assert done.returncode == 2
    assert (
        'id 65 ("<think>"): expected a token of both tokenizers, found one that student or teacher lacks' in done.stderr
    )


@pytest.mark.parametrize("student_rows", [tiny_job.VOCAB, 80])
def test_the_teachers_mass_on_tokens_that_the_student_lacks_is_reported(distill, place, student_rows):
    """Of tokens beyond the student's rows, and of tokens within the rows of padded embeddings; rows without a token are
    no part of any distribution."""
    import torch
    from transformers import AutoModelForCausalLM

    tiny_job.write_model(place / "student", {**tiny_job.MODEL, "vocab_size": student_rows, "num_hidden_layers": 1})
    tiny_job.write_model(place / "teacher", {**tiny_job.MODEL, "vocab_size": 80}, seed=5)
    write_tokenizer(place / "student")
    write_tokenizer(place / "teacher", PAD, THINK)
    documents = [PLAIN[:15], PLAIN[::-1][:9], [3, 1, 4, 1, 5]]
    both_sets(place, place / "student", *documents)
    model = AutoModelForCausalLM.from_pretrained(place / "teacher", dtype=torch.float32)
    masses = []
    for ids in documents:
        logits = model(torch.tensor([ids])).logits[0, :-1].detach().double()
        known = [*range(tiny_job.VOCAB), PAD["id"], THINK["id"]]
        masses += logits[:, known].softmax(-1)[:, -2:].sum(-1).tolist()
    for command in (("eval", "--config", "config.yaml"), ("--config", "config.yaml", "--set", "eval.every=1")):
        done = distill(place, *command)
        assert done.returncode == 0, done.stderr
        found = re.search(
            r"probability of its 2 tokens that have no part in the loss: (\S+)", done.stderr + done.stdout
        )
        assert float(found[1]) == pytest.approx(sum(masses) / len(masses), rel=1e-3)


def test_an_id_with_another_token_is_a_token_of_each_side_alone(distill, place):
    for name, layers in (("student", 1), ("teacher", 2)):
        tiny_job.write_model(place / name, {**tiny_job.MODEL, "vocab_size": 80, "num_hidden_layers": layers})
    write_tokenizer(place / "teacher", PAD)
    write_tokenizer(place / "student", {**PAD, "content": "[OTHER]"})
    for tokenizer in ("student", "teacher"):
        both_sets(place, place / tokenizer, PLAIN, PLAIN)
        done = distill(place, *CHECK)
        assert done.returncode == 0, done.stderr
        assert 'that the student\'s lacks: 64 ("[PAD]")' in done.stderr
        assert 'that the teacher\'s lacks: 64 ("[OTHER]")' in done.stderr
        both_sets(place, place / tokenizer, PLAIN, [5, 64, 5])
        done = distill(place, *CHECK)
        assert done.returncode == 2 and "document 1, token 1: id 64" in done.stderr


def test_inspect_reads_the_tokens_beside_tokenizer_json(distill, place):
    write_tokenizer(place / "student", PAD, beside=True)
    write_data(place / "eval.dtok", place / "student", [1, PAD["id"], 2])
    done = distill(place, "inspect", "eval.dtok", "--tokenizer", "student")
    assert done.returncode == 0, done.stderr
    assert "[PAD]»" in done.stdout and "‹" not in done.stdout.rsplit("document 0", 1)[1]
    files = TokenizerFiles.load(place / "student")
    assert f"{files.hash.hex()} (BPE, 65 tokens)" in distill(place, "inspect", "student").stdout
    (place / "student/tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": []}))
    done = distill(place, *CHECK)
    assert done.returncode == 2 and "tokenizer_config.json: `added_tokens_decoder`: expected an object" in done.stderr
