"""A model that teaches itself: its teacher is the same model, with a privileged prompt before each completion.

  scripts/studies/quality.py privileged-data --work work/quality     # token shards, for each kind of privileged prompt
  scripts/studies/quality.py privileged --results work/quality/results-privileged --jobs 8

Documents are Python functions of the study's text: the prompt is the head of a function up to its docstring, the
completion its body. What the teacher reads before the prompt is one of KINDS. Adapters are trained by the recipe of
configs/lora.yaml; before and after are the KL(teacher, student) of the student, which reads the prompt alone, to the
teacher, which reads the privileged prompt, on functions of held-out files.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

from shared.documents import hash_fraction

from .corpus import read_jsonl
from .prompts import parsed
from .small import SmallStudy
from .small import add_arguments as add_runner_arguments

SCRIPTS = Path(__file__).resolve().parents[2]
HELD_OUT = 0.1  # of the files
MOST_CHARACTERS = {"prompt": 500, "completion": 700, "context": 900}
EXAMPLE = '''# Complete each function in the style of this one: short names, early returns, no comments.
def clamp(value, low, high):
    """Returns the number within [low, high] that is nearest to a value."""
    if value < low:
        return low
    return min(value, high)


'''
KINDS = {
    "example": "an instruction and an example, the same for all",
    "context": "what stands before the function in its file",
    "answer": "the answer",
}


def functions(text):
    """(what stands before it, head, body) of the functions at the top of a Python file that have a docstring."""
    tree = parsed(text)
    lines = text.splitlines(keepends=True)
    for node in tree.body if tree is not None else ():
        if not isinstance(node, ast.FunctionDef) or ast.get_docstring(node) is None or len(node.body) < 2:
            continue
        begin, split = node.lineno - 1, node.body[0].end_lineno
        head, body = "".join(lines[begin:split]), "".join(lines[split : node.end_lineno])
        if len(head) <= MOST_CHARACTERS["prompt"] and 80 <= len(body) <= MOST_CHARACTERS["completion"]:
            yield "".join(lines[:begin])[-MOST_CHARACTERS["context"] :], head, body


def teacher_prompt(kind, context, head, body):
    before = {"example": EXAMPLE, "context": context, "answer": f"{head}{body}\n\n# The same function again:\n"}
    return before[kind] + head


def add_data_arguments(parser):
    parser.add_argument("--work", type=Path, default=Path("work/quality"), help="folder of text and teacher")
    parser.add_argument("--eos-token", default="<|endoftext|>", help="of the teacher's tokenizer")
    parser.add_argument("--train", type=int, default=7000, help="functions to train on, at most")
    parser.add_argument("--eval", type=int, default=300, help="functions of held-out files, at most")


def make_data(args):
    """data/privileged-KIND-train and -eval: the same functions for each kind, with what the teacher reads."""
    found = {"train": {}, "eval": {}}
    for document in read_jsonl(args.work / "text" / "train.jsonl"):
        name = document["source"]
        part = "eval" if hash_fraction(name, "privileged files") < HELD_OUT else "train"
        for context, head, body in functions(document["text"]) if name.startswith("code/") else ():
            found[part].setdefault(head + body, (context, head, body))
    for key in found["train"].keys() & found["eval"].keys():  # a function that is in files of both
        del found["eval"][key]
    for part, most in (("train", args.train), ("eval", args.eval)):
        ordered = sorted(found[part], key=lambda key: hash_fraction(key, "privileged"))
        chosen = [found[part][key] for key in ordered[:most]]
        print(f"{part}: {len(chosen)} of {len(ordered)} functions", flush=True)
        for kind in KINDS:
            path = args.work / f"privileged-{kind}.jsonl"
            with open(path, "w", encoding="utf-8") as file:
                for context, head, body in chosen:
                    record = {"prompt": head, "completion": body}
                    record["teacher_prompt"] = teacher_prompt(kind, context, head, body)
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
            command = [sys.executable, SCRIPTS / "tokenize.py", "--tokenizer", args.work / "teacher", "--overwrite"]
            command += ["--quiet", "--eos-token", args.eos_token, "--max-bad", "5%"]
            command += ["--output", args.work / "data" / f"privileged-{kind}-{part}", path]
            subprocess.run([str(part) for part in command], check=True)
            path.unlink()


def add_arguments(parser):
    add_runner_arguments(parser)


class Privileged(SmallStudy):
    def one(self, kind, lr, seed):
        own, teacher = self.study.privileged, str(self.folders.teacher)
        name = f"privileged-{kind}-lr{lr:g}-s{seed}"
        keys = {
            "student.path": teacher,
            "student.lora.rank": own["rank"],
            "student.lora.alpha": own["alpha"],
            "student.lora.dropout": own["dropout"],
            "teacher.path": teacher,
            "data.train": [str(self.folders.data(f"privileged-{kind}-train"))],
            "data.eval": [str(self.folders.data(f"privileged-{kind}-eval"))],
            "data.teacher_seq_len": own["teacher_seq_len"],
            "data.seed": seed,
            "train.seed": seed,
            "optimizer.lr": lr,
            "optimizer.weight_decay": 0,
            "eval.every": own["steps"],
            "eval.at_start": True,
            "checkpoint.at_end": False,
        }
        result = self.trained(name, own["steps"], keys)
        return {"purpose": "privileged", "row": kind, "lr": lr, "seed": seed} | result


def main(args):
    study = Privileged(args)
    study.do(
        {
            f"privileged-{kind}-lr{lr:g}-s{seed}": lambda kind=kind, lr=lr, seed=seed: study.one(kind, lr, seed)
            for seed in study.study.seeds
            for lr in study.study.privileged["lrs"]
            for kind in KINDS
        }
    )
