"""configs/onpolicy.yaml as it stands, with tiny models and texts in the places of the quickstart's."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import transformers

import tiny

sys.path.append(str(tiny.REPOSITORY / "tests" / "scripts"))
sys.path.append(str(tiny.REPOSITORY / "tests" / "cli"))
from word_models import save_random_model  # noqa: E402

WORDS = ["<eos>", *(f"w{index}" for index in range(60))]


def make_model(folder, seed, hidden):
    return save_random_model(folder, WORDS, seed, hidden=hidden, positions=256, spread=0.4)


def make_texts(folder, name, seed, count):
    random = np.random.default_rng(seed)
    lines = [json.dumps({"text": " ".join(random.choice(WORDS[1:], 40))}) for _ in range(count)]
    (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    command = [
        sys.executable,
        tiny.REPOSITORY / "scripts" / "tokenize.py",
        "--tokenizer",
        folder / "teacher",
        "--output",
    ]
    subprocess.run([*command, folder / name, folder / f"{name}.jsonl"], check=True, capture_output=True)
    return folder / name


@pytest.mark.skipif(not (tiny.REPOSITORY / ".venv").exists(), reason="the command of the example is .venv/bin/python")
def test_the_example_runs_and_its_report_shows_words_with_their_judgement(tmp_path, monkeypatch):
    monkeypatch.chdir(tiny.REPOSITORY)
    teacher, student = make_model(tmp_path / "teacher", 1, 32), make_model(tmp_path / "student", 2, 16)
    train, held_out = make_texts(tmp_path, "train", 3, 60), make_texts(tmp_path, "eval", 4, 30)
    paths = {
        "student.path": student, "teacher.path": teacher, "data.eval": held_out, "onpolicy.prompts": train,
        "onpolicy.eval_prompts": held_out, "run.dir": tmp_path / "run",
    }  # fmt: skip
    sizes = {
        "train.steps": 8,
        "onpolicy.max_new_tokens": 12,
        "onpolicy.eval_completions": 6,
        "train.device": tiny.DEVICE,
    }
    sets = [f"{key}={value}" for key, value in (paths | sizes).items()]
    tiny.distill("--config", "configs/onpolicy.yaml", "--set", *sets)
    run = tmp_path / "run"
    rounds = tiny.read_rounds(run)
    assert [line["step"] for line in rounds] == [0, 4]
    for line in rounds:
        numbers = line["round"]
        assert numbers["completions"] == 32 and numbers["held_out"]["completions"] == 6
        assert numbers["judged"]["logprob_gap"] < (1e-3 if tiny.DEVICE == "cpu" else 0.1)
        assert numbers["seconds"].keys() == {"weights", "engine", "shard", "check"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(student)
    judged = json.loads((run / "onpolicy" / "round-00001" / "judged.json").read_text())
    assert len(judged["completions"]) == 4
    for one in judged["completions"]:
        assert "".join(one["texts"]).split() == tokenizer.convert_ids_to_tokens(one["ids"])
        assert one["prompt"].split() == tokenizer.convert_ids_to_tokens(one["prompt_ids"])
    page = (run / "report.html").read_text()
    assert '"round_samples":[{"number":1' in page.replace(" ", "")
    assert Path(run / "model" / "config.json").exists()
