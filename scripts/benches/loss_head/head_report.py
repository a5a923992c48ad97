"""The reports of the head's times: Markdown tables, and a picture."""

from loss_head.head_times import case_of_row, measured
from loss_head.report import pyplot


def table(rows):
    """The results as a Markdown table with a line for each case and implementation."""
    lines = ["| loss | N | V | Hs | Ht | cap | | ms | times the products | scratch, MiB |", "|" + " --- |" * 10]
    for row in measured(rows):
        case = case_of_row(row)
        peak = "" if row["extra_peak_mib"] is None else f"{row['extra_peak_mib']:.0f}"
        sizes = case.kind, case.tokens, case.vocab, case.hidden, case.teacher_hidden, case.softcap
        cells = [*map(str, sizes), row["name"], f"{row['ms']:.1f}", f"{row['ratio']:.3f}", peak]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


ALL_METRICS = ", all metrics"


def peers_table(report):
    """The results of --what table as a page of Markdown: a table with a section for each case, what was left out, the
    versions.

    Of the products alone, which were timed with several chunks, the best is shown. What computes all metrics too has
    its time and ratio in brackets behind those of the loss alone.
    """
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    lines = [
        f"{report['device']}, {report['arguments']['reps']} repetitions. {versions}.",
        "",
        "In brackets: with all metrics. Errors are relative, against fp64 on the same bf16 inputs"
        f"{of_tokens(report['arguments']['error_tokens'])}.",
        "",
        "| | ms | times the products | scratch, MiB | error of the loss | of d_hidden | of d_weight |",
        "|" + " --- |" * 7,
    ]
    rows = report["table"]
    for case in dict.fromkeys(map(case_of_row, rows)):
        of_case = {row["name"]: row for row in measured(rows) if case_of_row(row) == case}
        products = {name: of_case.pop(name) for name in list(of_case) if name.startswith("products alone")}
        best = min(products.values(), key=lambda row: row["ms"])
        lines.append(f"| **{case.models}: {case}**; products | {best['ms']:.1f} | 1 | | | | |")
        for name, row in of_case.items():
            if not name.endswith(ALL_METRICS):
                lines.append(line_of(name, row, of_case.get(name + ALL_METRICS)))
    lines += ["", *left_out_lines(rows), *report.get("not_begun", [])]
    return "\n".join(lines).rstrip() + "\n"


def of_tokens(tokens):
    return f", of the first {tokens} tokens" if tokens else ""


def line_of(name, row, with_metrics):
    """One implementation's line of peers_table."""

    def both(key, form):
        more = f" ({with_metrics[key]:{form}})" if with_metrics else ""
        return f"{row[key]:{form}}{more}"

    peak = "" if row["extra_peak_mib"] is None else f"{row['extra_peak_mib']:.0f}"
    found = row["errors"] or {}
    wrong = [f"{found[key]:.1e}" if key in found else "" for key in ("loss", "d_hidden", "d_weight")]
    return f"| {' | '.join([name, both('ms', '.1f'), both('ratio', '.3f'), peak, *wrong])} |"


def left_out_lines(rows):
    """A line for each implementation that was left out somewhere, by reason; it names the cases if they are not all
    that the implementation could do."""
    cases, possible = {}, {}
    for row in rows:
        case = case_of_row(row)
        possible.setdefault(row["name"], set()).add(case)
        if "left_out" in row:
            cases.setdefault((row["name"], row["left_out"]), []).append(case)
    for (name, why), where in cases.items():
        some = "; ".join(f"{case.models}, {case.kind}" for case in where)
        yield f"- {name}: not measured, {why}" + ("" if len(where) == len(possible[name]) else f" ({some})")


def plot(path, rows):
    """For each case, draws the times, and the ratio to the products over the scratch memory."""
    plt = pyplot()
    if plt is None:
        return
    rows = measured(rows)
    cases = list(dict.fromkeys(map(case_of_row, rows)))
    figure, axes = plt.subplots(len(cases), 2, figsize=(15, 3.2 * len(cases)), squeeze=False)
    for (times, memory), case in zip(axes, cases):
        of_case = [row for row in rows if case_of_row(row) == case]
        colours = [
            "tab:gray" if "products" in row["name"] else "tab:blue" if "distill" in row["name"] else "tab:orange"
            for row in of_case
        ]
        times.barh([row["name"] for row in of_case], [row["ms"] for row in of_case], color=colours)
        times.invert_yaxis()
        times.tick_params(axis="y", labelsize=7)
        times.set_xlabel("ms, forward + backward")
        times.set_title(str(case), fontsize=9)
        for row, colour in zip(of_case, colours):
            if row["extra_peak_mib"] is not None:
                memory.scatter(row["extra_peak_mib"], row["ratio"], color=colour)
                memory.annotate(row["name"], (row["extra_peak_mib"], row["ratio"]), fontsize=6)
        memory.axhline(1, color="tab:gray", linewidth=0.8)
        memory.set_xlabel("MiB beyond inputs and gradients")
        memory.set_ylabel("times the products")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def plot_widths(path, rows, device):
    """The share of the copy bandwidth over the vocabulary."""
    plt = pyplot()
    if plt is None:
        return
    figure, axis = plt.subplots(figsize=(11, 4))
    for kind, name in (("jsd", "JSD with labels"), ("ce", "cross-entropy")):
        axis.plot([row["v"] for row in rows], [100 * row[f"{kind}_of_copy"] for row in rows], linewidth=1, label=name)
    axis.set_ylim(0, 100)
    axis.set_xlabel("vocabulary")
    axis.set_ylabel("% of the copy bandwidth")
    axis.set_title(f"row kernel alone, fp32 logits, bf16 gradient, {device}", fontsize=9)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=90)
