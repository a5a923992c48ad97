#!/usr/bin/env python3
"""What a teacher with another tokenizer brings, against training on the labels alone (docs/vocabulary.md).

  scripts/studies/other_tokenizer.py text --from work/quality/text      a part of the quality study's text, compressed
  scripts/studies/other_tokenizer.py run --profile gpu --program build/release/apps/distill/distill --jobs 8

`run` trains two byte-level BPE tokenizers on the text, of other sizes, a teacher with each (one of them is the
student's), and students of every row with every seed; a row's learning rate is the one of three with the lowest
held-out cross-entropy after a quarter of the steps, with the first seed. All rows read the same text with the same
batches. Cross-entropies are of held-out documents, in nats for each byte of the text, with which models of different
tokenizers compare. What is done is not done again: the same command continues. It needs `tokenizers` and `numpy`.
"""

import script_path

import json
import lzma
import os
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shared import runs
from shared.command_line import argument_parser, at_least, fail
from token_shards import shard_file

ROOT = Path(__file__).resolve().parents[2]
SPECIAL = ["<|end|>", "<|begin|>"]
LLAMA_3 = (  # its pattern
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Profile:
    device: str
    dtype: str
    seq_len: int
    vocabularies: dict  # of the student's tokenizer, and the teacher's
    student: dict  # shape
    teacher: dict
    teacher_steps: int
    steps: int
    batch: int  # sequences
    teacher_batch: int
    lrs: tuple
    teacher_lr: float
    seeds: tuple


def shape(layers, hidden, heads, kv_heads, intermediate):
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
    }


PROFILES = {
    "gpu": Profile(
        "cuda",
        "bfloat16",
        512,
        {"student": 8192, "teacher": 16384},
        shape(6, 256, 4, 2, 768),
        shape(12, 512, 8, 4, 1408),
        teacher_steps=900,
        steps=320,
        batch=32,
        teacher_batch=64,
        lrs=(1e-3, 2e-3, 4e-3),
        teacher_lr=1e-3,
        seeds=(1, 2, 3),
    ),
    "cpu": Profile(
        "cpu",
        "float32",
        128,
        {"student": 600, "teacher": 1500},
        shape(2, 64, 4, 2, 192),
        shape(3, 128, 4, 2, 384),
        teacher_steps=700,
        steps=600,
        batch=8,
        teacher_batch=16,
        lrs=(4e-3,),
        teacher_lr=3e-3,
        seeds=(1, 2, 3),
    ),
    "test": Profile(
        "cpu",
        "float32",
        64,
        {"student": 300, "teacher": 400},
        shape(1, 32, 2, 1, 64),
        shape(1, 32, 2, 1, 64),
        teacher_steps=3,
        steps=4,
        batch=2,
        teacher_batch=2,
        lrs=(1e-3,),
        teacher_lr=1e-3,
        seeds=(1,),
    ),
}

CONFIG = {  # of every run
    "data": {"packing": "pack"},
    "optimizer": {"beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "max_grad_norm": 1.0},
    "scheduler": {"type": "cosine", "min_lr_ratio": 0.1},
}
TEACHER_SEED = 7
LAST_STEP = ("boundary_share", "span_share", "span_loss", "teacher_dropped_mass", "forward_kl", "soft")  # in a result
MIX = {"divergence": "forward_kl", "hard_weight": 0.5, "soft_weight": 0.5}
ROWS = {  # (title, the teacher's tokenizer, loss)
    "labels": ("labels only", None, {"divergence": "none", "hard_weight": 1}),
    "starts": ("other tokenizer: all boundaries", "teacher", MIX | {"span_weight": 0, "span_starts": True}),
    "boundaries": ("other tokenizer: boundaries without span starts", "teacher", MIX | {"span_weight": 0}),
    "spans_1": ("the same, and spans with loss.span_temperature 1", "teacher", MIX | {"span_temperature": 1}),
    "spans": ("the same, and spans", "teacher", MIX),
    "same": ("a teacher with the student's tokenizer", "student", MIX),
}


def make_text(args):
    """Whole documents of the study's text, evenly over it, and its held-out ones."""
    from quality.sources import KINDS  # reads YAML, which a machine that only runs may lack

    args.output.mkdir(parents=True, exist_ok=True)
    lines = (args.source / "train.jsonl").read_text().splitlines()
    total, wanted = sum(map(len, lines)), args.mb * 1e6
    order = np.random.default_rng(0).permutation(len(lines))
    chosen, size = [], 0
    for index in order.tolist():
        if size + len(lines[index]) <= wanted:
            chosen.append(index)
            size += len(lines[index])
    paths = [args.source / f"test-{kind}.jsonl" for kind in KINDS]
    held_out = [line for path in paths for line in path.read_text().splitlines()]
    for name, part in (("train", [lines[index] for index in sorted(chosen)]), ("eval", held_out)):
        with lzma.open(args.output / f"{name}.jsonl.xz", "wt", preset=6) as file:
            file.write("".join(line + "\n" for line in part))
    print(f"{args.output}: {len(chosen)} documents, {size / 1e6:.1f} of {total / 1e6:.1f} MB, {len(held_out)} held out")


class Study(runs.Runner):
    def __init__(self, args):
        super().__init__(args, PROFILES[args.profile], args.work / "runs", args.work / "results")
        self.args, self.work = args, args.work
        self.making_models = threading.Lock()

    # Inputs

    def tokenizer(self, name):
        """A tokenizer and a config.json of each model that has it."""
        folder = self.work / "tokenizers" / name
        if not (folder / "tokenizer.json").exists():
            from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

            texts = [json.loads(line)["text"] for line in self.lines("train")]
            tokenizer = Tokenizer(models.BPE())
            # Words are cut as GPT-2 does for the student, and as Llama 3 does for the teacher.
            byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "student")
            split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
            tokenizer.pre_tokenizer = byte_level if name == "student" else pre_tokenizers.Sequence([split, byte_level])
            tokenizer.decoder = decoders.ByteLevel()
            trainer = trainers.BpeTrainer(
                vocab_size=self.profile.vocabularies[name],
                special_tokens=SPECIAL,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            )
            # The two are of other parts of the text, so that the smaller one's merges are not the other's first ones.
            part = texts[0::4] if name == "student" else texts[2::4]
            tokenizer.train_from_iterator(part, trainer)
            folder.mkdir(parents=True, exist_ok=True)
            tokens = {"eos_token": SPECIAL[0], "bos_token": SPECIAL[1]}
            (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
            tokenizer.save(str(folder / "tokenizer.json"))
        return folder

    def lines(self, name):
        with lzma.open(self.args.text / f"{name}.jsonl.xz", "rt") as file:
            return file.read().splitlines()

    def tokens(self, name, text, tokenizer, teacher=None):
        """A folder of token shards; all bytes of the text have a target, since each part begins with <|begin|>."""
        output = self.work / "data" / name
        if not output.exists():
            source = self.work / f"{name}.jsonl"
            source.write_text("".join(line + "\n" for line in self.lines(text)))
            options = ["--bos", "always", "--quiet", "--workers", self.args.workers, "--shard-tokens", 10**9]
            if teacher:
                options += ["--teacher-tokenizer", teacher, "--part-tokens", self.profile.seq_len]
            script = ROOT / "scripts/tokenize.py"
            self.call(sys.executable, script, "--tokenizer", tokenizer, "--output", output, *options, source)
            source.unlink()
        return output

    def students_alone(self, name, folder, tokenizer):
        """The same documents without the teacher's texts, for a teacher that reads the student's."""
        output = self.work / "data" / name
        if not output.exists():
            (path,) = folder.glob("*.dtok")
            header, tokens, masks = shard_file.read(path)
            shard = shard_file.Shard(shard_file.ShardSpec(header["vocab_size"], header["tokenizer_hash"]))
            for document, in_loss in zip(tokens, masks, strict=True):
                shard.add(document, in_loss)
            output.mkdir(parents=True)
            shard.write(output / "shard-00000.dtok")
        return output

    def inputs(self):
        own, its = self.tokenizer("student"), self.tokenizer("teacher")
        self.data = {text: self.tokens(text, text, own, its) for text in ("train", "eval")}
        for text in ("train", "eval"):
            self.data[f"{text}-student"] = self.students_alone(f"{text}-student", self.data[text], own)
            self.data[f"{text}-teacher"] = self.of_teacher(f"{text}-teacher", self.data[text], its)
        self.bytes = sum(len(json.loads(line)["text"].encode()) for line in self.lines("eval"))

    def of_teacher(self, name, folder, tokenizer):
        """The same parts in the teacher's tokens, which it is trained and measured on."""
        output = self.work / "data" / name
        if not output.exists():
            (path,) = folder.glob("*.dtok")
            header, _, _ = shard_file.read(path)
            spec = shard_file.ShardSpec(header["teacher_vocab_size"], header["teacher_tokenizer_hash"])
            shard = shard_file.Shard(spec)
            for tokens, in_loss in shard_file.read_teacher(path):
                shard.add(tokens, in_loss)
            output.mkdir(parents=True)
            shard.write(output / "shard-00000.dtok")
        return output

    def described(self, kind, tokenizer):
        """The folder of a model without weights."""
        with self.making_models:  # several students have one folder
            folder = self.work / "models" / f"{kind}-{tokenizer}"
            if not folder.exists():
                files = self.tokenizer(tokenizer)
                described = getattr(self.profile, kind) | {
                    "architectures": ["LlamaForCausalLM"],
                    "model_type": "llama",
                    "vocab_size": json.loads((files / "tokenizer.json").read_text())["model"]["vocab"].__len__(),
                    "max_position_embeddings": self.profile.seq_len,
                    "rms_norm_eps": 1e-5,
                    "rope_theta": 10000.0,
                    "hidden_act": "silu",
                    "tie_word_embeddings": True,
                    "attention_bias": False,
                    "mlp_bias": False,
                    "initializer_range": 0.02,
                    "torch_dtype": "float32",
                    "bos_token_id": 1,
                    "eos_token_id": 0,
                }
                folder.mkdir(parents=True)
                (folder / "config.json").write_text(json.dumps(described))
                for path in files.iterdir():
                    (folder / path.name).write_bytes(path.read_bytes())
        return folder

    # Runs

    def measured(self, name, steps, keys, eval_data):
        """Trains a model, and returns its nats for each byte of held-out text, and figures of the last step."""
        keys = runs.settings(self.profile, steps, self.runs / name) | {"student.init": "random"} | keys
        records, _, seconds = self.train(name, runs.merged(CONFIG, keys))
        found = self.evaluate(self.model(name), eval_data)
        last = {one: records[-1][one] for one in LAST_STEP if records[-1].get(one) is not None}
        return {
            "name": name,
            "nats_per_byte": found["hard"] * found["valid_tokens"] / self.bytes,
            "hard": found["hard"],
            "valid_tokens": found["valid_tokens"],
            "bytes": self.bytes,
            "seconds": seconds,
            "tokens_per_second": statistics.median(record["tokens_per_second"] for record in records),
        } | last

    def teacher(self, tokenizer):
        profile = self.profile
        keys = {
            "student.path": str(self.described("teacher", tokenizer)),
            "data.train": [str(self.data[f"train-{tokenizer}"])],
            "data.seed": TEACHER_SEED,
            "train.seed": TEACHER_SEED,
            "train.micro_batch_size": min(profile.teacher_batch, 32),
            "train.global_batch_size": profile.teacher_batch,
            "optimizer.lr": profile.teacher_lr,
            "loss.divergence": "none",
            "loss.hard_weight": 1,
        }
        return self.measured(f"teacher-{tokenizer}", profile.teacher_steps, keys, self.data[f"eval-{tokenizer}"])

    def student(self, name, row, lr, seed, steps):
        _, tokenizer, loss = ROWS[row]
        keys = {
            "student.path": str(self.described("student", "student")),
            "data.train": [str(self.data["train-student" if tokenizer == "student" else "train"])],
            "data.seed": seed,
            "train.seed": seed,
            "optimizer.lr": lr,
        }
        keys |= {f"loss.{key}": value for key, value in loss.items()}
        if tokenizer is not None:
            keys["teacher.path"] = str(self.model(f"teacher-{tokenizer}"))
        if tokenizer == "teacher":
            keys |= {"teacher.alignment": "bytes", "data.teacher_seq_len": self.profile.seq_len}
        return self.measured(name, steps, keys, self.data["eval-student"])

    def students(self, cells, steps, prefix=""):
        """The results of students, {(row, learning rate, seed): result}."""
        names = {cell: "{}{}-lr{:g}-s{}".format(prefix, *cell) for cell in cells}

        def task(cell):
            return lambda: self.student(names[cell], *cell, steps)

        found = self.done({name: task(cell) for cell, name in names.items()})
        return {cell: found[name] for cell, name in names.items()}

    def done(self, tasks):
        return self.do(tasks, lambda result: f"{result['nats_per_byte']:.4f} nats a byte, ")

    def run(self):
        began = time.time()
        self.inputs()
        print(f"inputs: {time.time() - began:.1f} s", flush=True)
        names = {one: f"teacher-{one}" for one in ("student", "teacher")}
        found = self.done({name: lambda one=one: self.teacher(one) for one, name in names.items()})
        teachers = {one: found[name] for one, name in names.items()}
        print(f"teachers: {time.time() - began:.1f} s", flush=True)
        profile, best = self.profile, dict.fromkeys(ROWS, self.profile.lrs[0])
        if len(profile.lrs) > 1:
            cells = [(row, lr, profile.seeds[0]) for row in ROWS for lr in profile.lrs]
            found = self.students(cells, max(1, profile.steps // 4), "search-")
            for row in ROWS:
                best[row] = min((one["nats_per_byte"], lr) for (name, lr, _), one in found.items() if name == row)[1]
            print(f"search: {time.time() - began:.1f} s", flush=True)
        found = self.students([(row, best[row], seed) for row in ROWS for seed in profile.seeds], profile.steps)
        results = {
            "profile": self.args.profile,
            "bytes": self.bytes,
            "teachers": teachers,
            "rows": {row: [one for (name, *_), one in found.items() if name == row] for row in ROWS},
            "lr": best,
        }
        (self.work / "results.json").write_text(json.dumps(results, indent=1))
        table = table_of(results)
        (self.work / "table.md").write_text(table)
        print(f"all: {time.time() - began:.1f} s\n\n{table}")


def table_of(results):
    """A Markdown table: means and standard deviations over the seeds."""
    lines = ["| row | learning rate | nats a byte | against labels | boundaries | in spans | dropped |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    base = statistics.mean(one["nats_per_byte"] for one in results["rows"]["labels"])
    for row, records in results["rows"].items():
        values = [one["nats_per_byte"] for one in records]
        mean = statistics.mean(values)
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        shares = [
            f"{100 * records[0][n]:.1f} %" if n in records[0] else ""
            for n in ("boundary_share", "span_share", "teacher_dropped_mass")
        ]
        change = "" if row == "labels" else f"{100 * (mean / base - 1):+.2f} %"
        cells = [ROWS[row][0], f"{results['lr'][row]:g}", f"{mean:.4f} ± {spread:.4f}", change, *shares]
        lines.append("| " + " | ".join(cells) + " |")
    for name, title in (
        ("teacher", "the teacher with another tokenizer"),
        ("student", "the teacher with the student's"),
    ):
        lines.append(f"| {title} | | {results['teachers'][name]['nats_per_byte']:.4f} | | | | |")
    return "\n".join(lines) + "\n"


def main():
    parser = argument_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    text = commands.add_parser("text", help="makes the text")
    text.add_argument("--from", dest="source", type=Path, required=True, help="folder of the quality study's text")
    text.add_argument("--output", type=Path, default=Path("work/other_tokenizer/text"))
    text.add_argument("--mb", type=float, default=24, help="megabytes to train on (default: 24)")
    run = commands.add_parser("run", help="trains and measures everything, and writes table.md and results.json")
    run.add_argument("--profile", choices=PROFILES, required=True)
    run.add_argument("--text", type=Path, default=Path("work/other_tokenizer/text"), help="what `text` has written")
    run.add_argument(
        "--work", type=Path, default=Path("work/other_tokenizer"), help="folder for everything that is made"
    )
    runs.add_arguments(run)
    run.add_argument("--workers", type=at_least(1), default=os.cpu_count(), help="processes that tokenise")
    args = parser.parse_args()
    if args.command == "text":
        make_text(args)
        return
    try:
        Study(args).run()
    except runs.RunFailed as error:
        fail(str(error))


if __name__ == "__main__":
    main()
