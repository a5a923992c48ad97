#!/usr/bin/env python3
"""Prints a table that compares several evaluations, from the files that `distill eval --json` writes.

The column "change" compares the first two evaluations. With --require-kl-drop the script fails unless the second is
better.

  scripts/compare_eval.py before=before.json after=after.json teacher=teacher.json --require-kl-drop 40
"""

import script_path

import json
import math

from shared.command_line import argument_parser, fail, name_and_path

# (label, key of metrics.jsonl, transformation, decimals)
ROWS = (
    ("forward KL(teacher||student), nats", "forward_kl", None, 4),
    ("reverse KL(student||teacher), nats", "reverse_kl", None, 4),
    ("cross-entropy on the text, nats", "hard", None, 4),
    ("perplexity", "hard", math.exp, 2),
    ("top-1 agreement with the teacher, %", "agreement", lambda share: 100 * share, 2),
    ("top-1 accuracy on the text, %", "accuracy", lambda share: 100 * share, 2),
    ("student's entropy, nats", "student_entropy", None, 4),
    ("teacher's entropy, nats", "teacher_entropy", None, 4),
    ("tokens", "valid_tokens", None, 0),
)


def read(argument):
    name, path = name_and_path(argument, "FILE")
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError) as error:
        fail(f"{path}: {error}")
    for label, key, _, _ in ROWS:
        if not isinstance(values, dict) or not isinstance(values.get(key), (int, float)):
            fail(f"{path}: no number {key!r} (for {label!r}); expected what `distill eval --json` prints")
    return name, values


def change(before, after):
    return f"{100 * (after - before) / before:+.1f} %" if before and before != after else ""


def table(evaluations):
    """The lines of the table; the column after the first two evaluations is the change between them."""
    names = [name for name, _ in evaluations]
    lines = [["", *names[:2], "change", *names[2:]]]
    for label, key, transform, decimals in ROWS:
        numbers = [transform(values[key]) if transform else values[key] for _, values in evaluations]
        cells = [f"{number:,.{decimals}f}" for number in numbers]
        moved = change(*(round(number, decimals + 2) for number in numbers[:2]))
        lines.append([label, *cells[:2], moved, *cells[2:]])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))]).rstrip()
        for line in lines
    ]


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("evaluations", nargs="+", metavar="NAME=FILE", help="at least two")
    parser.add_argument(
        "--require-kl-drop",
        type=float,
        metavar="PERCENT",
        help="fail unless, in the second evaluation, forward KL is PERCENT lower and cross-entropy is lower",
    )
    args = parser.parse_args()
    if len(args.evaluations) < 2:
        fail("expected at least two evaluations to compare")
    evaluations = [read(argument) for argument in args.evaluations]
    (_, before), (_, after) = evaluations[:2]
    for name, values in evaluations[1:]:
        if values["valid_tokens"] != before["valid_tokens"]:
            fail(
                f"{name} was evaluated on {values['valid_tokens']} tokens, {evaluations[0][0]} on "
                f"{before['valid_tokens']}: not the same set"
            )
    print("\n".join(table(evaluations)))
    if args.require_kl_drop is not None:
        drop = 100 * (1 - after["forward_kl"] / before["forward_kl"]) if before["forward_kl"] > 0 else -math.inf
        if not drop >= args.require_kl_drop:
            fail(f"forward KL fell by {drop:.1f} %, expected at least {args.require_kl_drop:g} %")
        if not after["hard"] < before["hard"]:
            fail(f"cross-entropy did not fall: {before['hard']:.4f} before, {after['hard']:.4f} after")


if __name__ == "__main__":
    main()
