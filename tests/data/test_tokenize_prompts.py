"""scripts/tokenize.py --prompts: what a model continues, without any loss."""

import pytest
from conversion import convert, documents, masks, teachers
from tokenize_runs import CHAT, MARKED, make_tokenizer, write_jsonl
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prompts") / "model"
    make_tokenizer(folder, template=MARKED)
    return folder


@pytest.fixture(scope="module")
def reference(model):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"), eos_token="<|im_end|>")
    tokenizer.chat_template = MARKED
    return tokenizer


def prompt_of(reference, messages):
    return reference.apply_chat_template(messages, tokenize=True, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]


def converted(tmp_path, model, *records):
    write_jsonl(tmp_path / "in.jsonl", records)
    convert(model, tmp_path / "out", "--prompts", tmp_path / "in.jsonl")
    assert not any(any(mask) for mask in masks(tmp_path / "out"))
    return [list(tokens) for tokens in documents(tmp_path / "out")]


USER, ANSWER = {"role": "user", "content": "the quick fox"}, {"role": "assistant", "content": "jumps"}


def test_a_conversation_ends_with_the_generation_prompt(tmp_path, model, reference):
    found = converted(tmp_path, model, {"messages": [USER]}, {"messages": [USER, ANSWER]},
                      {"messages": [USER, ANSWER, USER, ANSWER, ANSWER]}, {"messages": CHAT})  # fmt: skip
    whole = [[USER], [USER], [USER, ANSWER, USER], CHAT[:-1] if CHAT[-1]["role"] == "assistant" else CHAT]
    assert found == [prompt_of(reference, messages) for messages in whole]


def test_texts_pairs_and_ids(tmp_path, model, reference):
    ids = reference("the quick brown fox")["input_ids"]
    found = converted(
        tmp_path,
        model,
        {"text": "the quick brown fox"},
        {"prompt": "the quick brown fox", "completion": " jumps"},
        {"input_ids": ids + [ids[0]], "labels": [-100] * len(ids) + [ids[0]]},
        {"input_ids": ids},
    )
    assert found == [ids] * 4  # without an end-of-text token


def test_the_teacher_has_a_prompt_of_its_own(tmp_path, model, reference):
    system = {"role": "system", "content": "brown"}
    record = {"messages": [USER, ANSWER], "teacher_messages": [system, USER]}
    pair = {"prompt": "the fox", "completion": "jumps", "teacher_prompt": "the quick fox"}
    assert converted(tmp_path, model, record, pair)[0] == prompt_of(reference, [USER])
    first, second = teachers(tmp_path / "out")
    assert list(first[0]) == prompt_of(reference, [system, USER]) and not first[1].any()
    assert list(second[0]) == reference("the quick fox")["input_ids"] and not second[1].any()


def test_an_answer_without_a_question_is_a_bad_document(tmp_path, model):
    write_jsonl(tmp_path / "in.jsonl", [{"messages": [ANSWER]}, {"messages": [USER]}])
    said = convert(model, tmp_path / "out", "--prompts", "--max-bad", "1", tmp_path / "in.jsonl")
    assert "no prompt" in said and len(documents(tmp_path / "out")) == 1
