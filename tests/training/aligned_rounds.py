"""On-policy rounds that a teacher with another tokenizer judges."""

import json
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

import other_tokenizers
import tiny
from onpolicy_runs import ENGINE, round_folder

END = 0  # of both
MOST = 16  # onpolicy.max_new_tokens
RETOKENIZE = tiny.REPOSITORY / "scripts" / "retokenize_completions.py"
RETOKENIZER = f"{sys.executable} {RETOKENIZE} --completions {{completions}} --output {{output}}"
LOGPROBS = r"mean log-probability (-[0-9.]+) nats, the engine's (-[0-9.]+)"  # in the log, of each round
LOSS = {"divergence": "reverse_kl", "hard_weight": 0.0, "soft_weight": 1.0, "span_weight": 1.0}
TEXTS = [
    "The ranks wait for each other, and a token ends.",
    "a shard has 🙂 and naïve documents",
    "memory of the plan\n\nand more",
    "one",
    "It is read by the teacher: sequences of tokens.",
]


def make_pair(folder):
    student, teacher = other_tokenizers.make_pair(folder)
    (Path(student) / "generation_config.json").write_text(json.dumps({"eos_token_id": END}))
    return student, teacher


def make_questions():
    lines = (tiny.REPOSITORY / "docs/ranks.md").read_text().split(". ")
    return [line.strip()[:24] for line in lines if len(line) > 30][:20]


def tokenizer_of(folder):
    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def write_texts(path, folder, texts):
    """The tokens of texts, for `command`."""
    tokenizer = tokenizer_of(folder)
    path.write_text(json.dumps([tokenizer.encode(text, add_special_tokens=False).ids for text in texts]))
    return path


def command(*arguments, texts=None):
    words = [sys.executable, ENGINE, "--prompts", "{prompts}", "--output", "{output}", "--vocab", "330", "--end", END]
    return " ".join(map(str, [*words, *(["--texts", texts] if texts else []), *arguments]))


def config_in(folder, pair, prompts):
    """config(name, engine, **sections): rounds of two steps, four sequences in each; an engine that writes TEXTS."""
    texts = write_texts(folder / "texts.json", pair[0], TEXTS)

    def build(name, engine=None, retokenize=RETOKENIZER, **sections):
        onpolicy = {"prompts": prompts, "command": engine or command(texts=texts), "retokenize": retokenize}
        onpolicy |= {"every": 2, "max_new_tokens": MOST} | sections.pop("onpolicy", {})
        train = {"steps": 6, "global_batch_size": 4, "micro_batch_size": 2, "deterministic": tiny.DEVICE == "cuda"}
        settings = tiny.base_config(
            folder / name,
            *pair,
            prompts,
            data={"seq_len": 48, "teacher_seq_len": 48, "packing": "pack"} | sections.pop("data", {}),
            train=train | sections.pop("train", {}),
            teacher={"path": pair[1], "alignment": "bytes"} | sections.pop("teacher", {}),
            onpolicy=onpolicy,
            onpolicy_loss=dict(LOSS) | sections.pop("onpolicy_loss", {}),
            scheduler={"warmup_steps": 0},
            **{"optimizer": {"lr": 1e-3}} | sections,
        )
        if settings["onpolicy"].get("fraction", 1) == 1:
            settings["data"].pop("train", None)
        settings.pop("loss", None)
        return settings

    return build


def off_policy(settings):
    """The same run on the data that it names, without rounds."""
    settings["loss"] = settings.pop("onpolicy_loss")
    del settings["onpolicy"]
    return settings


def documents_of(run, number):
    return other_tokenizers.documents_of(round_folder(run, number))


def same_documents(found, expected):
    return all(np.array_equal(a, b) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other))
