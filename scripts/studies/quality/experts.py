"""A mixture of experts, and students that have a half or a quarter of its experts: the runs of docs/quality.md on it.

  scripts/studies/quality.py experts --results work/quality/results-experts --jobs 8

The mixture is made of the study's teacher (upcycle.py) and trained on the study's text, to the dense model's
predictions and to labels; then it is the teacher. As scripts/prune_width.py does, students keep a half and a quarter of
each layer's experts, those that the routers use most on a text; a control has a half that was chosen at random. Each
row trains a student at the learning rate with the lower cross-entropy on the validation text after a quarter of the
steps, with the first seed; the control is trained at the rates of the students with as many experts. What the teacher
and the pruned students are before training is measured too.
"""

import json
from argparse import Namespace

import numpy as np

import prune_width
from prune_layers import derived_lists
from shared.runs import RunFailed, read_metrics
from shared.text_model import text_fields
from token_shards import shard_file

from . import training
from .results import read
from .small import SmallStudy
from .small import add_arguments as add_runner_arguments
from .sources import KINDS
from .upcycle import upcycle

CONTROL = "random"
MIXTURES = {"upcycled": "as it was made", "teacher": "trained: the teacher"}
STUDENTS = {
    "half": "half of the experts, those used most",
    "quarter": "a quarter of the experts, those used most",
    CONTROL: "half of the experts, chosen at random",
}
ROUTERS = ("load", "highest_load", "unused_experts", "entropy")  # of metrics.jsonl, after router_


def add_arguments(parser):
    add_runner_arguments(parser)


def routers(steps):
    """The means of the routers' numbers over the last tenth of the steps."""
    last = steps[-max(1, len(steps) // 10) :]
    return {name: training.short(float(np.mean([step[f"router_{name}"] for step in last]))) for name in ROUTERS}


class Experts(SmallStudy):
    def __init__(self, args):
        super().__init__(args)
        self.own = self.study.experts
        self.upcycled = self.folders.scratch / "experts" / "upcycled"
        self.teacher = self.model("experts-teacher")

    def count(self, student):
        """The number of a student's experts."""
        return self.own["experts"] // (4 if student == "quarter" else 2)

    def folder(self, student):
        return self.folders.scratch / "experts" / student

    def text(self):
        """[sequences, study.seq_len] ids: middles of documents, evenly over the first shard that is trained on."""
        import torch

        length, path = self.study.seq_len, training.token_shards(self.folders, 1)[0]
        documents = [document for document in shard_file.read(path)[1] if len(document) >= length]
        wanted = self.own["text_tokens"] // length
        if len(documents) < wanted:
            raise RunFailed(f"{path}: expected {wanted} documents of {length} tokens, found {len(documents)}")
        chosen = documents[:: len(documents) // wanted][:wanted]
        starts = [(len(document) - length) // 2 for document in chosen]
        rows = [document[start : start + length] for document, start in zip(chosen, starts, strict=True)]
        return torch.tensor(np.stack(rows).astype(np.int64))

    def make_mixture(self):
        if not self.upcycled.exists():
            upcycle(self.folders.teacher, self.upcycled, self.text(), self.own["experts"], self.own["per_token"], 0)

    def train_steps(self, name, steps, keys):
        """Trains, keeps the model, and returns the result with the routers' numbers."""
        result = self.trained(name, steps, keys, keep=True)
        return result | {"routers": routers(read_metrics(self.folders.run(name))[0])}

    def shards(self):
        return [str(shard) for shard in training.token_shards(self.folders, self.study.shards)]

    def train_teacher(self):
        keys = {
            "student.path": str(self.upcycled),
            "student.router_aux_loss": self.own["balance"],
            "teacher.path": str(self.folders.teacher),
            "data.train": self.shards(),
            "data.seed": 100,  # another order than the students'
            "optimizer.lr": self.own["teacher_lr"],
            **self.study.rows[self.own["teacher_row"]].set,
        }
        result = self.train_steps("experts-teacher", self.own["teacher_steps"], keys)
        return {"purpose": "experts_teacher"} | result

    def tests(self, model, teacher):
        return {kind: self.measured(model, teacher, self.folders.data(f"test-{kind}")) for kind in KINDS}

    def measure(self, model, folder, teacher):
        """Of a model that is not trained further."""
        return {"purpose": "experts_model", "model": model, "tests": self.tests(folder, teacher)}

    def make_students(self):
        """Makes those that are not there, as prune_width.py does; what the experts are used for is measured once."""
        missing = [student for student in STUDENTS if not self.folder(student).exists()]
        if not missing:
            return
        config = json.loads((self.teacher / "config.json").read_text())
        fields = text_fields(self.teacher, config)
        fields |= derived_lists(self.teacher, fields)
        model, _ = prune_width.load(self.teacher)
        contributions, tokens = prune_width.Contributions(model, fields), self.text()
        contributions.measure(model, tokens)
        layers = fields["num_hidden_layers"]
        nothing = {kind: [None] * layers for kind in ("kv_heads", "neurons")}
        for student in missing:
            count, rng = self.count(student), np.random.default_rng(0)
            if student == CONTROL:
                chosen = [sorted(rng.permutation(self.own["experts"])[:count].tolist()) for _ in range(layers)]
            else:
                chosen = [prune_width.largest(scores, count).tolist() for scores in contributions.experts]
            kept = {"layers": list(range(layers)), "experts": chosen, **nothing}
            args = Namespace(teacher=self.teacher, out=self.folder(student), experts=count)
            args.layers = args.kv_heads = args.intermediate = None  # all of them
            prune_width.write(args, config, fields, kept, tokens.numel())

    def keys(self, student, row, lr, seed):
        row = self.study.rows[row]
        keys = {
            "student.path": str(self.folder(student)),
            "data.train": self.shards(),
            "data.seed": seed,
            "train.seed": seed,
            "optimizer.lr": lr,
            **row.set,
        }
        return keys | ({"teacher.path": str(self.teacher)} if row.teacher else {})

    def search(self, student, row, lr):
        name, steps = search_name(student, row, lr), self.own["search_steps"]
        evaluation = {"data.eval": [str(self.folders.data("validation"))], "eval.every": steps}
        evaluation |= {"eval.batches": self.study.eval_batches, "teacher.path": str(self.teacher)}
        keys = self.keys(student, row, lr, self.study.seeds[0]) | evaluation | {"checkpoint.at_end": False}
        result = self.trained(name, steps, keys)
        return {"purpose": "experts_search", "student": student, "row": row, "lr": lr} | result

    def best_rate(self, student, row):
        """The rate with the lowest cross-entropy on the validation text."""
        found = read(self.folders.results)

        def cross_entropy(lr):
            return found[search_name(student, row, lr)]["evaluations"][-1]["hard"]

        return min(self.own["lrs"], key=cross_entropy)

    def final(self, student, row, lr, seed):
        name = f"experts-{student}-{row}-lr{lr:g}-s{seed}"
        result = self.train_steps(name, self.own["steps"], self.keys(student, row, lr, seed))
        result |= {"purpose": "experts", "student": student, "row": row, "lr": lr, "seed": seed}
        result["tests"] = self.tests(self.model(name), self.teacher)
        training.forget(self.folders, name)
        return result


def search_name(student, row, lr):
    return f"experts-search-{student}-{row}-lr{lr:g}"


def main(args):
    study = Experts(args)
    dense = study.folders.teacher
    study.make_mixture()
    study.do(
        {
            "experts-teacher": study.train_teacher,
            "experts-model-upcycled": lambda: study.measure("upcycled", study.upcycled, dense),
        }
    )
    study.make_students()
    models = {student: (study.folder(student), study.teacher) for student in STUDENTS}
    models["teacher"] = (study.teacher, dense)
    study.do(
        {
            f"experts-model-{model}": lambda model=model, folders=folders: study.measure(model, *folders)
            for model, folders in models.items()
        }
    )
    cases = [(student, row) for student, rows in study.own["cases"].items() for row in rows]
    searches = [(student, row, lr) for student, row in cases if student != CONTROL for lr in study.own["lrs"]]
    study.do({search_name(*search): lambda search=search: study.search(*search) for search in searches})
    rates = {(student, row): study.best_rate(student.replace(CONTROL, "half"), row) for student, row in cases}
    study.do(
        {
            f"experts-{student}-{row}-lr{rates[student, row]:g}-s{seed}": (
                lambda case=(student, row), seed=seed: study.final(*case, rates[case], seed)
            )
            for seed in study.study.seeds
            for student, row in cases
        }
    )
