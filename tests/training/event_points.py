"""The curves of a run folder's event files, read by the tensorboard package, against metrics.jsonl."""

import json
from pathlib import Path

import numpy as np


def flat(values, prefix):
    """(tag, number) of each number in an object; null has no point. The tag of a number that is not exact says so."""
    marks = {name: "_lower_bound" for name in values.get("lower_bounds", [])}
    marks |= {name: "_estimate" for name in values.get("estimates", [])}
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}/")
        elif value is not None and not isinstance(value, list):
            yield prefix + name + marks.get(name, ""), value


def recorded(run):
    """Points by tag of all lines of metrics.jsonl: (step, time in seconds, value)."""
    points = {}
    for text in (Path(run) / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        step, time = line.pop("step"), line.pop("time_ms") / 1000
        kind = next((kind for kind in ("eval", "round") if kind in line), None)
        for tag, value in flat(line[kind], f"{kind}/") if kind else flat(line, "train/"):
            points.setdefault(tag, []).append((step, time, np.float32(value)))
    return points


def reader(run):
    """TensorBoard's reader of the run, keeping every point."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(Path(run) / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})


def shown(accumulator):
    accumulator.Reload()
    return {
        tag: [(event.step, event.wall_time, np.float32(event.value)) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


def raw(run):
    """The same from each record of each file, in order: what a reader would hide as outdated is here, too."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    points = {}
    for path in sorted((Path(run) / "tensorboard").glob("*tfevents*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    point = (event.step, event.wall_time, np.float32(value.simple_value))
                    points.setdefault(value.tag, []).append(point)
    return points


def difference(found, expected):
    """What differs, for people; empty: nothing does."""
    if set(found) != set(expected):
        return f"tags that only one side has: {sorted(set(found) ^ set(expected))}"
    for tag, points in expected.items():
        if found[tag] != points:
            steps, other = [point[0] for point in found[tag]], [point[0] for point in points]
            return f"{tag}: steps {steps}, expected {other}" if steps != other else f"{tag}: {found[tag]} != {points}"
    return ""
