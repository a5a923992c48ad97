"""Makes the students of study.yaml from the teacher.

scripts/studies/quality.py students --work work/quality
"""

import subprocess
import sys
from pathlib import Path

from .study import TABLE, Study


def add_arguments(parser):
    parser.add_argument("--work", type=Path, default=Path("work/quality"), help="folder with teacher and text")
    parser.add_argument("--study", type=Path, default=TABLE)


def main(args):
    study = Study("gpu", table=args.study)
    scripts, train_text = Path(__file__).resolve().parents[2], args.work / "text" / "train.jsonl"
    (args.work / "students").mkdir(parents=True, exist_ok=True)
    for name, student in study.students.items():
        arguments = [train_text if argument == "TRAIN_TEXT" else argument for argument in student["arguments"]]
        paths = ["--teacher", args.work / "teacher", "--out", args.work / "students" / name, "--force"]
        subprocess.run([sys.executable, scripts / student["script"], *map(str, paths + arguments)], check=True)
