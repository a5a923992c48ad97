"""A study of quality.sh in miniature: a tiny teacher that has learnt something, its students, text, prompts."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import torch
import transformers
import yaml
from word_models import save_tokenizer

from model_shapes import shape

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("DISTILL_BUILD", ROOT / "build" / "release"))
PROGRAM = Path(os.environ.get("DISTILL_BIN", BUILD / "apps" / "distill" / "distill"))
WORDS = ["<eos>", "<unk>"] + [f"w{number}" for number in range(62)]
LENGTH = 32


def sentence(rng, language):
    """Words of which each is followed by one of three others: something that a small model can learn."""
    word, words = rng.randrange(62), []
    for _ in range(rng.randrange(40, 160)):
        words.append(f"w{word}")
        word = (5 * word + language + rng.choice((0, 0, 0, 7, 19))) % 62
    return " ".join(words)


def write_text(path, seed, count):
    rng = random.Random(seed)
    documents = [{"text": sentence(rng, language=3), "source": f"x/{number}"} for number in range(count)]
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))


def run(*command):
    variables = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=variables, timeout=900)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def script(name, *arguments):
    return run(sys.executable, ROOT / "scripts" / name, *arguments)


def save_model(folder, layers=4):
    torch.manual_seed(1)
    keys = shape(len(WORDS), 64, 128, layers, 4, 2, head_dim=16, max_position_embeddings=256, initializer_range=0.1)
    keys |= dict(tie_word_embeddings=True, eos_token_id=0, bos_token_id=0, pad_token_id=None)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**keys)).save_pretrained(folder)
    save_tokenizer(folder, WORDS, "<unk>")


def make(work):
    """Fills the work folder: text, data, teacher, students, prompts."""
    work.mkdir(parents=True)
    text = work / "text"
    text.mkdir()
    sets = {"train": 400, "validation": 12, "test-code": 12, "test-reference": 12, "test-prose": 12}
    save_model(work / "untrained")
    for seed, (name, count) in enumerate(sets.items()):
        write_text(text / f"{name}.jsonl", seed, count)
        tokens = ("--tokenizer", work / "untrained", "--eos-token", "<eos>", "--workers", 1, "--quiet")
        script("tokenize.py", *tokens, "--output", work / "data" / name, text / f"{name}.jsonl")
    config = {
        "student": {"path": str(work / "untrained")},
        "data": {"train": [str(work / "data" / "train")], "seq_len": LENGTH, "seed": 9},
        "loss": {"divergence": "none", "hard_weight": 1},
        "train": {"steps": 300, "micro_batch_size": 16, "global_batch_size": 16, "device": "cpu"},
        "optimizer": {"lr": 1e-2, "weight_decay": 0.0},
        "scheduler": {"type": "cosine", "warmup_steps": 10},
        "run": {"dir": str(work / "teacher-run"), "progress": "none"},
    }
    (work / "teacher.json").write_text(json.dumps(config))
    run(PROGRAM, "--config", work / "teacher.json")
    (work / "teacher-run" / "model").rename(work / "teacher")
    script("prune_layers.py", "--teacher", work / "teacher", "--out", work / "students" / "half", "--every", 2)
    (work / "prompts.json").write_text(json.dumps(['def w1 ( ) :\n    """ w2 """\n']))
    return work


def study(path, **changes):
    """A study.yaml whose profile `cpu` is tiny; `changes` replace values of that profile."""
    table = yaml.safe_load((ROOT / "scripts" / "studies" / "quality" / "study.yaml").read_text())
    table["rows"]["newer"] = {"title": "a key that no build has", "set": {"loss.of_tomorrow": 1}}
    table["profiles"]["cpu"] = {
        "device": "cpu",
        "dtype": "float32",
        "seq_len": LENGTH,
        "batch": 8,
        "tokens": 60 * 8 * LENGTH,
        "search_tokens": 15 * 8 * LENGTH,
        "shards": 1,
        "lrs": [3e-3, 6e-3],
        "seeds": [1, 2],
        "evaluations": 3,
        "prompts": 0,  # measuring takes a process that imports transformers for each model
        "cases": {"half": ["labels", "forward_kl", "hidden", "newer"]},
        **changes,
    }
    path.write_text(yaml.safe_dump(table))
    return path
