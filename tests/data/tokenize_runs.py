"""Runs of scripts/tokenize.py, a small byte-level BPE tokenizer for them, and what they write."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import tokenizers

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))

from token_shards import shard_file

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "tokenize.py"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
)
# As templates of reasoning models do: earlier turns look different once a later one exists.
REWRITES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>"
    "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
CHAT = [
    {"role": "user", "content": "hi é"},
    {"role": "assistant", "content": "hello 🙂 you"},
    {"role": "user", "content": "more"},
    {"role": "assistant", "content": "no"},
]


def make_tokenizer(folder, *, template=CHATML, bos=False):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|bos|>", "<|end|>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["the quick brown fox says hello to the other fox"] * 5, trainer)
    if bos:
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", tokenizer.token_to_id("<|bos|>"))]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "bos_token": {"content": "<|bos|>"}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


def run(*args, cwd=None, code=0, command=(str(SCRIPT),)):
    result = subprocess.run([sys.executable, *command, *map(str, args)], cwd=cwd, capture_output=True, text=True)
    assert result.returncode == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    return result.stderr if code else result.stdout


def tokenise(model, output, *args, workers=1, **kwargs):
    return run("--tokenizer", model, "--output", output, "--workers", workers, "--quiet", *args, **kwargs)


def documents(folder):
    out = []
    for path in sorted(Path(folder).glob("*.dtok")):
        out += [list(map(int, tokens)) for tokens in shard_file.read(path)[1]]
    return out


def masks(folder):
    return [list(mask) for path in sorted(Path(folder).glob("*.dtok")) for mask in shard_file.read(path)[2]]


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def corpus(path, count=2000):
    words = ["the", "quick", "brown", "fox", "says", "hello", "to", "other", "foxes"]
    random = np.random.default_rng(0)
    return write_jsonl(
        path, [{"text": f"{i} " + " ".join(random.choice(words, random.integers(1, 40)))} for i in range(count)]
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
