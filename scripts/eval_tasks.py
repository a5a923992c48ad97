#!/usr/bin/env python3
"""Zero-shot tasks of lm-evaluation-harness on saved model folders, side by side.

  scripts/eval_tasks.py before=work/quality/students/half after=runs/half/model --tasks arc_easy,hellaswag --limit 500
  scripts/eval_tasks.py model=runs/half/model --tasks my_task --include my_tasks/        # data sets of your own

Its data sets come from the Hugging Face Hub, or from its cache
(HF_HOME) on a machine without a network. A task whose data cannot be reached is named, the others are evaluated, and
the exit code is 1. --include is a folder with tasks in the harness's own format: a YAML file for each, whose data_files
may be files of this machine.
"""

import script_path

import json
import os
import sys
from pathlib import Path

from shared.command_line import argument_parser, at_least, fail, name_and_path
from shared.text_model import is_multimodal, load_text_model


def parse_model(text):
    name, folder = name_and_path(text, "FOLDER")
    if not Path(folder, "config.json").is_file():
        fail(f"{folder}: no config.json in it; not a model folder")
    return name, folder


def task_manager(names, include):
    """The harness's index of tasks; its own thousands, which take a while to read, only where they are asked for."""
    from lm_eval.tasks import TaskManager

    if include is not None:
        manager = TaskManager(include_path=str(include), include_defaults=False)
        if all(manager.match_tasks([name]) for name in names):
            return manager
    manager = TaskManager(include_path=None if include is None else str(include))
    unknown = [name for name in names if not manager.match_tasks([name])]
    if unknown:
        where = f" nor in {include}" if include else ""
        fail(f"no task called {', '.join(unknown)} in lm-evaluation-harness{where}; `lm-eval ls tasks` lists its own")
    return manager


def reachable(names, manager):
    """The names whose data can be read, and {name: why not} of the others."""
    found, lost = [], {}
    for name in names:
        try:
            manager.load([name])
        except OSError as error:  # what datasets and huggingface_hub raise is one: no network, not cached, no such file
            lost[name] = str(error).splitlines()[0]
            continue
        found.append(name)
    return found, lost


def evaluate(folder, names, manager, args):
    """{task: {metric: value}}"""
    import lm_eval
    import transformers
    from lm_eval.models.huggingface import HFLM

    if is_multimodal(json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))):
        # The harness does not know how to load such a folder for tasks of text.
        loaded = load_text_model(folder, dtype=args.dtype).to(args.device).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = HFLM(pretrained=loaded, tokenizer=tokenizer, batch_size=args.batch)
    else:
        model = HFLM(pretrained=folder, device=args.device, dtype=args.dtype, batch_size=args.batch)
    done = lm_eval.simple_evaluate(
        model=model, tasks=names, task_manager=manager, limit=args.limit, num_fewshot=args.shots, bootstrap_iters=1000
    )
    kept = {}
    for task, metrics in done["results"].items():
        values = {key.removesuffix(",none"): value for key, value in metrics.items() if isinstance(value, (int, float))}
        kept[task] = {key: value for key, value in values.items() if key != "sample_len"}
    return kept


def table(results):
    """Lines of task, metric and the value of each model with its standard error."""
    models = list(results)
    lines = [["task", "metric", *models]]
    first = results[models[0]]
    for task, metrics in first.items():
        for metric in metrics:
            if "_stderr" in metric:
                continue
            cells = []
            for model in models:
                values = results[model][task]
                base, _, rest = metric.partition(",")
                error = values.get(f"{base}_stderr{',' + rest if rest else ''}")
                cells.append(f"{values[metric]:.4f}" + (f" ± {error:.4f}" if error else ""))
            lines.append([task, metric, *cells])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER", help="a Hugging Face folder and the name to show")
    parser.add_argument("--tasks", required=True, metavar="TASK,...", help="names of the harness, or of --include")
    parser.add_argument("--include", type=Path, metavar="FOLDER", help="tasks of your own in the harness's format")
    parser.add_argument("--limit", type=at_least(1), metavar="N", help="at most N documents of each task")
    parser.add_argument("--shots", type=at_least(0), default=0, metavar="N", help="examples in the prompt (default 0)")
    parser.add_argument("--batch", type=at_least(1), default=8, metavar="N", help="documents at a time (default 8)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto", help="auto: the folder's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there, too")
    args = parser.parse_args()
    models = [parse_model(text) for text in args.models]
    names = [name for name in args.tasks.split(",") if name]
    if not names:
        fail("--tasks: expected names separated by commas, found none")
    if args.include is not None and not args.include.is_dir():
        fail(f"--include: {args.include}: no such folder")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if args.device == "auto":
        import torch

        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    manager = task_manager(names, args.include)
    found, lost = reachable(names, manager)
    for name, why in lost.items():
        print(f"{name}: its data cannot be reached from this machine: {why}", file=sys.stderr)
    if lost:
        home = os.environ.get("HF_HOME", "~/.cache/huggingface")
        print(
            f"eval_tasks: fetch them where there is a network and bring the cache ({home}), or give tasks of your own "
            "with --include",
            file=sys.stderr,
        )
    results = {name: evaluate(folder, found, manager, args) for name, folder in models} if found else {}
    if results:
        print("\n".join(table(results)))
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")
    if lost:
        sys.exit(1)


if __name__ == "__main__":
    main()
