"""The tables of docs/quality.md, from results.

  scripts/studies/quality.py report --doc docs/quality.md            # writes them into the page
  scripts/studies/quality.py report --doc docs/quality.md --check    # fails if the page has others
  scripts/studies/quality.py report --results work/quality/results-cpu --profile cpu --out tables.md
  scripts/studies/quality.py check --results work/quality/results-cpu --profile cpu

A table stands in the page between the lines `<!-- table NAME of PROFILE -->` and `<!-- end of table -->`; the results
of a profile are in quality/PROFILE.json beside the page (docs/quality for README.md). docs/quality.md must have all
tables that the results fill, but for `head`, which is for README.md. `check` fails unless forward KL has a lower
held-out KL than labels alone, for every student and every kind of text.
"""

import math
import re
from pathlib import Path

from shared.command_line import fail

from . import experts, privileged, several
from .calibration import PARSE_KEY
from .cells import NONE, NOTHING, markdown, number, percent
from .results import Figures, differences, mean, read
from .scaling import reached, table_tokens
from .sources import KINDS
from .study import TABLE, Study

BLOCK = re.compile(r"(<!-- table (\w+) of (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def add_check_arguments(parser, required=True):
    parser.add_argument("--results", type=Path, required=required, help="folder, or file of quality.py merge")
    parser.add_argument("--profile", default="gpu")
    parser.add_argument("--study", type=Path, default=TABLE)


def add_arguments(parser):
    add_check_arguments(parser, required=False)
    parser.add_argument("--doc", type=Path, help="page whose tables are written")
    parser.add_argument("--check", action="store_true", help="compare the page's tables instead")
    parser.add_argument("--out", type=Path, help="file for all tables")


def titled(figures, rows_of, without=()):
    """[[student, row's title, ...]] for each case that has results; the student is named once."""
    table, last = [], None
    for student, row in figures.study.case_list():
        if row.name in without or not figures.finals(student, row.name):
            continue
        table.append([student if student != last else "", row.title, *rows_of(student, row.name)])
        last = student
    return table


def untrained(figures):
    """[(student, title, measures)] of the models that the study starts from."""
    known = [(NONE, "the teacher itself", figures.model("teacher"))]
    known += [(name, "before training", figures.model(name)) for name in figures.study.cases]
    return [line for line in known if line[2]]


def by_source(figures, metric, digits=3):
    def rows_of(student, row):
        return [number(figures.values(student, row, "tests", kind, metric), digits) for kind in KINDS]

    rows = titled(figures, rows_of)
    for student, title, model in untrained(figures):
        rows.append([student, title, *[f"{model['tests'][kind][metric]:.{digits}f}" for kind in KINDS]])
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
    for student, title, model in untrained(figures):
        rows.append([student, title, NONE, NONE, *cells([model])])
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
            known = curves(figures, student, name) or []
            tokens = [reached(curve, "kl", target) for curve in known]
            if not tokens or None in tokens:
                continue
            speed = figures.speed(student, name)
            early = any(curve[0]["kl"] <= target for curve in known)  # before the first evaluation, nobody knows when
            seconds = "at most " * early + f"{mean(tokens) / speed:.1f}" if speed else NONE
            millions = "at most " * early + number([count / 1e6 for count in tokens], 2)
            rows.append([student, row.title, f"{target:.1f}", millions, f"{speed:.0f}" if speed else NONE, seconds])
    head = ["student", "row", "KL, nats", "million tokens", "tokens a second, alone on the GPU", "seconds"]
    return markdown(head, rows, left=2)


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


def table_second(figures):
    """What a second phase changes: on held-out text, and on what the student writes itself."""

    def cells(results):
        own = [result["own_words"] for result in results]
        return [
            *[number([weighted(result, metric) for result in results], 3) for metric in ("forward_kl", "hard")],
            *[number([one[metric] for one in own], 3) for metric in ("forward_kl", "reverse_kl")],
            *[percent([one[metric] for one in own]) for metric in ("agreement", "repeated_4grams")],
            percent([result[PARSE_KEY] for result in results]),
        ]

    rows = []
    for student in figures.study.students:
        if before := figures.phase("base", student):
            rows.append([student, "before the second phase", NONE, str(len(before)), *cells(before)])
        for row in figures.study.second_rows(student):
            for lr in figures.study.second["lrs"]:
                if results := figures.phase("second", student, row.name, lr):
                    rows.append(["", row.title, f"{lr:g}", str(len(results)), *cells(results)])
    head = ["student", "second phase", "learning rate", "seeds", "KL(teacher, student), text", "cross-entropy, text"]
    head += ["KL(teacher, student), own words", "KL(student, teacher), own words", "agreement, own words, %"]
    head += ["repeated 4-grams, %", "continued functions that parse, %"]
    return markdown(head, rows, left=2)


def of_purpose(figures, purpose, **wanted):
    """The results of a purpose with these values, in the order of their names."""
    return [
        result
        for _, result in sorted(figures.results.items())
        if result.get("purpose") == purpose and all(result[key] == value for key, value in wanted.items())
    ]


def table_several(figures):
    """Students of several domain teachers, and the teachers, on held-out text of each domain."""
    domains, rows = (figures.study.several or {}).get("domains", []), []
    for row, (title, _) in several.ROWS.items():
        if results := of_purpose(figures, "several", row=row):
            cells = [
                number([result["tests"][kind][metric] for result in results], 3)
                for metric in ("hard", "own_kl", "kl")
                for kind in domains
            ]
            rows.append(["student", title, str(len(results)), *cells])
    titles = {"general": "as it came", "both": "trained further on both"}
    for result in of_purpose(figures, "several_tests"):
        tests = [result["tests"][kind] for kind in domains]
        cells = [f"{one['hard']:.3f}" for one in tests] + [NONE] * len(domains)
        cells += [f"{one['forward_kl']:.3f}" for one in tests]
        title = titles.get(result["teacher"], f"trained further on {result['teacher']}")
        rows.append(["teacher", title, NONE, *cells])
    head = ["model", "row", "seeds"]
    for text in ("cross-entropy", "KL to the domain's teacher", "KL to the teacher as it came"):
        head += [f"{text}, {kind}" for kind in domains]
    return markdown(head, rows, left=2)


def table_privileged(figures):
    """KL of the student, which reads the plain prompt, to the teacher with a privileged one: before and after."""
    rows = []
    for kind, title in privileged.KINDS.items():
        for lr in (figures.study.privileged or {}).get("lrs", []):
            results = of_purpose(figures, "privileged", row=kind, lr=lr)
            if not results:
                continue
            ends = [(result["evaluations"][0], result["evaluations"][-1]) for result in results]
            cells = [number([pair[place]["forward_kl"] for pair in ends], 3) for place in (0, 1)]
            cells += [percent([1 - after["forward_kl"] / before["forward_kl"] for before, after in ends])]
            cells += [number([pair[place]["hard"] for pair in ends], 3) for place in (0, 1)]
            cells += [number([after["teacher_ce"] for _, after in ends], 3)]
            rows.append([title, f"{lr:g}", str(len(results)), *cells])
    head = ["what the teacher reads before the prompt", "learning rate", "seeds", "KL before", "KL after", "closed, %"]
    head += ["cross-entropy before", "after", "of the teacher"]
    return markdown(head, rows)


def by_kind(results):
    """Cells of KL and cross-entropy on each kind of text, and of the agreement."""
    cells = [
        number([result["tests"][kind][metric] for result in results], 3)
        for metric in ("forward_kl", "hard")
        for kind in KINDS
    ]
    return [*cells, percent([weighted(result, "agreement") for result in results])]


BY_KIND = [*[f"KL, {kind}" for kind in KINDS], *[f"cross-entropy, {kind}" for kind in KINDS], "agreement, %"]


def table_mixture(figures):
    """The mixture of experts, before it is trained and as the teacher, against the dense model that it is made of."""
    rows = []
    for model, title in experts.MIXTURES.items():
        if results := of_purpose(figures, "experts_model", model=model):
            rows.append([title, *by_kind(results)])
    return markdown(["mixture", *BY_KIND], rows)


def table_experts(figures):
    """Students with fewer experts, as pruned and trained, against the mixture."""
    rows, trained = [], False
    for student, names in (figures.study.experts or {}).get("cases", {}).items():
        title = experts.STUDENTS[student]
        if before := of_purpose(figures, "experts_model", model=student):
            rows.append([title, "before training", NONE, NONE, *by_kind(before), NONE])
            title = ""
        for name in names:
            if results := of_purpose(figures, "experts", student=student, row=name):
                head = [title, figures.study.rows[name].title, f"{results[0]['lr']:g}", str(len(results))]
                load = number([result["routers"]["load"] for result in results], 2)
                rows.append([*head, *by_kind(results), load])
                title, trained = "", True
    head = ["student", "row", "learning rate", "seeds", *BY_KIND, "busiest expert"]
    return markdown(head, rows, left=2) if trained else NOTHING


HEAD_ROWS = ("labels", "forward_kl", "reverse_kl", "jsd_05", "mix_50", "float8")
TABLES = {
    "head": table_head,
    "kl": table_kl,
    "cross_entropy": table_cross_entropy,
    "others": table_others,
    "reached": table_reached,
    "second": table_second,
    "tokens": table_tokens,
    "several": table_several,
    "privileged": table_privileged,
    "mixture": table_mixture,
    "experts": table_experts,
}


def page_with_tables(page, text, study_table):
    """The page with the tables as they must be."""
    blocks = [(match[2], match[3]) for match in BLOCK.finditer(text)]
    folder = page.parent / ("docs/quality" if page.name == "README.md" else "quality")
    profiles = {profile for _, profile in blocks} | {"gpu"}
    figures = {profile: make_figures(profile, study_table, folder / f"{profile}.json") for profile in profiles}
    needed = [name for name in TABLES if name != "head"] if page.name == "quality.md" else ()
    missing = [name for name in needed if (name, "gpu") not in blocks and TABLES[name](figures["gpu"]) != NOTHING]
    unknown = [f"{name} of {profile}" for name, profile in blocks if name not in TABLES]
    if unknown or missing:
        absent = ", ".join(f"{name} of gpu" for name in missing) or "none"
        fail(f"{page}: missing tables: {absent}; unknown ones: {', '.join(unknown) or 'none'}")
    return BLOCK.sub(lambda match: match[1] + TABLES[match[2]](figures[match[3]]) + "\n" + match[4], text)


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
                word = {"forward_kl": "KL", "hard": "cross-entropy"}[metric]
                note = ": labels are better" if difference < -size else ": not beyond the spread"
                print(
                    f"{student}, {kind}: {word} of labels only minus that of forward KL: {difference:.4f} nats, "
                    f"spread {size:.4f}{'' if difference > size else note}"
                )
                if metric == "forward_kl" and difference <= size:
                    wrong.append(f"{student}, {kind}")
    if not seen:
        fail(f"{args.results}: no student with results of both labels and forward_kl")
    if wrong:
        fail(f"forward KL does not beat labels only in KL to the teacher: {'; '.join(wrong)}")
