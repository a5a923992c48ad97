"""Rows of bad inputs, and changes of a job that works (bad_settings.py, bad_files.py)."""

import shutil
from dataclasses import dataclass


@dataclass
class Row:
    """A change of the job or of the arguments, and what the error must name."""

    name: str
    says: list  # each must stand in standard error
    change: object = None  # called with the job's folder
    args: list | str = "--config config.yaml --dry-run"  # a text: arguments without spaces
    code: int = 2

    def arguments(self):
        return self.args.split() if isinstance(self.args, str) else self.args


def dry_run(*overrides):
    return ["--config", "config.yaml", "--dry-run", *[part for text in overrides for part in ("--set", text)]]


def config_text(text):
    return lambda job: (job / "config.yaml").write_text(text)


def replaced(old, new):
    def change(job):
        text = (job / "config.yaml").read_text()
        assert old in text, old
        (job / "config.yaml").write_text(text.replace(old, new))

    return change


def removed(path):
    def change(job):
        target = job / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return change
