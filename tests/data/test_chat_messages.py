"""Messages, calls, results, tools and thinking of many interfaces, as the one shape that chat templates are tested
with; and what each template takes of it."""

import json

import pytest
from chat_forms import FORMS
from chat_reference import arguments, by_transformers, encoder, reference, samples, text
from chat_shapes import STOCK, SYSTEM, TOOLS, answer, assistant, call, shape, user

from token_shards.chat_messages import check_messages
from token_shards.errors import BadDocument

CITY = {"city": "Zürich", "days": [1, 2.5, None], "now": True}
WEATHER = {"name": "weather", "arguments": CITY}


def called(*functions, content=None, **more):
    calls = [{"type": "function", "function": one} for one in functions or (WEATHER,)]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}


def with_calls(*calls, content=None):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def with_arguments(value):
    return with_calls({"type": "function", "function": {"name": "weather", "arguments": value}})


EMPTY = called({"name": "weather", "arguments": {}})
RESULT = {"role": "tool", "content": "20"}
# what a record has: the messages of it
SPELLINGS = {
    "arguments: an object": (with_arguments(CITY), [called()]),
    "arguments: JSON text": (with_arguments(json.dumps(CITY)), [called()]),
    "arguments: JSON text with white space": (with_arguments(json.dumps(CITY, indent=1) + "\n"), [called()]),
    "arguments: JSON text of JSON text": (with_arguments(json.dumps(json.dumps(CITY))), [called()]),
    "arguments: empty text": (with_arguments(""), [EMPTY]),
    "arguments: white space": (with_arguments(" \n"), [EMPTY]),
    "arguments: null": (with_arguments(None), [EMPTY]),
    "arguments: text of null": (with_arguments("null"), [EMPTY]),
    "arguments: text of an empty object": (with_arguments("{}"), [EMPTY]),
    "arguments: text of an empty text": (with_arguments('""'), [EMPTY]),
    "arguments: not there": (with_calls({"type": "function", "function": {"name": "weather"}}), [EMPTY]),
    "parameters (Llama)": (with_calls({"function": {"name": "weather", "parameters": CITY}}), [called()]),
    "a flat call": (with_calls(WEATHER), [called()]),
    "args (LangChain)": (
        with_calls({"name": "weather", "args": CITY, "id": "a", "type": "tool_call"}),
        [with_calls({"id": "a", **called()["tool_calls"][0]})],
    ),
    "call_id (Responses)": (
        with_calls({"type": "function_call", "call_id": "a", "name": "weather", "arguments": json.dumps(CITY)}),
        [with_calls({"id": "a", **called()["tool_calls"][0]})],
    ),
    "a null id and an index": (with_calls({"index": 0, "id": None, "function": WEATHER}), [called()]),
    "tool_calls: JSON text": (
        {"role": "assistant", "content": "", "tool_calls": json.dumps([{"function": WEATHER}])},
        [called()],
    ),
    "tool_calls: a list of JSON texts": (with_calls(json.dumps({"function": WEATHER})), [called()]),
    "function: JSON text": (with_calls({"function": json.dumps(WEATHER)}), [called()]),
    "parallel calls": (
        with_calls({"function": WEATHER}, {"function": {**WEATHER, "arguments": "{}"}}),
        [called(WEATHER, {**WEATHER, "arguments": {}})],
    ),
    "a text beside the call": (with_calls({"function": WEATHER}, content="I look."), [called(content="I look.")]),
    "tool_calls: an empty list": (assistant("hi", tool_calls=[]), [assistant("hi")]),
    "tool_calls: null": (assistant("hi", tool_calls=None), [assistant("hi")]),
    "tool_calls: empty text": (assistant("hi", tool_calls=""), [assistant("hi")]),
    "tool_calls: text of an empty list": (assistant("hi", tool_calls="[]"), [assistant("hi")]),
    "function_call (OpenAI, older)": (
        assistant(None, function_call={"name": "weather", "arguments": json.dumps(CITY)}),
        [called()],
    ),
    "function_call: null": (assistant("hi", function_call=None), [assistant("hi")]),
    "content is not there": ({"role": "assistant", "tool_calls": [{"function": WEATHER}]}, [called()]),
    "the role function_call": ({"role": "function_call", "content": json.dumps(WEATHER)}, [called()]),
    "the role tool_call with a list": (
        {"role": "tool_call", "content": [WEATHER, WEATHER]}, [called(WEATHER, WEATHER)],
    ),
    "the role function": (
        {"role": "function", "name": "weather", "content": "20"},
        [{**RESULT, "name": "weather"}],
    ),
    **{
        f"the role {role}": ({"role": role, "content": "20"}, [RESULT])
        for role in ("observation", "ipython", "tool_response", "tool_result", "tool_results", "function_response")
    },
    **{f"the role {role}": ({"role": role, "content": "a"}, [user("a")]) for role in ("human", "User")},
    **{
        f"the role {role}": ({"role": role, "content": "a"}, [assistant("a")])
        for role in ("gpt", "model", "bot", "chatgpt", "ai", "Assistant")
    },
    "the role developer": ({"role": "developer", "content": "a"}, [{"role": "developer", "content": "a"}]),
    "a result that is an object": ({**RESULT, "content": {"degrees": 20}}, [{**RESULT, "content": {"degrees": 20}}]),
    "a result that is a number": ({**RESULT, "content": 0}, [{**RESULT, "content": 0}]),
    "a result that is false": ({**RESULT, "content": False}, [{**RESULT, "content": False}]),
    "a result that is a list": ({**RESULT, "content": [1, "a"]}, [{**RESULT, "content": [1, "a"]}]),
    "a result in parts": ({**RESULT, "content": [{"type": "text", "text": "20"}]}, [RESULT]),
    "parts of type text": (
        user([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c", {"text": "d"}]),
        [user("abcd")],
    ),
    "tool_use (Anthropic)": (
        assistant([{"type": "text", "text": "I look."},
                   {"type": "tool_use", "id": "a", "name": "weather", "input": CITY}]),
        [with_calls({"id": "a", **called()["tool_calls"][0]}, content="I look.")],
    ),
    "tool_use alone": (
        assistant([{"type": "tool_use", "id": "a", "name": "weather", "input": {}}]),
        [with_calls({"id": "a", **EMPTY["tool_calls"][0]})],
    ),
    "tool_result (Anthropic)": (
        user([
            {"type": "tool_result", "tool_use_id": "a", "content": "20"},
            {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "30"}]},
            {"type": "tool_result", "tool_use_id": "c"},
            {"type": "text", "text": "And "}, {"type": "text", "text": "now?"},
        ]),
        [{**RESULT, "tool_call_id": "a"}, {"role": "tool", "content": "30", "tool_call_id": "b"},
         {"role": "tool", "content": "", "tool_call_id": "c"}, user("And now?")],
    ),
    "other members are kept, null ones are not": (
        {**RESULT, "tool_call_id": "a", "name": None, "more": 1},
        [{**RESULT, "tool_call_id": "a", "more": 1}],
    ),
    **{
        f"thinking as {key}": (assistant("4", **{key: "two"}), [assistant("4", reasoning_content="two")])
        for key in ("reasoning_content", "reasoning", "thinking")
    },
    "thinking as a part": (
        assistant([{"type": "thinking", "thinking": "two", "signature": "x"}, {"type": "text", "text": "4"}]),
        [assistant("4", reasoning_content="two")],
    ),
    "thinking as a part of texts (Mistral)": (
        assistant([{"type": "thinking", "thinking": [{"type": "text", "text": "two"}]}, {"type": "text", "text": "4"}]),
        [assistant("4", reasoning_content="two")],
    ),
    "thinking as a part of type reasoning": (
        assistant([{"type": "reasoning", "text": "two"}, {"type": "output_text", "text": "4"}]),
        [assistant("4", reasoning_content="two")],
    ),
    "thinking under two keys": (
        assistant("4", reasoning="two", reasoning_content="two\n"),
        [assistant("4", reasoning_content="two\n")],
    ),
    "thinking beside a think block with it": (
        assistant("<think>\ntwo\n</think>\n\n4", thinking="two"),
        [assistant("4", reasoning_content="two")],
    ),
    "thinking that is null or empty": (
        assistant("<think>\ntwo\n</think>\n\n4", reasoning_content=None, thinking="", reasoning="\n"),
        [assistant("<think>\ntwo\n</think>\n\n4")],
    ),
    "thinking of a call": (with_calls(WEATHER) | {"thinking": "two"}, [called(reasoning_content="two")]),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_the_shape_that_templates_are_tested_with(name):
    message, expected = SPELLINGS[name]
    found, tools = check_messages({"messages": [user("q"), message]}, "x:1")
    assert found == [user("q"), *expected] and tools is None
    for one in found:  # the order of the keys is a part of what some templates write
        for given in one.get("tool_calls", []):
            assert list(given["function"]) == ["name", "arguments"]
    json.dumps(found)
    assert check_messages({"messages": found}, "x:1")[0] == found


def test_calls_in_messages_of_their_own_are_one_turn():
    turns = [
        {"role": "tool_call", "content": json.dumps({"name": "weather", "arguments": {"city": city}})}
        for city in ("Rome", "Oslo")
    ]
    results = [{"role": "tool_response", "content": one} for one in ("sunny", "snow")]
    found, _ = check_messages({"messages": [user("q"), *turns, *results, turns[0]]}, "x:1")
    both = called(*({"name": "weather", "arguments": {"city": city}} for city in ("Rome", "Oslo")))
    assert found == [user("q"), both, *[{**one, "role": "tool"} for one in results], called(
        {"name": "weather", "arguments": {"city": "Rome"}})]  # fmt: skip


# (a message, reason, a part of the error)
BAD = {
    "arguments: no JSON": (with_arguments("{'city': 1}"), "arguments are not", "[0]: function: arguments: exp"),
    "arguments: a text that is JSON": (with_arguments('"Paris"'), "arguments are not", "found"),
    "arguments: a list": (with_arguments([1]), "arguments are not an object", "found [1]"),
    "arguments: text of a list": (with_arguments("[]"), "arguments are not an object", "found []"),
    "arguments: a number": (with_arguments(3), "arguments are not an object", "found 3"),
    "arguments: 0": (with_arguments(0), "arguments are not an object", "found 0"),
    "arguments: false": (with_arguments(False), "arguments are not an object", "found false"),
    "arguments: NaN": (with_arguments('{"a": NaN}'), "arguments are not an object", "NaN is not JSON"),
    "arguments: an object with NaN": (
        with_arguments({"a": [float("nan")]}), "arguments are not an object", "expected numbers that JSON has",
    ),
    "arguments: a key twice": (with_arguments('{"a": 1, "a": 2}'), "arguments are not an object", "twice"),
    "arguments: nested deeply": (with_arguments("[" * 99999), "arguments are not an object", "nested too deeply"),
    "arguments and parameters": (
        with_calls({"function": {"name": "weather", "arguments": "{}", "parameters": {}}}),
        "a tool call with its arguments twice",
        "function: arguments and x:1: messages[1] (assistant): tool_calls[0]: function: parameters",
    ),
    "tool_calls: an object": (assistant("", tool_calls={"name": "a"}), "tool_calls is not a list", "the keys name"),
    "tool_calls: no JSON": (assistant("", tool_calls="weather"), "not valid JSON", "tool_calls: not valid JSON"),
    "a call without a name": (with_calls({"function": {"arguments": "{}"}}), "a tool call without a name", "the keys"),
    "a call with an empty name": (with_calls({"name": "", "arguments": {}}), "a tool call without a name", 'found ""'),
    "a call of another type": (with_calls({"type": "custom", "custom": {}}), "a tool call of another type", "custom"),
    "an id that is a number": (with_calls({**WEATHER, "id": 3}), "the id of a tool call is not text", "a number"),
    "two keys of calls": (
        assistant("", tool_calls=[WEATHER], function_call=WEATHER), "a tool call under two keys", "found both",
    ),
    "calls of a user": (user("a") | {"tool_calls": [WEATHER]}, "tool calls of a message that is not", "role assistant"),
    "thinking of a user": (user("a") | {"thinking": "b"}, "thinking of a message that is not", "role assistant"),
    "thinking that is an object": (assistant("a", reasoning={"effort": 1}), "thinking is not text", "reasoning: exp"),
    "thinking that is true": (assistant("a", thinking=True), "thinking is not text", "thinking: expected text"),
    "two thinkings": (assistant("a", thinking="b", reasoning="c"), "thinking under several keys", "reasoning and th"),
    "thinking and another think block": (
        assistant("<think>c</think>a", thinking="b"), "thinking under several keys", "no think block",
    ),
    "thinking without an answer": (assistant(None, thinking="b"), "a message has no content", "found null"),
    "parts without a text": (assistant([]), "a message has no content", "a list of 0 parts without a text"),
    "an image": (
        user([{"type": "image_url", "image_url": {}}]), "content has a part that is not text", 'found type "image_url"',
    ),
    "thinking that is not readable": (
        assistant([{"type": "redacted_thinking", "data": "x"}, "4"]), "content has a part that", "redacted_thinking",
    ),
    "parts in another order": (
        assistant([{"type": "tool_use", "name": "weather", "input": {}}, {"type": "text", "text": "now"}]),
        "content has its parts in another order", "content[1]: expected thinking, then text, then tool calls",
    ),
    "a call of a user in parts": (
        user([{"type": "tool_use", "name": "weather", "input": {}}]), "content has a part that is not text", "tool_use",
    ),
    "an image in a result": (
        user([{"type": "tool_result", "content": [{"type": "image", "source": {}}]}]),
        "content has a part that is not text", 'content[0]: content[0]: expected a part of type text, found type "im',
    ),
    "a result without a content": ({"role": "tool", "content": None}, "a message has no content", "(tool): content:"),
    "the role function_call with nothing": ({"role": "function_call", "content": ""}, "a message has no", "a tool"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_no_format_means_is_a_bad_document_with_the_key(name):
    message, reason, said = BAD[name]
    with pytest.raises(BadDocument) as error:
        check_messages({"messages": [user("q"), message]}, "x:1")
    assert error.value.reason.startswith(reason) and said in str(error.value), error.value
    assert str(error.value).startswith("x:1: messages[1]")


FUNCTION = {"name": "weather", "description": "The weather now.", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
TOOL_SPELLINGS = {
    "OpenAI": [TOOL],
    "JSON text": json.dumps([TOOL]),
    "a list of JSON texts": [json.dumps(TOOL)],
    "bare functions": [FUNCTION],
    "JSON text of bare functions": json.dumps([FUNCTION]),
    "flat (Responses)": [{"type": "function", **FUNCTION}],
    "input_schema (Anthropic)": [{"name": "weather", "description": "The weather now.",
                                  "input_schema": FUNCTION["parameters"]}],
    "parameters as JSON text": [{**FUNCTION, "parameters": json.dumps(FUNCTION["parameters"])}],
    "without a type": [{"function": FUNCTION}],
}  # fmt: skip


@pytest.mark.parametrize("key", ["tools", "functions"])
def test_tools_of_every_form_are_openais(key):
    for name, tools in TOOL_SPELLINGS.items():
        _, found = check_messages({"messages": [user("q")], key: tools}, "x:1")
        assert json.dumps(found) == json.dumps([TOOL]), name
    for empty in (None, [], "", "[]", "null", {}):
        assert check_messages({"messages": [user("q")], key: empty}, "x:1")[1] is None
    for bad, said in (
        ("weather", f"x:1: {key}: not valid JSON"),
        ({"name": "weather"}, f"x:1: {key}: expected a list of objects"),
        ([1], f"x:1: {key}[0]: expected a list of objects, found 1"),
        ([{"description": "x"}], f"x:1: {key}[0]: expected a tool as"),
        ([{"type": "web_search"}], f'x:1: {key}[0]: type: expected function, found "web_search"'),
        (False, f"x:1: {key}: expected a list of objects, found false"),
    ):
        with pytest.raises(BadDocument) as error:
            check_messages({"messages": [user("q")], key: bad}, "x:1")
        assert str(error.value).startswith(said)
    with pytest.raises(BadDocument, match="expected tools or functions, found both"):
        check_messages({"messages": [user("q")], "tools": [TOOL], "functions": [FUNCTION]}, "x:1")


def test_the_order_of_a_tools_keys_is_the_records():
    tool = {"function": {"parameters": {}, "name": "weather"}, "type": "function"}
    assert json.dumps(check_messages({"messages": [user("q")], "tools": [tool]}, "x:1")[1]) == json.dumps([tool])


@pytest.mark.parametrize("name", STOCK)
def test_what_a_template_takes_is_found_as_its_text_says(name):
    """Against a table that was read off the templates by hand."""
    form, expected = encoder(name).form, FORMS[name]
    found = form._calls
    assert (found is None) == (expected.calls is None)
    if found is not None:
        assert found == (expected.calls == "text", expected.alone)
        assert form._shows_calls_beside_text == expected.beside_text
    assert form._thinking == {"cut": "left out"}.get(expected.thinking, expected.thinking)
    assert form._writes_values(dict) == expected.objects
    assert (expected.tools or "variable") == (form._tools_place or "variable")
    if expected.calls is not None:
        assert form._writes_results_before_text == expected.text_after_results


def test_what_a_template_has_no_place_for_is_a_bad_document():
    for name, form in FORMS.items():
        if form.calls is None:
            with pytest.raises(
                BadDocument, match=r"messages\[1\]: tool_calls: the chat template leaves tool calls out"
            ):
                samples(encoder(name), *shape("tools"))
        elif not form.beside_text:
            with pytest.raises(BadDocument, match=r"tool_calls: .* leaves the tool calls of a message out that has a"):
                samples(encoder(name), *shape("tools, text beside the call"))
        if form.thinking is None:
            with pytest.raises(BadDocument, match="place for the thinking .*reasoning_content, .* --thinking drop"):
                samples(encoder(name), shape("reasoning_content")[0])


def test_the_thinking_goes_where_the_option_says():
    chat = [user("2+2"), assistant("4", reasoning="two and two")]
    plain, tagged = [user("2+2"), assistant("4")], [user("2+2"), assistant("<think>\ntwo and two\n</think>\n\n4")]
    for name in ("llama3_1", "qwen3", "smollm3_unsloth"):
        for option, expected in (("content", tagged), ("drop", plain)):
            [(ids, _)] = samples(encoder(name, thinking=option), chat)
            assert list(ids) == by_transformers(reference(name), expected, None)[0], (name, option)
    # SmolLM3 without thinking begins each turn with an empty think block: there is no place for another one.
    with pytest.raises(BadDocument, match="no place for the thinking"):
        samples(encoder("smollm3_unsloth", template_args=arguments(enable_thinking=False)), chat)


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking", "thoughts"])
def test_the_thinking_has_the_name_that_a_template_reads(key):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.KEY %}<think>{{ m.KEY }}</think>{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ).replace("KEY", key)
    for given in ("reasoning_content", "reasoning", "thinking"):
        [(ids, _)] = samples(encoder("x", template), [user("2+2"), assistant("4", **{given: "two"})])
        # No key of ours, but think tags: the thinking is a part of the content.
        turn = "<think>\ntwo\n</think>\n\n4" if key == "thoughts" else "<think>two</think>4"
        assert text(ids).endswith(f"assistant\n{turn}<|im_end|>\n")


PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize(
    "template, role, written",
    [
        (PLAIN, "developer", "system"),
        (PLAIN + "{% if messages[0].role == 'developer' %}!{% endif %}", "developer", "developer"),
        (PLAIN, "observation", "tool"),
        (PLAIN.replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}"), "tool", "function"),
        (PLAIN + "{# narrator: 'narrator' #}", "narrator", "narrator"),
        (PLAIN, "narrator", None),
        (PLAIN, "user_context", None),
    ],
)
def test_a_role_is_the_one_that_the_template_knows(template, role, written):
    chat = [{"role": role, "content": "a"}, user("b"), assistant("c")]
    if written is None:
        with pytest.raises(BadDocument, match=rf"messages\[0\]: role: expected one of .*, found the role {role}"):
            samples(encoder("x", template), chat)
        return
    [(ids, _)] = samples(encoder("x", template), chat)
    assert text(ids).startswith(f"<|im_start|>{written}\na<|im_end|>")


def test_a_template_that_writes_pythons_text_of_an_object_gets_json_text():
    template = PLAIN.replace(
        "{{ m.content }}",
        "{{ m.content or '' }}{% for c in m.tool_calls %}{{ c.function.name }} {{ c.function.arguments }}{% endfor %}",
    )
    chat = [user("a"), assistant(None, tool_calls=[call("Paris")]), answer({"sky": "sunny"}), assistant("b")]
    [(ids, _)] = samples(encoder("x", template, loss_on="all"), chat)
    assert 'weather {"city": "Paris"}<|im_end|>' in text(ids) and '{"sky": "sunny"}<|im_end|>' in text(ids)


def left_out(name, messages, tools=None, template=None):
    ours = encoder(name, template)
    messages, tools = check_messages({"messages": messages, "tools": tools}, "x:1")
    return set(ours.form.left_out(ours.fit(messages, tools, "x:1"), tools))


def test_what_a_template_leaves_out_by_design_is_named():
    calling = [user("q"), assistant("I look.", tool_calls=[call("Paris")]), answer("20"), assistant("20.")]
    assert left_out("llama3_1", calling, TOOLS) == {"content beside tool_calls"}
    assert left_out("qwen3", calling, TOOLS) == set()
    assert left_out("gemma3", [user("q"), assistant("a")], TOOLS) == {"tools"}
    assert left_out("mistral_nemo", [SYSTEM, user("q"), assistant("a")]) == {"content of the role system"}
    thinking = [user("q"), assistant("a", reasoning="b")]
    assert left_out("deepseek_r1_distill", thinking) == {"thinking"} and left_out("qwen3", thinking) == set()
    # Gemma 4's first templates write the thinking of calls alone.
    template = PLAIN.replace(
        "{{ m.content }}", "{% if m.tool_calls %}{{ m.reasoning }}{{ m.tool_calls }}{% endif %}{{ m.content }}"
    )
    template += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    calling = [user("q"), assistant("", tool_calls=[call("Paris")], thinking="b"), answer("20"), assistant("20.")]
    assert left_out("x", calling, template=template) == set()
    assert left_out("x", thinking, template=template) == {"thinking"}
