"""Where everything of scripts/studies/quality.sh lies, below one work folder."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Folders:
    work: Path  # inputs: work/quality
    scratch: Path  # run folders, which are removed once they are measured
    results: Path  # one JSON file for each run

    @property
    def teacher(self):
        return self.work / "teacher"

    def student(self, name):
        return self.work / "students" / name

    def data(self, name):
        return self.work / "data" / name

    @property
    def prompts(self):
        return self.work / "prompts.json"

    def cache(self, row):
        return self.scratch / f"cache-{row}"

    @property
    def runs(self):
        return self.scratch / "runs"

    def run(self, name):
        return self.runs / name

    def result(self, name):
        return self.results / f"{name}.json"
