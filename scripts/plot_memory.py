#!/usr/bin/env python3
"""Draws the results of `distill profile-memory`: memory by category over time, and predicted against measured peaks.

scripts/plot_memory.py memory-profile              # memory-profile/timeline.png
scripts/plot_memory.py memory-profile --output a.png
"""

import script_path

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from shared.command_line import argument_parser


def unit_of(largest):
    for name, size in (("GiB", 2**30), ("MiB", 2**20)):
        if largest >= size:
            return name, size
    return "KiB", 2**10


def draw_timeline(axes, timeline, report):
    points = timeline["points"]
    seconds = np.array([point["us"] for point in points]) / 1e6
    values = np.array([point["bytes"] for point in points], dtype=float).T
    name, size = unit_of(values.sum(axis=0).max())
    shown = [i for i, row in enumerate(values) if row.max() > 0]
    axes.stackplot(seconds, values[shown] / size, labels=[timeline["categories"][i] for i in shown], step="post")
    axes.axhline(
        report["plan"]["bytes"]["peak"] / size, color="black", linestyle="--", linewidth=1, label="predicted peak"
    )
    for before, after in zip(points, points[1:]):
        if before["phase"] != after["phase"]:
            axes.axvline(after["us"] / 1e6, color="grey", linewidth=0.3)
    axes.set(xlabel="seconds", ylabel=name, title="tensors on the device by category")
    axes.legend(loc="upper left", fontsize="small", ncols=2)


def draw_phases(axes, report):
    measured, planned = report["measured"]["phases"], report["plan"]["phases"]
    names = list(measured)
    found = np.array([measured[name]["peak"] for name in names], dtype=float)
    expected = np.array([planned[name]["peak"] for name in names], dtype=float)
    unit, size = unit_of(found.max())
    place = np.arange(len(names))
    axes.bar(place - 0.2, expected / size, 0.4, label="predicted")
    axes.bar(place + 0.2, found / size, 0.4, label="measured")
    axes.set_xticks(place, names, rotation=30)
    axes.set(ylabel=unit, title="peak of each phase")
    axes.legend(fontsize="small")


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("folder", type=Path, help="the folder that profile-memory wrote (its --out)")
    parser.add_argument("--output", type=Path, help="PNG file; default: timeline.png in the folder")
    options = parser.parse_args()
    report = json.loads((options.folder / "report.json").read_text())
    timeline = json.loads((options.folder / "timeline.json").read_text())
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 5), width_ratios=(3, 1), layout="constrained")
    draw_timeline(left, timeline, report)
    draw_phases(right, report)
    output = options.output or options.folder / "timeline.png"
    figure.savefig(output, dpi=120)
    print(output)


if __name__ == "__main__":
    main()
