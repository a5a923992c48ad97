"""What the number of training tokens and the learning rate do to the cross-entropy on the validation text."""

import math

from .cells import NONE, markdown


def reached(points, key, value):
    """Tokens at which a falling curve of evaluations reaches `value`, interpolated; None if it does not."""
    before = None
    for point in points:
        if key not in point:
            return None
        if point[key] <= value:
            if before is None:
                return point["tokens"]
            share = (before[key] - value) / (before[key] - point[key])
            return before["tokens"] + share * (point["tokens"] - before["tokens"])
        before = point
    return None


def compared_rows(figures):
    """Those of `scaling` in study.yaml, of which the first is labels only; none where a profile has none."""
    return figures.study.scaling["rows"] if figures.study.scaling else []


def rates(figures, tokens, row):
    """{learning rate: last evaluation} of the runs of the first seed."""
    runs = figures.trained(tokens, figures.study.scaling["student"], row)
    return {lr: runs[lr]["validation"][-1] for lr in sorted(runs)}


def budgets(figures):
    """The numbers of tokens that labels were trained with; none where the profile compares none."""
    if not figures.study.scaling:
        return []
    sizes = {r["tokens"] for r in figures.results.values() if r.get("purpose") in ("search", "scaling", "final")}
    return [size for size in sorted(sizes) if rates(figures, size, "labels")]


def best(figures, tokens, row):
    """(learning rate, last evaluation) with the lowest cross-entropy."""
    return min(rates(figures, tokens, row).items(), key=lambda item: item[1]["ce"])


def labels_needed(figures, ce, tokens):
    """The cell that says how many tokens of labels only give `ce`, which another row has after `tokens`."""
    sizes = budgets(figures)
    curve = [{"tokens": math.log2(size), "ce": best(figures, size, "labels")[1]["ce"]} for size in sizes]
    at = reached(curve, "ce", ce)
    if at is None:
        return f"more than {sizes[-1] / 1e6:.1f}"
    if at <= math.log2(sizes[0]):
        return f"at most {sizes[0] / 1e6:.1f}"
    return f"{2**at / 1e6:.1f} ({2**at / tokens:.2f} times)"


def table_tokens(figures):
    """Lowest cross-entropy over the learning rates by tokens, and what labels need to reach that of other rows."""
    rows = []
    for size in budgets(figures):
        for name in compared_rows(figures):
            found = rates(figures, size, name)
            if not found:
                continue
            lr, end = best(figures, size, name)
            rows.append(
                [
                    f"{size / 1e6:.2f}" if name == "labels" else "",
                    figures.study.rows[name].title,
                    f"{lr:g}, of {len(found)}",
                    f"{end['ce']:.4f}",
                    f"{end['kl']:.4f}" if "kl" in end else NONE,
                    NONE if name == "labels" else labels_needed(figures, end["ce"], size),
                ]
            )
    head = [
        "million tokens",
        "row",
        "best learning rate, of how many",
        "cross-entropy",
        "KL",
        "million tokens that labels need for the same cross-entropy",
    ]
    return markdown(head, rows, left=2)
