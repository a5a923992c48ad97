"""results.json and table.md of what has been trained and measured so far."""

import json
import statistics

from shared.runs import read_metrics

from .profiles import PROFILES, losses

WINDOW = 256  # steps


def collect(work):
    """{name: record}, with BLiMP's accuracies where they were measured."""
    records = {}
    for path in sorted((work / "results").glob("*.json")):
        records[path.stem] = json.loads(path.read_text())
        measured = work / "blimp" / path.name
        if measured.exists():
            records[path.stem]["blimp"] = json.loads(measured.read_text())
    return records


def _cell(values, digits):
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def _blimp(context, pairs, mean):
    return lambda record: record["blimp"][context][pairs][mean]


COLUMNS = (  # title, digits, the part of a record that it needs, its value
    ("dev loss, the four published files", 3, "dev", lambda one: one["dev"]["dev-published"]["hard"]),
    ("dev loss, the others", 3, "dev", lambda one: one["dev"]["dev-others"]["hard"]),
    ("BLiMP, the challenge's pairs, mean of 62 paradigms", 1, "blimp", _blimp("line", "kept", "paradigms")),
    ("the same, mean of 12 phenomena", 1, "blimp", _blimp("line", "kept", "phenomena")),
    ("the same, after `</s>`", 1, "blimp", _blimp("mark", "kept", "phenomena")),
    ("BLiMP, all pairs, mean of 67 paradigms", 1, "blimp", _blimp("line", "all", "paradigms")),
)


def table(records):
    """Markdown: means and standard deviations over the seeds."""
    lines = ["| model | seeds | " + " | ".join(title for title, *_ in COLUMNS) + " |"]
    lines.append("| --- | ---: |" + " ---: |" * len(COLUMNS))
    rows = [("teacher, Llama-360M, labels only", [records[name] for name in records if name == "teacher"])]
    for row in ("labels", "text", "code"):
        of_row = [one for name, one in records.items() if name.rpartition("-s")[0] == row]
        rows.append((f"Llama-58M, {losses(1)[row][0]}", of_row))
    for title, found in rows:
        cells = []
        for _, digits, part, value in COLUMNS:
            cells.append(_cell([value(one) for one in found if part in one], digits))
        if found:
            lines.append(f"| {title} | {len(found)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def epochs_of(work, profile):
    """{run of a student: (steps done, steps in all, [cross-entropy on the labels at the end of each epoch done])}

    The cross-entropy is a mean over the last WINDOW steps of the epoch, of the very tokens that are trained on. In the
    first epoch the student has not read them before. Students with one seed have the same tokens in the same steps.
    """
    found = {}
    for folder in sorted((work / "runs").glob("*-s*/")):
        sessions = (folder / "sessions.jsonl").read_text().splitlines()
        total = json.loads(sessions[0])["total_steps"]
        steps = {line["step"]: line["hard"] for line in read_metrics(folder)[0]}
        epoch, done = total / PROFILES[profile].student.epochs, max(steps, default=0)
        ends = [int(epoch * (one + 1)) for one in range(int(done / epoch))]
        parts = [[steps[step] for step in steps if end - min(WINDOW, epoch) < step <= end] for end in ends]
        found[folder.name] = done, total, [statistics.mean(part) for part in parts]
    return found


def epochs_table(found):
    """Markdown of what `epochs_of` returns: unfinished runs are in it, too."""
    most = max((len(values) for _, _, values in found.values()), default=0)
    titles = [f"epoch {one + 1}" for one in range(most)]
    lines = ["| student | seed | steps done | " + " | ".join(titles) + " |"]
    lines.append("| --- | ---: | ---: |" + " ---: |" * most)
    for row in ("labels", "text", "code"):
        for name, (done, total, values) in found.items():
            of, _, seed = name.rpartition("-s")
            if of == row:
                cells = [f"{value:.3f}" for value in values] + ["-"] * (most - len(values))
                lines.append(f"| {losses(1)[row][0]} | {seed} | {done} of {total} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def write(work, profile):
    records = collect(work)
    work.mkdir(parents=True, exist_ok=True)
    (work / "results.json").write_text(json.dumps(records, indent=1))
    made = table(records)
    found = epochs_of(work, profile)
    if any(values for _, _, values in found.values()):
        made += f"\nCross-entropy of the labels while training, in the last {WINDOW} steps of each epoch:\n\n"
        made += epochs_table(found)
    (work / "table.md").write_text(made)
    print(made, end="")
