"""Markdown tables and their cells."""

from .results import mean, spread

NOTHING = "Not measured yet."
NONE = "-"


def number(values, digits):
    """Mean and spread of the seeds: `1.234 ± 0.005`."""
    if not values:
        return NONE
    text = f"{mean(values):.{digits}f}"
    return text if spread(values) is None else f"{text} ± {spread(values):.{digits}f}"


def percent(values):
    return number([100 * value for value in values], 1)


def markdown(head, rows, left=1):
    """A table whose first `left` columns are text."""
    if not rows:
        return NOTHING
    marks = ["---" if column < left else "---:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in [head, marks, *rows])
