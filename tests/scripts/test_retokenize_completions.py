"""scripts/retokenize_completions.py: the teacher's tokens of what a student has written."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))

from tokenizer_folders import byte_level, sentence_piece

from rollout.teacher_tokens import Retokenizer, Unusable

TEXTS = [
    "The ranks wait for each other: 12 of them, and a folder.",
    " and then\n\n  it ends",
    "naïve 🙂🙂 wörlds — of ranks",
    "",
    "a literal <|turn|> in the text, and <|end|>",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    return {
        "small": byte_level(folder / "small", 300, ["<|end|>", "<|begin|>", "<|mine|>"]),
        "large": byte_level(folder / "large", 600, ["<|end|>", "<|begin|>", "<|turn|>"]),
        "llama": sentence_piece(folder / "llama", 400),
        "lower": byte_level(folder / "lower", 320, normalizer=normalizers.Lowercase()),
    }


def tokenizer_of(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def ids_of(tokenizer, text):
    tokenizer.encode_special_tokens = True
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("student, teacher", [("small", "large"), ("large", "small"), ("llama", "large")])
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_after_a_prompt_has_the_tokens_of_both_in_one_text(folders, student, teacher, text):
    """As tokenize.py writes a prompt and its completion; the end of the text is that of the teacher."""
    own, its = tokenizer_of(folders[student]), tokenizer_of(folders[teacher])
    prompt, end = "What is a rank?\n", {"llama": "</s>"}.get(student, "<|end|>")
    given = ids_of(its, prompt)
    whole = ids_of(its, prompt + text)
    expected = whole[len(given) :] if whole[: len(given)] == given else ids_of(its, text)
    pairs = [("</s>", "<|end|>")] if student == "llama" else []
    whole = ids_of(own, prompt + text)
    completion = [*whole[len(ids_of(own, prompt)) :], own.token_to_id(end)]
    made = Retokenizer(folders[student], folders[teacher], pairs)(completion)
    assert made.tokens == len(completion)
    assert made.ids == [*expected, its.token_to_id("<|end|>")]


def test_a_tokenizer_that_puts_a_space_before_a_text_puts_none_within_one(folders):
    its = tokenizer_of(folders["llama"])
    retokenizer = Retokenizer(folders["large"], folders["llama"], [("<|end|>", "</s>")])
    completion = ids_of(tokenizer_of(folders["large"]), "ranks wait")
    ids = retokenizer([*completion, 0, *completion]).ids
    end = its.token_to_id("</s>")
    assert [retokenizer.its.text(np.array(part)) for part in (ids[: ids.index(end)], ids[ids.index(end) + 1 :])] == [
        b"ranks wait",
        b"ranks wait",
    ]


@pytest.mark.parametrize("teacher", ["large", "llama"])
def test_any_tokens_keep_their_bytes(folders, teacher):
    """Tokens at random: most of their texts are no UTF-8. Special tokens are in the same places."""
    retokenizer = Retokenizer(
        folders["small"], folders[teacher], [("<|end|>", {"llama": "</s>"}.get(teacher, "<|end|>"))]
    )
    own, its = retokenizer.own, retokenizer.its
    random, left_off = np.random.default_rng(3), 0

    def texts(known, ids):
        """Texts between the special tokens."""
        out = [b""]
        for one in ids:
            if one in known.special:
                out.append(b"")
            else:
                out[-1] += known.bytes[one]
        return out

    for _ in range(300):
        completion = random.integers(3, len(own.bytes), random.integers(1, 12)).tolist()
        completion[random.integers(len(completion))] = 0 if random.random() < 0.3 else completion[0]
        made = retokenizer(completion)
        kept = completion[: made.tokens]
        assert texts(its, made.ids) == texts(own, kept)
        left_off += len(completion) - made.tokens
        if made.tokens < len(completion):
            whole = b"".join(own.bytes_of(one) for one in completion[made.tokens :])
            assert 0 not in completion[made.tokens :] and whole.decode(errors="ignore") != whole.decode(
                errors="replace"
            )
    assert left_off > 20


def test_a_character_that_is_cut_off_is_left_out(folders):
    own, its = tokenizer_of(folders["small"]), tokenizer_of(folders["large"])
    retokenizer = Retokenizer(folders["small"], folders["large"], [])
    ids = ids_of(own, "so 🙂")
    parts = ids_of(own, "so ")
    assert len(ids) - len(parts) == 4  # a token for each byte
    for count in range(1, 4):
        made = retokenizer(ids[: len(parts) + count])
        assert made.tokens == len(parts) and made.ids == ids_of(its, "so ")
    ended = [*ids[:-1], own.token_to_id("<|end|>")]  # the student has ended it there
    assert retokenizer(ended).tokens == len(ended)


def test_special_tokens_without_a_partner_have_no_place_in_the_teachers_text(folders):
    own, its = tokenizer_of(folders["small"]), tokenizer_of(folders["large"])
    completion = [*ids_of(own, "one"), own.token_to_id("<|mine|>"), *ids_of(own, "two"), own.token_to_id("<|end|>")]
    alone = [*ids_of(its, "one"), *ids_of(its, "two"), its.token_to_id("<|end|>")]
    assert Retokenizer(folders["small"], folders["large"], [])(completion).ids == alone
    paired = Retokenizer(folders["small"], folders["large"], [("<|mine|>", "<|turn|>"), ("<|end|>", "<|begin|>")])
    between = [its.token_to_id("<|turn|>"), *ids_of(its, "two"), its.token_to_id("<|begin|>")]
    assert paired(completion).ids == [*ids_of(its, "one"), *between]


def test_a_text_that_the_teachers_tokenizer_changes_is_unusable(folders):
    retokenizer = Retokenizer(folders["small"], folders["lower"], [])
    with pytest.raises(Unusable, match="changes the text: 'Upper'"):
        retokenizer(ids_of(tokenizer_of(folders["small"]), "Upper"))


def test_the_command_answers_each_line(tmp_path, folders, script):
    own = tokenizer_of(folders["small"])
    lines = [
        {
            "id": index,
            "student_tokenizer": str(folders["small"] / "tokenizer.json"),
            "teacher_tokenizer": str(folders[teacher] / "tokenizer.json"),
            "token_pairs": [],
            "completion_ids": ids_of(own, "Some text"),
        }
        for index, teacher in ((3, "large"), (1, "lower"))
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    arguments = ("--completions", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
    assert "2 completions in the teacher's tokens" in script("retokenize_completions.py", *arguments)
    good, bad = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert good == {
        "id": 3,
        "tokens": len(lines[0]["completion_ids"]),
        "teacher_ids": ids_of(tokenizer_of(folders["large"]), "Some text"),
    }
    assert bad["id"] == 1 and "changes the text" in bad["error"]
    lines[0]["teacher_tokenizer"] = str(tmp_path / "none" / "tokenizer.json")
    (tmp_path / "in.jsonl").write_text(json.dumps(lines[0]) + "\n")
    assert "none/tokenizer.json: no such file" in script("retokenize_completions.py", *arguments, code=1)
