"""Makes the students of study.yaml from the teacher.

scripts/studies/quality.py students --work work/quality
"""

from pathlib import Path

from .pieces import make_student
from .study import TABLE, Study


def add_arguments(parser):
    parser.add_argument("--work", type=Path, default=Path("work/quality"), help="folder with teacher and text")
    parser.add_argument("--study", type=Path, default=TABLE)


def main(args):
    study = Study("gpu", table=args.study)
    for name in study.students:
        make_student(study, args.work, name, args.work / "text" / "train.jsonl")
