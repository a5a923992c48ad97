"""Which tokens of a conversation have loss: templates' marks, templates without marks, and what is refused."""

import chat_shapes
import pytest
import tokenizers
from chat_reference import (
    KNOWN,
    TOKENIZER,
    arguments,
    by_transformers,
    encoder,
    in_loss,
    reference,
    samples,
    text,
    unknown,
)
from chat_shapes import SHAPES, STOCK, SYSTEM, TWO_TURNS, answer, assistant, call, shape, user

from token_shards.chat import ChatEncoder, ChatOptions
from token_shards.errors import BadDocument, InputError


@pytest.mark.parametrize("name", KNOWN)
def test_finding_the_turns_in_the_rendering_agrees_with_the_marks(name):
    """Two ways that have nothing in common but the renderer."""
    by_marks, found = encoder(name), encoder(name, unknown(STOCK[name]))
    assert "finding the assistant's texts" in found.description
    agreed = 0
    for key in SHAPES:
        if (name, key) in TWO_TURNS:
            continue
        try:
            [(ids, mask)] = samples(found, *shape(key))
        except BadDocument:
            continue  # refusing is sound; how often is checked below
        [expected] = samples(by_marks, *shape(key))
        assert list(ids) == list(expected[0]) and in_loss((ids, mask)) == in_loss(expected), key
        agreed += 1
    refused = sum(by_transformers(reference(name), *shape(key), form=name) is None for key in SHAPES)
    assert agreed >= len(SHAPES) - refused - 5


def test_the_empty_think_block_has_loss_only_where_no_generation_prompt_writes_it():
    chat = [user("a"), assistant("b"), user("c"), assistant("d")]
    block = "<think>\n\n</think>\n\n"
    for template in (None, unknown(STOCK["qwen3"])):
        for thinking, mask, last in (
            (None, True, ""),
            (None, False, block),
            (False, True, ""),
            (False, False, ""),
            (True, True, block),
            (True, False, block),
        ):
            args = arguments() if thinking is None else arguments(enable_thinking=thinking)
            ours = encoder("qwen3", template, template_args=args, mask_generation_prompt=mask)
            [sample] = samples(ours, chat)
            assert block in text(sample[0])
            assert in_loss(sample) == ["b<|im_end|>", last + "d<|im_end|>"], (template, thinking, mask)
    # SmolLM3 without thinking: every turn and the generation prompt have the block.
    for system in ([], [{"role": "system", "content": "Be short. /no_think"}]):
        args = arguments() if system else arguments(enable_thinking=False)
        for template in (None, unknown(STOCK["smollm3_unsloth"])):
            [sample] = samples(
                encoder("smollm3", template or STOCK["smollm3_unsloth"], template_args=args), system + chat
            )
            assert text(sample[0]).count("<think>\n\n</think>\n") == 2
            assert in_loss(sample) == ["b<|im_end|>", "d<|im_end|>"]


def wide_marks():
    """As the template that SmolLM3's authors ship: its marks hold the header and the empty think block."""
    turn = '        {%- if reasoning_mode == "/think" -%}\n            {{ "<|im_start|>assistant\\n" + content'
    end = '        {%- endif -%}\n    {%- elif message.role == "tool" -%}'
    template = STOCK["smollm3_unsloth"]
    assert template.count(turn) == template.count(end) == 1
    template = template.replace(turn, "        {% generation %}\n" + turn)
    return template.replace(end, end.replace("\n", "\n        {% endgeneration %}\n"))


@pytest.mark.parametrize("thinking", [True, False])
def test_own_marks_lose_the_generation_prompt_or_are_those_of_transformers(thinking):
    chat = [SYSTEM, user("a"), assistant("b"), user("c"), assistant("d")]
    args = arguments(enable_thinking=thinking)
    template = wide_marks()
    ours = encoder("smollm3", template, template_args=args)
    assert "its own {% generation %} marks" in ours.description
    assert in_loss(samples(ours, chat)[0]) == ["b<|im_end|>", "d<|im_end|>"]
    [(ids, mask)] = samples(encoder("smollm3", template, template_args=args, mask_generation_prompt=False), chat)
    wrapped = reference("smollm3", template)
    expected = by_transformers(wrapped, chat, None, return_assistant_tokens_mask=True, enable_thinking=thinking)
    assert (list(ids), list(mask.astype(int))) == expected
    assert in_loss((ids, mask))[0].startswith("<|im_start|>assistant\n")


def test_turns_are_told_apart_where_a_turn_has_several_marked_parts():
    parts = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% if m.thinking %}"
        "{% generation %}<think>{{ m.thinking }}</think>{% endgeneration %}{{ '\n' }}{% endif %}{% generation %}"
        "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
    )
    chat = [user("a"), assistant("b", thinking="B"), user("c"), assistant("d", thinking="D")]
    expected = ["<think>B</think>", "b<|im_end|>", "<think>D</think>", "d<|im_end|>"]
    assert in_loss(samples(encoder("x", parts), chat)[0]) == expected
    assert in_loss(samples(encoder("x", parts, turns="last"), chat)[0]) == expected[2:]


def test_template_arguments_reach_the_template_and_unknown_ones_are_named():
    [sample] = samples(
        encoder("llama3_1", template_args=arguments(date_string="1 May 2025")), [user("a"), assistant("b")]
    )
    assert "Today Date: 1 May 2025\n" in text(sample[0])
    with pytest.raises(InputError, match="--template-arg enable_thinking: the chat template has no variable"):
        encoder("llama3_1", template_args=arguments(enable_thinking=False))
    with pytest.raises(InputError, match="--template-arg: the tokenizer's folder has no chat template"):
        ChatEncoder(None, {}, TOKENIZER, ChatOptions(template_args=arguments(a=1)))


REFUSED = [
    ("gemma", [SYSTEM, user("a"), assistant("b")], "System role not supported", "refuses"),
    ("mistral_v0_2", [assistant("a"), user("b"), assistant("c")], "must alternate", "refuses"),
    ("undefined", [user("a"), assistant("b")], "no attribute", "fails on"),
    ("smollm3_unsloth", [user("a"), {"role": "user_context", "content": "b"}, assistant("c")], "role user_co", "role"),
    ("qwen3", [{"role": "critic", "content": "a"}, user("b"), assistant("c")], "role critic", "role"),
    ("llama3_1", [user("a"), assistant("", tool_calls=[call("a"), call("b")])], "single tool-calls", "refuses"),
    ("mistral_nemo", [user("a"), assistant("", tool_calls=[call("a", "short")])], "length 9", "refuses"),
    ("qwen3", [user("a"), assistant("\ud800")], "lone surrogate", "surrogate"),
    ("chatml", [user("\ufdd0"), assistant("a")], "noncharacter", "noncharacters"),
    ("no answers", [user("a"), assistant("b")], "not in the rendering", "not in the rendering"),
    ("chatml", [user("a"), assistant("b"), answer("c"), {"role": "critic", "content": 3}], "text", "not text"),
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize("name, messages, message, reason", REFUSED, ids=[row[2] for row in REFUSED])
def test_a_conversation_that_the_template_refuses_is_a_bad_document(name, messages, message, reason):
    own = {"chatml": CHATML, "undefined": CHATML + "{{ messages[1].a.b }}"}
    own["no answers"] = CHATML.replace("in messages", "in messages if m.role != 'assistant'")
    with pytest.raises(BadDocument) as error:
        samples(encoder(name, own.get(name)), messages)
    assert message in str(error.value) and str(error.value).startswith("x:1") and reason in error.value.reason


def test_templates_that_are_no_templates_and_missing_ones_say_what_to_do():
    with pytest.raises(InputError, match="chat template, line 2: not a Jinja template"):
        encoder("x", "{% for m in messages %}\n{% endif %}")
    with pytest.raises(InputError, match="need a chat template.*--chat-template FILE") as error:
        samples(ChatEncoder(None, {}, TOKENIZER, ChatOptions()), [user("a"), assistant("b")])
    assert not isinstance(error.value, BadDocument)  # it is the same for every conversation
    assert ChatEncoder(None, {}, TOKENIZER, ChatOptions()).description is None


def test_a_template_without_an_end_of_turn_is_reported():
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if not loop.last %}\n{% endif %}{% endfor %}"
    ours = encoder("x", plain + "{% if add_generation_prompt %}\nassistant: {% endif %}")
    assert "writes no end of a turn" in ours.description
    chat = [user("a"), assistant("b"), user("c"), assistant("d")]
    assert in_loss(samples(ours, chat)[0]) == [
        " b",
        " d",
    ]  # a token that reaches over the beginning, as in transformers
    assert "writes no end" not in encoder("x", CHATML).description


def test_a_template_that_writes_the_date_is_reported():
    dated = "{{ strftime_now('%d %b %Y') if date_string is not defined else date_string }}" + CHATML
    assert encoder("x", dated).description.endswith("in the rendering; it writes the date of today")
    assert "date" not in encoder("x", dated, template_args=arguments(date_string="1 May 2025")).description
    assert "date" not in encoder("x", CHATML).description


def test_messages_that_a_template_leaves_out_are_named():
    ours = encoder("x", CHATML.replace("in messages", "in messages if m.name != 'hidden'"))
    chat = [user("a"), assistant("b"), {**user("c"), "name": "hidden"}, user("d"), assistant("e")]
    [sample] = samples(ours, chat)
    assert in_loss(sample) == ["b<|im_end|>", "e<|im_end|>"] and ours.left_out == {"content of the role user"}
    samples(ours, chat[:2])
    assert ours.left_out == set()


def test_a_turn_with_another_message_within_is_refused():
    within = CHATML.replace("in messages", "in messages if m.role == 'assistant'").replace(
        "{{ m.content }}", "{{ m.thinking }}{{ messages[0].content if loop.first }}{{ m.content }}"
    )
    with pytest.raises(BadDocument, match=r"messages\[1\]: the chat template writes another message within this turn"):
        samples(encoder("x", within), [user("a"), assistant("b", thinking="c")])


def test_white_space_alone_is_an_answer():
    [sample] = samples(encoder("x", CHATML), [user("a"), assistant(" "), user("c"), assistant("\t")])
    assert in_loss(sample) == [" <|im_end|>", "\t<|im_end|>"]
    [sample] = samples(encoder("x", CHATML.replace("m.content", "m.content | trim")), [user("a"), assistant(" ")])
    assert in_loss(sample) == ["<|im_end|>"]


def test_what_a_template_writes_of_a_turn_after_its_text_has_loss():
    template = CHATML.replace("{{ m.content }}", "{{ m.content }}{% if m.source %} [{{ m.source }}]{% endif %}")
    [sample] = samples(encoder("x", template), [user("a"), assistant("b", source="c"), user("d"), assistant("e")])
    assert in_loss(sample) == ["b [c]<|im_end|>", "e<|im_end|>"]


# Another end after the last turn, as in Phi 3 and gpt-oss; and no generation prompt, as in Mistral's.
@pytest.mark.parametrize(
    "template, expected",
    [
        (CHATML + "{{ eos_token }}", ["b<|im_end|>", "d<|im_end|>"]),
        (
            CHATML.replace("<|im_end|>\n", "{{ '</s>' if loop.last else '<|eot_id|>' }}\n"),
            ["b<|eot_id|>", "d</s>"],
        ),
        (
            "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
            "<think>{{ m.content }}</s>{% endif %}{% endfor %}",
            ["<think>b</s>", "<think>d</s>"],
        ),
    ],
)
def test_ends_and_beginnings_of_turns_of_unknown_templates(template, expected):
    [sample] = samples(encoder("x", template), [user("a"), assistant("b"), user("c"), assistant("d")])
    assert in_loss(sample) == expected


def test_characters_that_have_no_token_or_several_stand_at_the_ends_of_the_loss():
    tokenizer = chat_shapes.make_tokenizer()
    tokenizer.normalizer = tokenizers.normalizers.Replace("~", "")
    template = (
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}"
    )
    ours = ChatEncoder(template, {}, tokenizer, ChatOptions(mask_generation_prompt=False))
    for content, expected in (("~hello~", "hello"), ("🙂a日", "🙂a日"), ("~🙂", "🙂"), ("日~", "日")):
        assert in_loss(samples(ours, [user("a"), assistant(content)])[0]) == [expected], content


def test_a_template_that_does_more_than_to_copy_the_texts_is_refused():
    """Its rendering with sentinels is another one, so that they would tell a wrong place."""
    chat = [user("a"), assistant("hello there")]
    for change in ("m.content | length", "m.content[:4]", "m.content ~ (m.content | length)", "m.content | reverse"):
        with pytest.raises(BadDocument, match="does more with the texts than to copy them|not in the rendering"):
            samples(encoder("x", CHATML.replace("m.content", change)), chat)
    pictures = (
        "{% for m in messages %}{% for p in m.content if p is mapping %}{{ p }}{% endfor %}<|im_end|>{% endfor %}"
    )
    assert encoder("x", pictures).turn_ends == []


def test_a_text_that_the_template_repeats_later_does_not_belong_to_the_turn():
    """gpt-oss's template heads a tool's answer with the name in the call before."""
    template = (
        "{% set called = namespace(name='') %}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}"
        "{% set called.name = m.tool_calls[0].function.name %}<tool_call>{{ called.name }}"
        "{{ m.tool_calls[0].function.arguments | tojson }}</tool_call>{% elif m.role == 'tool' %}{{ called.name }} "
        "said {{ m.content }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    [sample] = samples(encoder("x", template), *shape("tools"))
    assert in_loss(sample) == ['<tool_call>weather{"city": "Paris"}</tool_call><|im_end|>', "It is sunny.<|im_end|>"]
