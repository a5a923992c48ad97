"""Chat templates by name: where a folder may have them, which one a conversation gets, against transformers."""

import itertools
import json

import pytest
from chat_reference import TOKENIZER, samples, text
from chat_shapes import TOOLS, assistant, user
from conversion import convert, documents
from tokenize_runs import write_jsonl
from transformers import AutoTokenizer, ProcessorMixin

from token_shards.chat import ChatEncoder, ChatOptions
from token_shards.errors import InputError
from token_shards.template_files import ChatTemplates
from token_shards.tokenizer_files import TokenizerFiles

CHAT = [user("weather?"), assistant("sunny")]


def template(mark):
    return (
        f"[{mark}]"
        "{% if tools %}{{ tools[0].function.name }}{% endif %}{% if loud %}LOUD{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


# The places of templates, and what stands there: {name: template} or one template.
PLACES = {
    "jinja": ("chat_template.jinja", {"default": template("jinja")}),
    "additional": ("additional_chat_templates", {"tool_use": template("add-tool"), "rag": template("add-rag")}),
    "config list": ("config", [{"name": "default", "template": template("list")},
                               {"name": "tool_use", "template": template("list-tool")}]),
    "config text": ("config", template("text")),
    "json": ("chat_template.json", {"chat_template": template("json")}),
}  # fmt: skip


def write_folder(folder, places):
    folder.mkdir()
    TOKENIZER.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    for place in places:
        name, value = PLACES[place]
        if name == "config":
            config["chat_template"] = value
        elif name == "additional_chat_templates":
            (folder / name).mkdir()
            for key, one in value.items():
                (folder / name / f"{key}.jinja").write_text(one)
        else:
            (folder / name).write_text(value["default"] if name.endswith("jinja") else json.dumps(value))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def named(templates):
    """What transformers has as chat_template, by name."""
    return templates if isinstance(templates, dict) else {"default": templates} if templates else {}


COMBINATIONS = [
    set(chosen)
    for count in range(len(PLACES) + 1)
    for chosen in itertools.combinations(PLACES, count)
    if not {"config list", "config text"} <= set(chosen)
]


@pytest.mark.parametrize("places", COMBINATIONS, ids=lambda places: "+".join(sorted(places)) or "none")
def test_every_place_has_the_precedence_that_transformers_gives_it(tmp_path, places):
    folder = write_folder(tmp_path / "model", places)
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = named(theirs.chat_template)
    if places == {"json"}:  # which transformers' processors read
        expected = named(ProcessorMixin.get_processor_dict(folder)[0]["chat_template"])
        assert expected == {"default": template("json")}
    texts = TokenizerFiles.load(folder).chat_templates
    assert texts == expected
    templates = ChatTemplates.chosen(texts, None)
    for tools in (None, TOOLS):
        try:
            chosen = theirs.get_chat_template(None, tools)
        except ValueError:
            if "default" in expected:  # of a processor
                assert templates.name_for(tools, "x:1") == "default"
            elif expected:
                with pytest.raises(InputError, match=r"x:1: no chat template .* named default .* found rag, tool_use"):
                    templates.name_for(tools, "x:1")
            else:
                assert templates.name_for(tools, "x:1") is None
            continue
        assert texts[templates.name_for(tools, "x:1")] == chosen


def test_a_conversion_takes_tool_use_where_a_record_has_tools(tmp_path):
    folder = write_folder(tmp_path / "model", ["jinja", "additional"])
    theirs = AutoTokenizer.from_pretrained(folder)
    records = [{"messages": CHAT}, {"messages": CHAT, "tools": TOOLS}, {"messages": CHAT, "tools": []}]
    source = write_jsonl(tmp_path / "in.jsonl", records)
    said = convert(folder, tmp_path / "out", source)
    expected = [
        theirs.apply_chat_template(CHAT, tools=record.get("tools") or None, tokenize=True, return_dict=False)
        for record in records
    ]
    assert documents(tmp_path / "out") == expected and "[add-tool]weather" in text(expected[1])
    assert "chat template default: not a known one" in said and "chat template tool_use: not a known one" in said
    assert "rag" not in said

    said = convert(folder, tmp_path / "rag", source, "--chat-template", "rag")
    expected = [
        theirs.apply_chat_template(
            CHAT, tools=record.get("tools") or None, chat_template="rag", tokenize=True, return_dict=False
        )
        for record in records
    ]
    assert documents(tmp_path / "rag") == expected and text(expected[0]).startswith("[add-rag]")
    assert "chat template rag: " in said and "default" not in said

    other = tmp_path / "other.jinja"
    other.write_text(template("other"))
    convert(folder, tmp_path / "other", source, "--chat-template", other)
    assert all(text(one).startswith("[other]") for one in documents(tmp_path / "other"))
    error = convert(folder, tmp_path / "no", source, "--chat-template", "rga", code=1)
    assert "--chat-template rga: no such file, and no template of the tokenizer has this name" in error
    assert "(found default, rag, tool_use)" in error


def test_arguments_go_to_the_templates_that_have_them(tmp_path):
    folder = write_folder(tmp_path / "model", ["jinja", "additional"])
    (folder / "chat_template.jinja").write_text(template("jinja").replace("{% if loud %}LOUD{% endif %}", ""))
    records = [{"messages": CHAT}, {"messages": CHAT, "tools": TOOLS, "chat_template_kwargs": {"loud": True}}]
    source = write_jsonl(tmp_path / "in.jsonl", records)
    convert(folder, tmp_path / "own", source)
    assert ["LOUD" in text(one) for one in documents(tmp_path / "own")] == [False, True]
    convert(folder, tmp_path / "all", source, "--template-arg", "loud=true")
    assert ["LOUD" in text(one) for one in documents(tmp_path / "all")] == [False, True]
    error = convert(folder, tmp_path / "no", source, "--template-arg", "lou=true", code=1)
    assert "--template-arg lou: the chat templates have no variable of this name" in error


@pytest.mark.parametrize(
    "found", [3, [], {}, [1], [{"name": "default"}], [{"template": "x"}], {"default": 1}, [["default", "x"]]], ids=str
)
def test_a_template_of_another_form_is_an_error_that_names_the_file(tmp_path, found):
    folder = write_folder(tmp_path / "model", [])
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": found}))
    with pytest.raises(InputError, match=r"tokenizer_config.json: chat_template: expected a text, or a list"):
        TokenizerFiles.load(folder)


def test_a_template_with_a_mistake_is_named(tmp_path):
    folder = write_folder(tmp_path / "model", ["jinja", "additional"])
    (folder / "additional_chat_templates" / "rag.jinja").write_text("{% if %}")
    source = write_jsonl(tmp_path / "in.jsonl", [{"messages": CHAT}])
    convert(folder, tmp_path / "out", source)  # which does not use it
    error = convert(folder, tmp_path / "no", source, "--chat-template", "rag", code=1)
    assert "chat template rag, line 1: not a Jinja template" in error
    (folder / "additional_chat_templates" / "rag.jinja").write_bytes(b"\xff")
    error = convert(folder, tmp_path / "no", source, code=1)
    assert "rag.jinja: not UTF-8: byte 0 is 0xff" in error


def test_a_conversation_without_any_template_still_says_what_to_do():
    with pytest.raises(InputError, match="need a chat template.*--chat-template FILE"):
        samples(ChatEncoder(None, {}, TOKENIZER, ChatOptions()), CHAT)
