#!/usr/bin/env python3
"""Checks the include edges between folders: apps -> trainer -> {losses, data}, and the edges inside trainer.

The script prints one line for each forbidden include and exits with 1 if there is any. It also reports headers of ours
that include one of the slow headers of libtorch, and includes that do not start at the repository's root.
"""

import script_path

import re
import sys
from pathlib import Path

from repository import ROOT
from shared.command_line import argument_parser

# folder -> the folders whose headers it may include, apart from its own.
# "folder/." is the folder without its subfolders.
# fmt: off
ALLOWED = {
    "data/base": set(),
    "losses": {"data/base"},  # options, checks, token metrics, vector math
    "losses/products": set(),
    "losses/rows": {"losses/."},
    "losses/logits": {"losses/.", "losses/rows"},
    "losses/head": {"losses/.", "losses/products", "losses/rows"},
    "losses/torch_ops": {"data/base", "losses"},
    "data": {"data/base"},
    "trainer/device": {"data/base"},
    "trainer/models": {"data/base", "losses/.", "losses/products", "trainer/device"},
    "trainer/hf": {"data/base", "trainer/models"},
    "trainer/config": {"data", "losses", "trainer/device", "trainer/hf", "trainer/models"},
    "trainer/sharding": {"data/base", "trainer/device", "trainer/models"},
    "trainer/optim": {"data/base", "trainer/config", "trainer/device", "trainer/models", "trainer/sharding"},
    "trainer/metrics": {"data/base", "losses", "trainer/config", "trainer/device", "trainer/models"},
    "trainer/launch": {"data/base", "trainer/metrics"},
    "trainer/checkpoint": {
        "data", "data/base", "trainer/config", "trainer/device", "trainer/hf", "trainer/metrics", "trainer/models",
        "trainer/optim", "trainer/sharding"},
    "trainer/teacher_cache": {
        "data", "data/base", "losses", "trainer/config", "trainer/device", "trainer/hf", "trainer/models"},
    "trainer/teacher": {
        "data", "losses", "trainer/config", "trainer/device", "trainer/metrics", "trainer/models", "trainer/sharding",
        "trainer/teacher_cache"},
    "trainer/step": {
        "data", "losses", "trainer/config", "trainer/device", "trainer/metrics", "trainer/models", "trainer/optim",
        "trainer/sharding", "trainer/teacher"},
    "trainer/float8_gate": {
        "data", "losses", "trainer/config", "trainer/device", "trainer/metrics", "trainer/models", "trainer/sharding",
        "trainer/step", "trainer/teacher"},
    "trainer/plan": {
        "data", "data/base", "losses", "trainer/config", "trainer/device", "trainer/metrics", "trainer/models",
        "trainer/sharding", "trainer/step", "trainer/teacher", "trainer/teacher_cache"},
    "trainer/run_folder": {
        "data/base", "losses", "trainer/config", "trainer/hf", "trainer/metrics", "trainer/models",
        "trainer/sharding"},
    "trainer/report": {"data/base", "trainer/onpolicy", "trainer/run_folder"},
    "trainer/loader": {"data", "trainer/sharding", "trainer/step"},
    "trainer/onpolicy": {
        "data", "trainer/checkpoint", "trainer/config", "trainer/hf", "trainer/launch", "trainer/run_folder",
        "trainer/sharding"},
    "trainer/setup": {
        "data", "losses", "trainer/config", "trainer/device", "trainer/hf", "trainer/launch", "trainer/metrics",
        "trainer/models", "trainer/onpolicy", "trainer/plan", "trainer/sharding", "trainer/step", "trainer/teacher",
        "trainer/teacher_cache"},
    "trainer": {  # the files that are the run
        "data", "trainer/checkpoint", "trainer/config", "trainer/device", "trainer/launch", "trainer/loader",
        "trainer/float8_gate", "trainer/metrics", "trainer/onpolicy", "trainer/optim", "trainer/plan", "trainer/report",
        "trainer/run_folder", "trainer/setup", "trainer/sharding", "trainer/step", "trainer/teacher_cache"},
    "trainer/tools": {"data", "losses", "trainer"},
    "apps": {"data", "trainer"},
}
# fmt: on
# Headers that no header of ours may include: they cost every includer tens of seconds.
HEAVY = ("torch/torch.h", "torch/extension.h", "ATen/ATen.h", "torch/all.h")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')


def folder_of(path: str) -> str | None:
    """The longest key of ALLOWED that is a prefix of `path`."""
    keys = [k for k in ALLOWED if path == k or path.startswith(k + "/")]
    return max(keys, key=len, default=None)


def allowed(source: str, target: str) -> bool:
    if source == target:
        return True
    return any(target == a or target.startswith(a + "/") or target + "/." == a for a in ALLOWED[source])


def problems_of(file: Path, root: Path) -> list[str]:
    """The forbidden includes of one file, a line of text each."""
    problems = []
    relative = file.relative_to(root).as_posix()
    source = folder_of(relative)
    for number, line in enumerate(file.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(1)
        if header in HEAVY and file.suffix in {".h", ".cuh"}:
            problems.append(f"{relative}:{number}: a header includes <{header}>; include the thin header it needs")
        target = folder_of(header)
        if target and (root / header).exists() and not allowed(source, target):
            may = ", ".join(sorted(ALLOWED[source])) or "nothing"
            problems.append(f"{relative}:{number}: {source} includes {header}, but may include only {may}")
        elif '"' in line and target is None and (file.parent / header).exists():
            problems.append(f"{relative}:{number}: include {header} from the repository's root")
    return problems


def main() -> int:
    parser = argument_parser(__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository to check (default: this one)")
    root = parser.parse_args().root
    problems = []
    for top in ("losses", "data", "trainer", "apps"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix in {".h", ".cpp", ".cu", ".cuh"}:
                problems += problems_of(file, root)
    print("\n".join(problems) if problems else "include edges: clean")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
