"""What runs with cached and with running teachers have in common: their steps and their weights."""

import tiny
from test_resume import files, timeless


def steps_of(run):
    """What was computed in each step and evaluation, without times."""
    return [
        [{key: value for key, value in record.items() if key != "teacher_read"} for record in timeless(records)]
        for records in tiny.read_metrics(run)
    ]


def weights_of(run):
    return files(run / "model")["model.safetensors"]
