"""The results of a study: JSON files in a folder, or all of them in one file, a line for each."""

import json
import statistics
from pathlib import Path

from shared.command_line import fail

from .sources import KINDS
from .study import Run


def add_merge_arguments(parser):
    parser.add_argument("--results", type=Path, required=True, help="folder of a study's results")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")


def merge(args):
    """Writes all results into one file; those that only the file has stay in it."""
    known = read(args.out) if args.out.exists() else {}
    found = known | read(args.results)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("{\n" + lines + "\n}\n")
    print(f"{args.out}: {len(found)} results, {len(found) - len(known)} of them new")


def read(path):
    """{name: result} of a folder or of one file."""
    if path.is_dir():
        found = {file.stem: json.loads(file.read_text()) for file in sorted(path.glob("*.json"))}
    elif path.is_file():
        found = json.loads(path.read_text())
    else:
        fail(f"{path}: no such file or folder of results")
    return found


RUN_KEYS = ("student", "row", "tokens", "lr", "seed")


class Figures:
    """What the tables say, from the results of one profile."""

    def __init__(self, study, results):
        self.study, self.results = study, results
        self.tokens = self._largest_tokens()

    def _largest_tokens(self):
        """The tokens of the largest final runs."""
        sizes = [r["tokens"] for r in self.results.values() if r.get("purpose") == "final"]
        return max(sizes, default=self.study.tokens)

    def finals(self, student, row):
        """The results of all seeds."""
        return [
            result
            for result in self.results.values()
            if result.get("purpose") == "final"
            and (result["student"], result["row"], result["tokens"]) == (student, row, self.tokens)
        ]

    def phase(self, purpose, student, row=None, lr=None):
        """The results of a second phase with a learning rate, or of the runs that it begins with; of all seeds."""
        return [
            result
            for result in self.results.values()
            if result.get("purpose") == purpose
            and result["student"] == student
            and (row is None or (result["row"], result["lr"]) == (row, lr))
        ]

    def with_measure(self, result, has):
        """A final result, or the one of the same run again, of which `has(result)` is true; None if there is none.

        A measure that came later is known of models trained later alone.
        """
        return next((one for one in (result, self.again(result)) if one is not None and has(one)), None)

    def again(self, result):
        """What the same run gave when it was made again; None if it was not."""
        if result.get("purpose") != "final":
            return None
        return self.results.get(Run("again", *(result[key] for key in RUN_KEYS)).name)

    def pairs(self, student, row):
        """[(final result, the same run again)] of those that were made again."""
        pairs = [(result, self.again(result)) for result in self.finals(student, row)]
        return [pair for pair in pairs if pair[1] is not None]

    def values(self, student, row, *path):
        """One number for each seed."""
        found = []
        for result in self.finals(student, row):
            value = result
            for key in path:
                value = value[key]
            found.append(value)
        return found

    def trained(self, purpose_tokens, student, row):
        """Every search, scaling and final run of this number of tokens with the first seed, by learning rate."""
        return {
            result["lr"]: result
            for result in self.results.values()
            if result.get("purpose") in ("search", "scaling", "final")
            and (result["student"], result["row"], result["tokens"]) == (student, row, purpose_tokens)
            and result["seed"] == self.study.seeds[0]
        }

    def speed(self, student, row):
        """Tokens a second of a row that was alone on its device; None where that was not measured."""
        for result in self.results.values():
            if result.get("purpose") == "speed" and (result["student"], result["row"]) == (student, row):
                return result["tokens_per_second"]
        return None

    def model(self, name):
        """The measures of a model that was not trained here."""
        return self.results.get(f"model-{name}")


def mean(values):
    return statistics.fmean(values)


def spread(values):
    """The standard deviation over seeds; None for one seed."""
    return statistics.stdev(values) if len(values) > 1 else None


def differences(figures, student, better, worse, metric):
    """[(kind, mean of `worse` - mean of `better`, the larger spread of the two)]: above 0 where `better` is lower."""
    found = []
    for kind in KINDS:
        pair = [figures.values(student, row, "tests", kind, metric) for row in (better, worse)]
        if not all(pair):
            continue
        spreads = [spread(values) or 0.0 for values in pair]
        found.append((kind, mean(pair[1]) - mean(pair[0]), max(spreads)))
    return found
