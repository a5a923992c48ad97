"""docs/conformance.md from the results of the conformance study."""

import textwrap

from .cases import CASES, HIDDEN, SEQUENCES, TEACHER_HIDDEN, TOKENS, VOCAB
from .implementations import IMPLEMENTATIONS

INTRODUCTION = f"""# The same loss in several libraries

The same inputs through the distillation losses of several libraries, compared with fp64. One command makes an
environment of its own with the libraries, measures, and writes this page (CPU, fp32, about a minute after the
downloads); every table here is written by it, and the rows of distill are a test.

```bash
scripts/studies/conformance.sh
```

A case is a step of {SEQUENCES} sequences of {TOKENS} tokens with small random models (vocabulary {VOCAB}, hidden sizes
{HIDDEN} and {TEACHER_HIDDEN}). Its exact loss is the mean of the divergence over all targets of the step, whichever
micro-batch they are in. A cell says "exact" where loss and gradients (of hidden states and lm_head) agree with fp64 to
rounding, with the gradient's relative error. Otherwise it names the convention that the implementation follows to
rounding, or says "differs" with the relative error of the gradient. "-" is a loss that the library does not have.

Where a trainer knows the number of targets of the whole step (transformers' `num_items_in_batch`), the implementation
gets it. Where its loss is a mean of the micro-batch, the step is the mean over micro-batches, as transformers'
`Trainer` takes it.

A convention is not an error: a loss that is divided by all tokens trains like another learning rate, as long as every
step has the same share of targets. It matters where that share changes from step to step, where micro-batches have
different numbers of targets, or where results of two trainers are compared.
"""


def cell_text(cell):
    if cell is None:
        return "not installed"
    if "gradient_error" not in cell:
        return cell["text"]
    return f"{cell['text']}, {cell['gradient_error']:.0e}"


def table(rows):
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body))


def page(results):
    """The whole page; `results` are those of measure()."""
    found = results["results"]
    used = [one for one in IMPLEMENTATIONS if one.name in found]
    rows = [["case", *(one.name for one in used)]]
    for case in CASES:
        rows.append([case.name, *(cell_text(found[one.name]["cases"].get(case.name)) for one in used)])
    about = [["name", "version", "what is called", "its trainer divides by"]]
    for one in used:
        version = "this tree" if one.name == "distill" else f"{one.package} {found[one.name]['version']}"
        about.append([one.name, version, one.function, one.divides_by])
    meanings = "\n".join(
        textwrap.fill(f"- {case.name}: {case.meaning}", 120, subsequent_indent="  ") for case in CASES if case.meaning
    )
    return (
        f"{INTRODUCTION}\n## Results\n\n{table(rows)}\n\n## What was called\n\n{table(about)}\n\n"
        f"torch {results['torch']}, Python {results['python']}.\n\n## Cases\n\n{meanings}\n"
    )
