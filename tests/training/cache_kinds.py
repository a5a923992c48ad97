"""Runs, captures and caches of the kinds that store a few tokens of a teacher's distribution, for several tests."""

from pathlib import Path

import tiny

MICRO = 3  # of captures
COLUMNS = tiny.VOCAB  # of the teacher's 224, those that the student has too
FORWARD_KL = {"divergence": "forward_kl", "hard_weight": 0.5, "soft_weight": 1.0}
KINDS = {
    "topk": {"kind": "topk", "topk": 8},
    "topk32": {"kind": "topk", "topk": 8, "dtype": "float32"},
    "whole": {"kind": "topk", "topk": COLUMNS, "dtype": "float32"},
    "sampled": {"kind": "sampled", "samples": 12, "seed": 3},
    "weighted": {"kind": "sampled", "samples": 12, "exponent": 0.7, "seed": 3},
}


def content(cache):
    return {str(path.relative_to(cache)): path.read_bytes() for path in sorted(cache.rglob("*")) if path.is_file()}


def capture(config, cache, *flags, code=tiny.SUCCESS, **settings):
    """Of the configuration of any run."""
    sets = [part for key, value in settings.items() for part in ("--set", f"{key.replace('_', '.', 1)}={value}")]
    path = tiny.write_config(Path(config["run"]["dir"]).parent / "capture", config)
    sets += ["--set", "teacher.source=model", f"teacher.cache={cache}"]
    return tiny.distill("capture", "--config", path, *sets, *flags, code=code)
