"""The tables of docs/quality.md, from results.

  scripts/quality.py report --doc docs/quality.md            # writes them into the page
  scripts/quality.py report --doc docs/quality.md --check    # fails if the page has others
  scripts/quality.py report --results work/quality/results-cpu --profile cpu --out tables.md
  scripts/quality.py check --results work/quality/results-cpu --profile cpu

A table stands in the page between the lines `<!-- table NAME of PROFILE -->` and `<!-- end of table -->`; the results
of a profile are in quality/PROFILE.json beside the page (docs/quality for README.md). docs/quality.md must have all
tables. `check` fails unless forward KL has a lower held-out KL than
labels alone, for every student and every kind of text.
"""

import math
import re
from pathlib import Path

from shared.command_line import fail

from .again import compared
from .calibration import PARSE_KEY
from .results import Figures, differences, mean, read, spread
from .sources import KINDS
from .study import TABLE, Study

BLOCK = re.compile(r"(<!-- table (\w+) of (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
NOTHING = "Not measured yet."
NONE = "-"


def add_check_arguments(parser, required=True):
    parser.add_argument("--results", type=Path, required=required, help="folder, or file of scripts/quality.py merge")
    parser.add_argument("--profile", default="gpu")
    parser.add_argument("--study", type=Path, default=TABLE)


def add_arguments(parser):
    add_check_arguments(parser, required=False)
    parser.add_argument("--doc", type=Path, help="page whose tables are written")
    parser.add_argument("--check", action="store_true", help="compare the page's tables instead")
    parser.add_argument("--out", type=Path, help="file for all tables")
    parser.add_argument("--plot", type=Path, help="PNG file for the plot of learning rates and tokens")


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


def titled(figures, rows_of):
    """[[student, row's title, ...]] for each case that has results; the student is named once."""
    table, last = [], None
    for student, row in figures.study.case_list():
        if not figures.finals(student, row.name):
            continue
        table.append([student if student != last else "", row.title, *rows_of(student, row.name)])
        last = student
    return table


def by_source(figures, metric, digits=3):
    def rows_of(student, row):
        return [number(figures.values(student, row, "tests", kind, metric), digits) for kind in KINDS]

    rows = titled(figures, rows_of)
    for name, title in [("teacher", "the teacher itself")]:
        model = figures.model(name)
        if model:
            rows.append(["", title, *[f"{model['tests'][kind][metric]:.{digits}f}" for kind in KINDS]])
    for name in figures.study.cases:
        model = figures.model(name)
        if model:
            cells = [f"{model['tests'][kind][metric]:.{digits}f}" for kind in KINDS]
            rows.append(["", f"student {name} before training", *cells])
    return markdown(["student", "row", *KINDS], rows, left=2)


def table_kl(figures):
    return by_source(figures, "forward_kl")


def table_cross_entropy(figures):
    return by_source(figures, "hard")


def weighted(result, metric):
    """Over all held-out tokens of a result's kinds of text."""
    tests = result["tests"].values()
    return sum(t[metric] * t["valid_tokens"] for t in tests) / sum(t["valid_tokens"] for t in tests)


def table_others(figures):
    def cells(results):
        measured = [result for result in results if "calibration_error" in result]
        parsed = [figures.with_measure(result, lambda one: PARSE_KEY in one) for result in results]
        return [
            percent([weighted(result, "agreement") for result in results]),
            percent([result["calibration_error"]["all"] for result in measured]),
            percent([result[PARSE_KEY] for result in parsed if result is not None]),
        ]

    def rows_of(student, row):
        results = figures.finals(student, row)
        return [f"{results[0]['lr']:g}", str(len(results)), *cells(results)]

    rows = titled(figures, rows_of)
    if figures.model("teacher"):
        rows.append(["", "the teacher itself", NONE, NONE, *cells([figures.model("teacher")])])
    for name in figures.study.cases:
        if figures.model(name):
            rows.append(["", f"student {name} before training", NONE, NONE, *cells([figures.model(name)])])
    head = [
        "student",
        "row",
        "learning rate",
        "seeds",
        "agreement, %",
        "calibration error, %",
        "continued functions that parse, %",
    ]
    return markdown(head, rows, left=2)


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


def kl_target(figures, student):
    """A KL on the validation text that every row with a teacher reaches, to one digit."""
    last = [
        curve[-1]["kl"] for _, row in figures.study.case_list() for curve in curves(figures, student, row.name) or []
    ]
    return math.ceil(10 * max(last)) / 10 if last else None


def curves(figures, student, row):
    """The evaluations with a KL of each seed's run; None unless all seeds have them."""
    knowing = [
        figures.with_measure(result, lambda one: "kl" in one["validation"][-1])
        for result in figures.finals(student, row)
    ]
    return None if None in knowing else [result["validation"] for result in knowing]


def table_reached(figures):
    rows = []
    for student in figures.study.cases:
        target = kl_target(figures, student)
        if target is None:
            continue
        for name in figures.study.cases[student]:
            row = figures.study.rows[name]
            tokens = [reached(curve, "kl", target) for curve in curves(figures, student, name) or []]
            if not tokens or None in tokens:
                continue
            speed = figures.speed(name) if student == (figures.study.speed or {}).get("student") else None
            seconds = f"{mean(tokens) / speed:.1f}" if speed else NONE
            millions = number([count / 1e6 for count in tokens], 2)
            rows.append([student, row.title, f"{target:.1f}", millions, f"{speed:.0f}" if speed else NONE, seconds])
    head = ["student", "row", "KL, nats", "million tokens", "tokens a second, alone on the GPU", "seconds"]
    return markdown(head, rows, left=2)


def budgets(figures):
    sizes = {r["tokens"] for r in figures.results.values() if r.get("purpose") in ("search", "scaling", "final")}
    return sorted(sizes)


def best(figures, tokens, student, row):
    """(cross-entropy on the validation text, learning rate) of the best run; None where there is none."""
    runs = figures.trained(tokens, student, row)
    return min(((run["validation"][-1]["ce"], lr) for lr, run in runs.items()), default=None)


def table_tokens(figures):
    """Lowest cross-entropy over the learning rates by tokens, and what labels need to reach that of forward KL."""
    student = next(iter(figures.study.cases))
    names = ["labels", "forward_kl"]
    sizes = [size for size in budgets(figures) if all(best(figures, size, student, name) for name in names)]
    labels = [{"tokens": math.log2(size), "ce": best(figures, size, student, "labels")[0]} for size in sizes]
    rows = []
    for size in sizes:
        cells = [best(figures, size, student, name) for name in names]
        at = reached(labels, "ce", cells[1][0])
        if at is None:
            needed = f"more than {sizes[-1] / 1e6:.1f}"
        elif at <= math.log2(sizes[0]):
            needed = f"at most {sizes[0] / 1e6:.1f}"
        else:
            needed = f"{2**at / 1e6:.1f} ({2**at / size:.2f} times)"
        rows.append([f"{size / 1e6:.2f}", *[f"{ce:.4f} at {lr:g}" for ce, lr in cells], needed])
    head = ["million tokens", "labels only", "forward KL", "million tokens that labels need for the same"]
    return markdown(head, rows)


def table_peers(figures):
    peers, rows = figures.peers(), []
    for (lr, program), results in peers.items():
        ends = [result["validation"][-1] for result in results]
        ours = {result["seed"]: result for result in peers.get((lr, "distill"), [])}
        gaps = [loss_gap(one, ours[one["seed"]]) for one in results if program != "distill" and one["seed"] in ours]
        alone = next((result for result in results if result["alone"]), None)
        rows.append(
            [
                f"{lr:g}",
                results[0]["title"],
                str(len(results)),
                *[number([end[key] for end in ends], 3) for key in ("kl", "ce")],
                f"{max(gaps):.1e}" if gaps else NONE,
                f"{alone['tokens_per_second']:.0f}" if alone else NONE,
                f"{alone['steps'] * alone['batch_tokens'] / alone['tokens_per_second']:.1f}" if alone else NONE,
            ]
        )
    head = [
        "learning rate",
        "program",
        "runs",
        "KL",
        "cross-entropy",
        "largest relative difference of a loss",
        "tokens a second",
        "seconds of steps",
    ]
    return markdown(head, rows, left=2)


def loss_gap(result, other):
    """Over the first 100 steps."""
    return max(abs(one - two) / two for one, two in list(zip(result["losses"], other["losses"]))[:100])


def table_again(figures):
    """The KL of rows that were trained again."""
    rows = [
        [student if kind == KINDS[0] else "", title if kind == KINDS[0] else "", kind, number(one, 4), number(two, 4)]
        for student, title, metric, kind, one, two, _ in compared(figures)
        if metric == "forward_kl"
    ]
    return markdown(["student", "row", "text", "KL", "KL again"], rows, left=3)


def table_head(figures):
    """The first student's main rows, for the README: over all kinds of held-out text together."""
    student, rows = next(iter(figures.study.cases)), []
    for row in figures.study.cases[student]:
        results = figures.finals(student, row)
        if row in HEAD_ROWS and results:
            cells = [number([weighted(result, metric) for result in results], 3) for metric in ("forward_kl", "hard")]
            agreement = percent([weighted(result, "agreement") for result in results])
            rows.append([figures.study.rows[row].title, *cells, agreement])
    return markdown(["row", "KL to the teacher", "cross-entropy", "agreement, %"], rows)


HEAD_ROWS = ("labels", "forward_kl", "reverse_kl", "jsd_05", "mix_50", "float8")
TABLES = {
    "head": table_head,
    "kl": table_kl,
    "cross_entropy": table_cross_entropy,
    "others": table_others,
    "reached": table_reached,
    "tokens": table_tokens,
    "peers": table_peers,
    "again": table_again,
}


def page_with_tables(page, text, study_table):
    """The page with the tables as they must be."""
    blocks = [(match[2], match[3]) for match in BLOCK.finditer(text)]
    unknown = [f"{name} of {profile}" for name, profile in blocks if name not in TABLES]
    needed = TABLES if page.name == "quality.md" else ()
    missing = [f"{name} of gpu" for name in needed if (name, "gpu") not in blocks]
    if unknown or missing:
        fail(f"{page}: missing tables: {', '.join(missing) or 'none'}; unknown ones: {', '.join(unknown) or 'none'}")
    folder = page.parent / ("docs/quality" if page.name == "README.md" else "quality")
    profiles = {profile for _, profile in blocks}
    figures = {profile: make_figures(profile, study_table, folder / f"{profile}.json") for profile in profiles}
    return BLOCK.sub(lambda match: match[1] + TABLES[match[2]](figures[match[3]]) + "\n" + match[4], text)


def plot(figures, path):
    """Cross-entropy against tokens, a line for each learning rate, and the lowest of each row."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    student = next(iter(figures.study.cases))
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, name in zip(axes, ("labels", "forward_kl")):
        for lr in figures.study.lrs:
            points = []
            for size in budgets(figures):
                runs = figures.trained(size, student, name)
                if lr in runs:
                    points.append((size, runs[lr]["validation"][-1]["ce"]))
            if points:
                axis.plot(*zip(*points), marker="o", label=f"learning rate {lr:g}")
        axis.set_xscale("log", base=2)
        axis.set_xlabel("training tokens")
        axis.set_title(f"{figures.study.rows[name].title}, student {student}")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("cross-entropy on the validation text, nats")
    axes[1].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def make_figures(profile, study_table, results):
    try:
        study = Study(profile, table=study_table)
    except (ValueError, OSError) as error:
        fail(error)
    return Figures(study, read(results))


def write_page(args):
    text = args.doc.read_text()
    new = page_with_tables(args.doc, text, args.study)
    if args.check and new != text:
        fail(f"{args.doc}: a table is not the one of the results; run the same command without --check")
    if not args.check:
        args.doc.write_text(new)


def main(args):
    if (args.doc is None) == (args.results is None):
        fail("expected one of --doc and --results")
    if args.doc:
        write_page(args)
        return
    figures = make_figures(args.profile, args.study, args.results)
    tables = "\n\n".join(f"{name}\n\n{table(figures)}" for name, table in TABLES.items()) + "\n"
    if args.out:
        args.out.write_text(tables)
    if args.plot:
        plot(figures, args.plot)
    print(tables)


def check(args):
    """Whether distillation helps: for each student and kind of text, a lower KL to the teacher than labels give."""
    figures = make_figures(args.profile, args.study, args.results)
    wrong, seen = [], 0
    for student, rows in figures.study.cases.items():
        if not {"labels", "forward_kl"} <= set(rows):
            continue
        for metric in ("forward_kl", "hard"):
            for kind, difference, size in differences(figures, student, "forward_kl", "labels", metric):
                seen += 1
                beyond = difference > size
                word = {"forward_kl": "KL", "hard": "cross-entropy"}[metric]
                print(
                    f"{student}, {kind}: {word} of labels only minus that of forward KL: {difference:.4f} nats, "
                    f"spread {size:.4f}{'' if beyond else ': not beyond the spread'}"
                )
                if metric == "forward_kl" and not beyond:
                    wrong.append(f"{student}, {kind}")
    if not seen:
        fail(f"{args.results}: no student with results of both labels and forward_kl")
    if wrong:
        fail(f"forward KL does not beat labels only in KL to the teacher: {'; '.join(wrong)}")
