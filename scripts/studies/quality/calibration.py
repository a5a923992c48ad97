"""Measures of a model folder that `distill eval` does not have: calibration, and continued functions that parse.

  scripts/studies/quality.py measure --model runs/x/model --data work/quality/data --prompts work/quality/prompts.json

Prints one JSON object. `calibration_error`: expected calibration error of the most probable next token, in 15 bins of
equal width (Naeini et al. 2015), over the held-out texts of each kind and of all. `continuations_that_parse`: of
`functions` first halves of functions, the share whose greedy continuation of at most 96 tokens has no syntax error as
far as it goes, and at least one statement. With `--teacher`, `own_words`: the distances to it on what the model writes
itself (own_words.py).
"""

import json
import sys
from pathlib import Path

from shared import runs
from shared.text_model import load_text_model
from token_shards import shard_file

from . import own_words
from .prompts import parses
from .sources import KINDS

BINS = 15
NEW_TOKENS = 96
PARSE_KEY = "continuations_that_parse"


def add_arguments(parser):
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--data", type=Path, required=True, help="folder with test-code, test-reference, test-prose")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON file of scripts/studies/quality.py prompts")
    parser.add_argument("--teacher", type=Path, help="the model's own words are measured against it")
    parser.add_argument("--count", type=int, default=0, help="prompts that are taken (default: all)")
    parser.add_argument("--seq-len", type=int, default=512, help="tokens of a window")
    parser.add_argument("--windows", type=int, default=0, help="windows of each kind (default: all)")
    parser.add_argument("--batch", type=int, default=16, help="windows in a forward pass")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")


def call(study, folders, model, device, threads, own_words=False):
    """The measures of a model, from a process of its own."""
    script = Path(__file__).resolve().parents[1] / "quality.py"
    command = [sys.executable, script, "measure", "--model", model, "--data", folders.data("")]
    command += [
        "--device",
        study.device,
        "--prompts",
        folders.prompts,
        "--count",
        study.prompts,
        "--seq-len",
        study.seq_len,
    ]
    command += ["--batch", study.batch, "--windows", study.eval_batches * study.batch, "--dtype", study.dtype]
    command += ["--teacher", folders.teacher] if own_words else []
    return json.loads(runs.call(command, device, threads).splitlines()[-1])


def windows(folder, seq_len):
    """Arrays of at most `seq_len` + 1 tokens: the documents of the token shards, cut."""
    for path in sorted(folder.glob(f"*{shard_file.EXTENSION}")):
        _, documents, _ = shard_file.read(path)
        for tokens in documents:
            for start in range(0, len(tokens) - 1, seq_len):
                yield tokens[start : start + seq_len + 1]


def batches(rows, size):
    """(tokens, targets) of equal lengths, padded; targets are -100 where there is none."""
    import numpy as np
    import torch

    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        longest = max(len(row) for row in part) - 1
        tokens, targets = np.zeros((len(part), longest), np.int64), np.full((len(part), longest), -100, np.int64)
        for row, values in enumerate(part):
            tokens[row, : len(values) - 1], targets[row, : len(values) - 1] = values[:-1], values[1:]
        yield torch.from_numpy(tokens), torch.from_numpy(targets)


class Bins:
    """Sums for an expected calibration error."""

    def __init__(self):
        import torch

        self.count, self.confidence, self.correct = (torch.zeros(BINS, dtype=torch.float64) for _ in range(3))

    def add(self, confidence, correct):
        """Vectors over tokens: probability of the most probable token, and whether it was the right one."""
        bins = (confidence * BINS).long().clamp(max=BINS - 1).cpu()
        for sums, values in ((self.count, correct * 0 + 1), (self.confidence, confidence), (self.correct, correct)):
            sums.index_add_(0, bins, values.double().cpu())

    def merge(self, other):
        self.count += other.count
        self.confidence += other.confidence
        self.correct += other.correct

    def error(self):
        """sum over bins of share x |mean confidence - accuracy|"""
        return float((self.confidence - self.correct).abs().sum() / self.count.sum())


def calibration_error(model, data, args):
    import torch

    everything, errors = Bins(), {}
    for kind in KINDS:
        bins = Bins()
        rows = list(windows(data / f"test-{kind}", args.seq_len))
        with torch.inference_mode():
            for tokens, targets in batches(rows[: args.windows or None], args.batch):
                logits = model(tokens.to(args.device), use_cache=False).logits
                valid = targets.to(args.device) != -100
                confidence, guess = logits[valid].float().softmax(-1).max(-1)
                bins.add(confidence, guess == targets.to(args.device)[valid])
        errors[kind] = bins.error()
        everything.merge(bins)
    return errors | {"all": everything.error()}


def parsed_share(model, tokenizer, prompts, args):
    """The share of prompts whose greedy continuation, up to the end of the function, has no syntax error."""
    import torch

    good = 0
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    for start in range(0, len(prompts), 64):
        part = prompts[start : start + 64]
        inputs = tokenizer(part, return_tensors="pt", padding=True, add_special_tokens=False).to(args.device)
        with torch.inference_mode():
            output = model.generate(
                **inputs, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=tokenizer.pad_token_id
            )
        new = output[:, inputs["input_ids"].shape[1] :]
        texts = tokenizer.batch_decode(new, skip_special_tokens=True)
        good += sum(parses(prompt, text) for prompt, text in zip(part, texts, strict=True))
    return good / len(prompts)


def main(args):
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model, local_files_only=True)
    dtype = getattr(torch, args.dtype)
    model = load_text_model(args.model, dtype=dtype)
    model = model.to(args.device).eval()
    prompts = json.loads(args.prompts.read_text())[: args.count or None]
    result = {
        "calibration_error": {
            kind: round(value, 5) for kind, value in calibration_error(model, args.data, args).items()
        },
        "functions": len(prompts),
        PARSE_KEY: round(parsed_share(model, tokenizer, prompts, args), 5),
    }
    if args.teacher is not None:
        teacher = load_text_model(args.teacher, dtype=dtype).to(args.device).eval()
        result["own_words"] = own_words.measure(model, teacher, args)
    print(json.dumps(result))
