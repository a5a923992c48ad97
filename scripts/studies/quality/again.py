"""Compares rows that were trained again, on another machine say, with their published figures.

  scripts/studies/quality.py compare --results again --published docs/quality/gpu.json

A row's mean over the seeds must be within the published spread, for each kind of held-out text: no farther from the
published mean than the standard deviation over the published seeds. Fails if one is not.
"""

from pathlib import Path

from shared.command_line import fail

from .results import Figures, mean, read, spread
from .sources import KINDS
from .study import TABLE, Study

METRICS = {"forward_kl": "KL", "hard": "cross-entropy"}


def add_arguments(parser):
    parser.add_argument("--results", type=Path, required=True, help="folder or file with the runs of --again")
    parser.add_argument("--published", type=Path, required=True, help="merged results, docs/quality/gpu.json")
    parser.add_argument("--profile", default="gpu")
    parser.add_argument("--study", type=Path, default=TABLE)


def compared(figures):
    """[(student, row, metric, kind, published values, values again, whether they agree)] of rows with both."""
    found = []
    for student, row in figures.study.case_list():
        pairs = figures.pairs(student, row.name)
        for metric in METRICS if len(pairs) > 1 else ():
            for kind in KINDS:
                published, again = ([one["tests"][kind][metric] for one in side] for side in zip(*pairs))
                near = abs(mean(again) - mean(published)) <= spread(published)
                found.append((student, row.title, metric, kind, published, again, near))
    return found


def main(args):
    try:
        study = Study(args.profile, table=args.study)
    except (ValueError, OSError) as error:
        fail(error)
    figures = Figures(study, read(args.published) | read(args.results))
    lines = compared(figures)
    if not lines:
        fail(f"{args.results}: no row with at least two seeds of `run --again` that {args.published} has too")
    for student, title, metric, kind, published, again, near in lines:
        print(
            f"{student}, {title}, {kind}: {METRICS[metric]} {mean(again):.4f}, published {mean(published):.4f} with "
            f"spread {spread(published):.4f}: {'within' if near else 'NOT within'} it"
        )
    far = [f"{student}, {title}, {kind}" for student, title, _, kind, *_, near in lines if not near]
    if far:
        fail(f"not within the published spread: {'; '.join(dict.fromkeys(far))}")
