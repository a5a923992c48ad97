"""The formats of records of scripts/tokenize.py, token by token against transformers or a plain expectation."""

import json
import re

import pyarrow
import pyarrow.parquet
import pytest
from conversion import convert, documents, masks, teachers
from tokenize_runs import CHAT, MARKED, ROOT, make_tokenizer, write_jsonl
from transformers import PreTrainedTokenizerFast

TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}]
# Uses everything that a record can have.
TEMPLATE = (
    "{% if tools %}<|im_start|>tools {{ tools | tojson }}<|im_end|>{% endif %}{% if loud %}LOUD {% endif %}"
    + MARKED.replace("{{ m.content }}<|im_end|>{% endgeneration %}",
                     "{{ m.content or '' }}{% if m.tool_calls %}{% for c in m.tool_calls %}<call>{{ c.function.name }}"
                     "{{ c.function.arguments | tojson }}{% endfor %}{% endif %}<|im_end|>{% endgeneration %}")
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats") / "model"
    make_tokenizer(folder, template=TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def reference(model):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(model / "tokenizer.json"), eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def rendered(reference, messages, **more):
    out = reference.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **more
    )
    return out["input_ids"], [bool(one) for one in out["assistant_masks"]]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


SYSTEM = message("system", "be brief")
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
CHATS = {
    "messages": ({"messages": CHAT}, CHAT, {}),
    "content parts": (
        {"messages": [message("user", [{"type": "text", "text": "hi "}, {"type": "text", "text": "you"}]),
                      message("assistant", [{"type": "text", "text": "fox"}])]},
        [message("user", "hi you"), message("assistant", "fox")],
        {},
    ),
    "tools and arguments": (
        {"messages": CHAT, "tools": TOOLS, "chat_template_kwargs": {"loud": True, "unknown": 1}},
        CHAT,
        {"tools": TOOLS, "loud": True},
    ),
    "tools as text": ({"messages": json.dumps(CHAT), "tools": json.dumps(TOOLS)}, CHAT, {"tools": TOOLS}),
    "tool calls": (
        {"messages": [CHAT[0], message("assistant", None, tool_calls=[CALL]), message("tool", "4"), CHAT[3]]},
        [CHAT[0], message("assistant", None, tool_calls=[CALL]), message("tool", "4"), CHAT[3]],
        {},
    ),
    "sharegpt": (
        {
            "conversations": [
                {"from": "human", "value": "add"},
                {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 2}}'},
                {"from": "observation", "value": "4"},
                {"from": "gpt", "value": "four"},
            ],
            "system": "be brief",
            "tools": json.dumps(TOOLS),
        },
        [SYSTEM, message("user", "add"), message("assistant", None, tool_calls=[CALL]), message("tool", "4"),
         message("assistant", "four")],
        {"tools": TOOLS},
    ),
    "conversation with roles": ({"conversation": CHAT}, CHAT, {}),
    "messages with from and value": (
        {"messages": [{"from": "human", "value": "the"}, {"from": "gpt", "value": "fox"}]},
        [message("user", "the"), message("assistant", "fox")],
        {},
    ),
    "alpaca": (
        {"instruction": "add", "input": "2 2", "output": "4", "text": "the whole", "system": "be brief",
         "history": [["hello", "you"]]},
        [SYSTEM, message("user", "hello"), message("assistant", "you"), message("user", "add\n2 2"),
         message("assistant", "4")],
        {},
    ),
    "alpaca without input": (
        {"instruction": "add", "input": "", "output": "4"}, [message("user", "add"), message("assistant", "4")], {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("container", ["jsonl", "parquet"])
def test_conversations_have_the_ids_and_the_mask_of_transformers(tmp_path, model, reference, name, container):
    record, messages, more = CHATS[name]
    if container == "jsonl":
        source = write_jsonl(tmp_path / "in.jsonl", [record])
    else:
        source = tmp_path / "in.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), source)
    said = convert(model, tmp_path / "out", source)
    ids, mask = rendered(reference, messages, **more)
    assert documents(tmp_path / "out") == [ids]
    assert masks(tmp_path / "out") == [mask] and any(mask) and not all(mask)
    assert "chat template: " in said


def test_prompt_and_completion_in_messages_have_a_loss_on_the_completion_only(tmp_path, model, reference):
    record = {"prompt": CHAT[:3], "completion": CHAT[3:]}
    convert(model, tmp_path / "out", write_jsonl(tmp_path / "in.jsonl", [record, {**record, "completion": CHAT[3]}]))
    ids, _ = rendered(reference, CHAT)
    prompt, _ = rendered(reference, CHAT[:3], add_generation_prompt=False)
    _, whole_mask = rendered(reference, CHAT)
    mask = [one and at >= len(prompt) for at, one in enumerate(whole_mask)]
    assert documents(tmp_path / "out") == [ids, ids] and masks(tmp_path / "out") == [mask, mask]


def test_prompt_and_completion_are_the_prompts_ids_and_then_the_completions(tmp_path, model, reference):
    """As TRL: prompt and completion tokenised as one text, the prompt's tokens without loss, eos at the end. Where a
    token reaches over the boundary, TRL warns; here the prompt keeps the ids that it has at inference."""
    pairs = [("the fox", " says hello"), ("hel", "lo"), ("the ", "fox"), ("", "fox"), ("fox", "<|im_end|>")]
    source = write_jsonl(tmp_path / "in.jsonl", [{"prompt": p, "completion": c} for p, c in pairs])
    convert(model, tmp_path / "out", source)

    def ids(text):
        return reference(text)["input_ids"]

    eos = reference.eos_token_id
    expected, mismatches = [], 0
    for prompt, completion in pairs:
        together = ids(prompt + completion)
        split = together[len(ids(prompt)) :]
        if together[: len(ids(prompt))] != ids(prompt):
            split, mismatches = ids(completion), mismatches + 1
        split += [] if split[-1] == eos else [eos]
        expected.append((ids(prompt) + split, [False] * len(ids(prompt)) + [True] * len(split)))
    assert mismatches == 2
    assert list(zip(documents(tmp_path / "out"), masks(tmp_path / "out"))) == expected
    convert(model, tmp_path / "all", source, "--loss-on", "all", "--no-eos")
    assert documents(tmp_path / "all")[0] == ids("the fox says hello")


def test_a_text_gets_no_second_begin_or_end_token(tmp_path):
    tokenizer = make_tokenizer(tmp_path / "model", bos=True)
    texts = ["<|bos|>fox<|im_end|>", "fox"]
    convert(tmp_path / "model", tmp_path / "out", write_jsonl(tmp_path / "in.jsonl", [{"text": t} for t in texts]))
    expected = tokenizer.encode("<|bos|>fox<|im_end|>", add_special_tokens=False).ids
    assert documents(tmp_path / "out") == [expected, expected]


IDS = [9, 8, 7, 6]
READY = [
    ({"input_ids": IDS}, IDS, [True] * 4),
    ({"tokens": IDS, "loss_mask": [0, 1, 0, 1]}, IDS, [False, True, False, True]),
    ({"input_ids": IDS, "assistant_masks": [False, False, True, True]}, IDS, [False, False, True, True]),
    ({"input_ids": IDS, "labels": [-100, -100, 7, -100]}, IDS, [False, False, True, False]),
    ({"input_ids": [0, *IDS, 0], "completion_mask": [0, 0, 0, 1, 1, 0], "attention_mask": [0, 1, 1, 1, 1, 0]},
     IDS, [False, False, True, True]),
]  # fmt: skip


def test_ids_with_a_mask_are_taken_as_they_are(tmp_path, model):
    for index, (record, _, _) in enumerate(READY):
        write_jsonl(tmp_path / f"{index}.jsonl", [record])
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([record]), tmp_path / f"{index}.parquet")
    files = [tmp_path / f"{index}.{kind}" for index in range(len(READY)) for kind in ("jsonl", "parquet")]
    convert(model, tmp_path / "out", *files)
    assert documents(tmp_path / "out") == [ids for _, ids, _ in READY for _ in range(2)]
    assert masks(tmp_path / "out") == [mask for _, _, mask in READY for _ in range(2)]


def test_the_teacher_reads_another_text_before_the_same_completion(tmp_path, model, reference):
    hint = [message("system", "the answer is no"), CHAT[2]]
    records = [
        {"prompt": "2+2=", "completion": " four", "teacher_prompt": "it is four. 2+2="},
        {"messages": CHAT, "teacher_messages": hint},
        {"prompt": CHAT[:3], "completion": CHAT[3:], "teacher_messages": hint},
        {"text": "the fox"},
    ]
    said = convert(model, tmp_path / "out", write_jsonl(tmp_path / "in.jsonl", records))
    ids, in_loss, theirs = documents(tmp_path / "out"), masks(tmp_path / "out"), teachers(tmp_path / "out")
    assert theirs[3] is None and "more that the teacher reads" in said
    expected = [
        reference("it is four. 2+2= four<|im_end|>")["input_ids"],
        *[rendered(reference, [*hint, CHAT[3]])[0]] * 2,
    ]
    for index, (tokens, mask) in enumerate(theirs[:3]):
        assert list(tokens) == expected[index]
        own = [one for one, has in zip(ids[index], in_loss[index]) if has]
        assert own == list(tokens[mask]) and own
        assert reference.decode(own) == (" four<|im_end|>" if index == 0 else "no<|im_end|>")
    # One sample a turn: each has its teacher's stream.
    convert(model, tmp_path / "each", tmp_path / "in.jsonl", "--turns", "each")
    assert [one is not None for one in teachers(tmp_path / "each")] == [True, True, True, False]


def test_a_teachers_template_argument_that_changes_the_completion_is_a_bad_document(tmp_path):
    changes = MARKED.replace("{% generation %}", "{% generation %}{% if messages[0].role == 'system' %}X{% endif %}")
    make_tokenizer(tmp_path / "model", template=changes)
    record = {"messages": CHAT[:2], "teacher_messages": [SYSTEM, CHAT[0]]}
    source = write_jsonl(tmp_path / "in.jsonl", [record, {"messages": CHAT}])
    said = convert(tmp_path / "model", tmp_path / "out", source)
    assert "1 the teacher's completion differs from the student's; the first: " in said
    assert re.search(
        r"in.jsonl:1: token 0 of the completion is id \d+ in the student's text \(token \d+\) and id", said
    )


def test_every_example_of_the_documentation_is_that_formats(tmp_path, model):
    from token_shards.record_formats import formats

    text = (ROOT / "docs" / "tokenize.md").read_text()
    for one in formats():
        assert f"| `{one.name}` | `{one.example}` |" in text, one.name
        source = tmp_path / f"{one.name}.jsonl"
        example = json.loads(one.example)
        if one.name == "ids":  # of a larger vocabulary than this one's
            example = {"input_ids": IDS, "labels": [-100, -100, *IDS[2:]]}
        write_jsonl(source, [example])
        said = convert(model, tmp_path / one.name, source)
        assert f"records: 1 {one.name}\n" in said
        convert(model, tmp_path / f"{one.name}-2", source, "--records", one.name)
        other = "text" if one.name != "text" else "messages"
        error = convert(model, tmp_path / "no", source, "--records", other, "--max-bad", 0, code=1)
        assert "(--records asks for this format)" in error
