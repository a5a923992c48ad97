"""scripts/eval_tasks.py with a data set of its own, in the format of lm-evaluation-harness."""

import json

import pytest
import transformers
import yaml
from word_models import save_constant_model, save_tokenizer

import multimodal_models

WORDS = ["<eos>", "sky", "grass", "snow", "is", "blue", "green", "white"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models: one always says blue, the other always green."""
    folder = tmp_path_factory.mktemp("models")
    for favourite in ("blue", "green"):
        save_constant_model(folder / favourite, WORDS, favourite)
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A task of four questions, to three of which the answer is blue; one whose file is missing; one of the Hub."""
    folder = tmp_path_factory.mktemp("tasks")
    answers = ["blue", "blue", "green", "blue"]
    lines = [{"thing": "sky", "choices": ["blue", "green"], "answer": ["blue", "green"].index(a)} for a in answers]
    (folder / "colours.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    common = {
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{thing}} is",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    sources = {
        "colours": {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{folder}/colours.jsonl"}}},
        "lost": {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": f"{folder}/nowhere.jsonl"}}},
        "far": {"dataset_path": "somebody/somewhere"},
    }
    for name, source in sources.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **source, **common}))
    return folder


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path_factory):
    """No network, whatever the machine has, and a cache of its own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path_factory.mktemp("cache")))


def test_models_are_compared_and_what_cannot_be_reached_is_said(script, folders, tasks, tmp_path):
    arguments = [f"blue={folders}/blue", f"green={folders}/green", "--tasks", "colours,lost,far", "--include", tasks]
    arguments += ["--device", "cpu", "--json", tmp_path / "out.json"]
    error = script("eval_tasks.py", *arguments, code=1)
    assert "lost: its data cannot be reached from this machine" in error and "nowhere.jsonl" in error
    assert "far: its data cannot be reached from this machine" in error
    assert "bring the cache" in error
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["blue"]["colours"]["acc"] == 0.75 and found["green"]["colours"]["acc"] == 0.25


def test_a_limit_takes_the_first_documents(script, folders, tasks):
    text = script(
        *("eval_tasks.py", f"blue={folders}/blue", "--tasks", "colours", "--include", tasks, "--limit", 2),
        *("--device", "cpu"),
    )
    assert [line.split()[:3] for line in text.splitlines()] == [
        ["task", "metric", "blue"],
        ["colours", "acc", "1.0000"],
    ]


def test_the_text_model_of_a_multimodal_folder_is_evaluated(script, folders, tasks, tmp_path):
    text = transformers.AutoModelForCausalLM.from_pretrained(folders / "blue")
    config = multimodal_models.llava(text.config)
    whole = transformers.AutoModelForImageTextToText.from_config(config)
    whole.get_decoder().load_state_dict(text.model.state_dict())
    whole.lm_head.load_state_dict(text.lm_head.state_dict())
    whole.save_pretrained(tmp_path)
    save_tokenizer(tmp_path, WORDS)
    shown = script("eval_tasks.py", f"blue={tmp_path}", "--tasks", "colours", "--include", tasks, "--device", "cpu")
    assert ["colours", "acc", "0.7500"] in [line.split()[:3] for line in shown.splitlines()]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["x=nowhere", "--tasks", "colours"], "nowhere: no config.json in it"),
        (["MODEL", "--tasks", ","], "--tasks: expected names"),
        (["MODEL", "--tasks", "colours", "--include", "nowhere"], "--include: nowhere: no such folder"),
    ],
)
def test_bad_arguments_are_named(script, folders, arguments, expected):
    arguments = [f"m={folders}/blue" if part == "MODEL" else part for part in arguments]
    assert expected in script("eval_tasks.py", *arguments, code=1)
