"""Two domain teachers for one student, against one general teacher: the runs of docs/quality.md about it.

  scripts/studies/quality.py several-data --work work/quality     # token shards of the domains, for the same text
  scripts/studies/quality.py several --results work/quality/results-several --jobs 8

Teachers are the study's teacher as it came, and that teacher trained further on labels: on each domain alone, and on
both with as many steps as these together. Each row trains the same student on the same text of both domains, half of
each step from either; with several teachers each document is judged by the teacher of its domain. Held-out text of each
domain then gives the student's cross-entropy, its KL to the domain's teacher and to the teacher as it came.
"""

import json
import subprocess
import sys
from pathlib import Path

from .corpus import read_jsonl
from .small import SmallStudy
from .small import add_arguments as add_runner_arguments
from .training import forget

SCRIPTS = Path(__file__).resolve().parents[2]
ROWS = {  # name: (title, its teachers; none: labels alone)
    "labels": ("labels only", ()),
    "general": ("one teacher, as it came", ("general",)),
    "both": ("one teacher, trained further on both domains", ("both",)),
    "domains": ("two teachers, each trained further on its domain", ("code", "prose")),
}


def add_data_arguments(parser):
    parser.add_argument("--work", type=Path, default=Path("work/quality"), help="folder of text and teacher")
    parser.add_argument("--domains", default="code,prose", metavar="KIND,...", help="kinds of text (default: both)")
    parser.add_argument("--eos-token", default="<|endoftext|>", help="of the teacher's tokenizer")
    parser.add_argument("--megabytes", type=float, default=18, help="text of each domain, at most")


def make_data(args):
    """data/domain-KIND: token shards of one kind of the text that is trained on, whose documents name it."""
    for kind in args.domains.split(","):
        path, left = args.work / f"domain-{kind}.jsonl", args.megabytes * 1e6
        with open(path, "w", encoding="utf-8") as file:
            for document in read_jsonl(args.work / "text" / "train.jsonl"):
                if document["source"].startswith(kind + "/") and left > 0:
                    left -= len(document["text"].encode())
                    record = {"text": document["text"], "teacher": kind}
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
        command = [sys.executable, SCRIPTS / "tokenize.py", "--tokenizer", args.work / "teacher", "--overwrite"]
        command += ["--quiet", "--eos-token", args.eos_token, "--output", args.work / "data" / f"domain-{kind}", path]
        subprocess.run([str(part) for part in command], check=True)
        path.unlink()


def add_arguments(parser):
    add_runner_arguments(parser)


class Several(SmallStudy):
    def __init__(self, args):
        super().__init__(args)
        self.own = self.study.several
        self.domains = list(self.own["domains"])

    def teacher(self, name):
        return self.folders.teacher if name == "general" else self.model(f"several-teacher-{name}")

    def text(self, kinds):
        return [str(self.folders.data(f"domain-{kind}")) for kind in kinds]

    def train_teacher(self, name):
        """Trains the study's teacher further on labels, on one domain or on both."""
        kinds = [name] if name in self.domains else self.domains
        keys = {
            "student.path": str(self.folders.teacher),
            "data.train": self.text(kinds),
            "data.seed": 100,  # another order than the students'
            "loss.divergence": "none",
            "loss.hard_weight": 1,
            "optimizer.lr": self.own["teacher_lr"],
        }
        run = f"several-teacher-{name}"
        result = self.trained(run, self.own["teacher_steps"] * len(kinds), keys, keep=True)
        return {"purpose": "several_teacher", "teacher": name} | result

    def measure_teacher(self, name):
        """Of a teacher, on each domain."""
        tests = {
            kind: self.measured(self.teacher(name), self.folders.teacher, self.folders.data(f"test-{kind}"))
            for kind in self.domains
        }
        return {"purpose": "several_tests", "teacher": name, "tests": tests}

    def student(self, row, seed):
        names = ROWS[row][1]
        keys = {
            "student.path": str(self.folders.student(self.own["student"])),
            "data.train": self.text(self.domains),
            "data.seed": seed,
            "train.seed": seed,
            "train.micro_batch_size": self.study.batch // 2,
            "optimizer.lr": self.own["lr"],
        }
        if not names:
            keys |= {"loss.divergence": "none", "loss.hard_weight": 1}
        elif len(names) == 1:
            keys["teacher.path"] = str(self.teacher(names[0]))
        name = f"several-{row}-s{seed}"
        several = [{"name": one, "path": str(self.teacher(one))} for one in names] if len(names) > 1 else ()
        result = self.trained(name, self.own["steps"], keys, several, keep=True)
        model = self.model(name)
        result |= {"purpose": "several", "row": row, "seed": seed, "tests": {}}
        for kind in self.domains:
            data = self.folders.data(f"test-{kind}")
            own, general = (self.measured(model, self.teacher(one), data) for one in (kind, "general"))
            result["tests"][kind] = {"hard": own["hard"], "own_kl": own["forward_kl"], "kl": general["forward_kl"]}
            result["tests"][kind]["valid_tokens"] = own["valid_tokens"]
        forget(self.folders, name)
        return result


def main(args):
    study = Several(args)
    teachers = ("both", *study.domains)
    study.do({f"several-teacher-{name}": lambda name=name: study.train_teacher(name) for name in teachers})
    tasks = {
        f"several-{row}-s{seed}": lambda row=row, seed=seed: study.student(row, seed)
        for seed in study.study.seeds
        for row in ROWS
    }
    tasks |= {f"several-tests-{name}": lambda name=name: study.measure_teacher(name) for name in ("general", *teachers)}
    study.do(tasks)
