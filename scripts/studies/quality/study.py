"""study.yaml as objects: profiles, rows, and the runs that a case needs."""

import functools
import math
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import yaml

TABLE = Path(__file__).parent / "study.yaml"
PROFILE_KEYS = {"device", "dtype", "seq_len", "batch", "tokens", "search_tokens", "shards", "lrs", "seeds"}
PROFILE_KEYS |= {"evaluations", "prompts", "cases"}
PROFILE_OPTIONS = {"eval_batches": 0, "scaling": None, "speed": None, "second": None}
PROFILE_OPTIONS |= {"several": None, "privileged": None, "experts": None}


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    set: dict = field(default_factory=dict)  # configuration keys
    teacher: bool = True  # whether training needs one; evaluations have one in any case
    cache: dict | None = None  # where it trains from a cache: the keys of the capture and of the run about it
    on_policy: dict | None = None  # where the student writes what it is trained on: the keys about it
    missing: str = ""  # why it cannot be run at all

    @property
    def knows_kl(self):
        """Whether a run's own evaluations give KL to the teacher: at temperature 1, from all of its probabilities."""
        partial = (self.cache or {}).get("cache.kind", "hidden") != "hidden"
        return not partial and self.set.get("loss.temperature", 1) == 1

    def why_left_out(self, known_keys):
        """Why this build cannot run the row; empty if it can."""
        if self.missing:
            return self.missing
        keys = {**self.set, **(self.cache or {}), **(self.on_policy or {})}
        unknown = [key for key in keys if key not in known_keys]
        return f"this build of distill has no {' and no '.join(unknown)}" if unknown else ""


@dataclass(frozen=True)
class Run:
    """One training. `purpose`: search, final, scaling, speed, or again, a final one for a comparison with it; base, a
    final one whose model is kept for a second phase, or second, that phase."""

    purpose: str
    student: str
    row: str
    tokens: int
    lr: float
    seed: int

    @property
    def measured(self):
        """Whether the trained model is kept until it is measured on held-out text of each kind."""
        return self.purpose in ("final", "again", "base", "second")

    @property
    def own_words(self):
        """Whether the model is also measured on what it writes itself."""
        return self.purpose in ("base", "second")

    @property
    def name(self):
        prefix = f"{self.purpose}-" if self.purpose in ("speed", "again", "base", "second") else ""
        return f"{prefix}{self.student}-{self.row}-{self.tokens}-lr{self.lr:g}-s{self.seed}"


class Study:
    def __init__(self, profile, table=TABLE, **changes):
        """`changes`: values of the profile that are not None replace those of the table."""
        fields = yaml.safe_load(Path(table).read_text())
        if profile not in fields["profiles"]:
            raise ValueError(f"{table}: expected a profile of {', '.join(fields['profiles'])}, found {profile}")
        self.profile_name = profile
        self.config = fields["config"]
        self.students = fields["students"]
        self.rows = {name: Row(name, **values) for name, values in fields["rows"].items()}
        profile = PROFILE_OPTIONS | fields["profiles"][profile]
        if set(profile) != PROFILE_KEYS | set(PROFILE_OPTIONS):
            raise ValueError(f"{table}: {self.profile_name}: expected {sorted(PROFILE_KEYS)}, found {sorted(profile)}")
        self.profile = profile | {key: value for key, value in changes.items() if value is not None}
        second = (self.profile["second"] or {}).get("cases", {})
        for student, rows in [*self.profile["cases"].items(), *second.items()]:
            unknown = [name for name in rows if name not in self.rows] + [student] * (student not in self.students)
            if unknown:
                raise ValueError(f"{table}: {self.profile_name}.cases: no such row or student: {unknown[0]}")

    def take_rows(self, names):
        """Leaves these rows alone in each student's cases; all of them if none is named."""
        unknown = [name for name in names if name not in self.rows]
        if unknown:
            raise ValueError(f"expected rows of {', '.join(self.rows)}, found {', '.join(unknown)}")
        if names:
            cases = {student: [row for row in rows if row in names] for student, rows in self.cases.items()}
            self.profile = self.profile | {"cases": cases}
            if self.second:
                cases = {
                    student: [row for row in rows if row in names] for student, rows in self.second["cases"].items()
                }
                self.profile["second"] = self.second | {"cases": cases}

    def __getattr__(self, name):
        try:
            return self.__dict__["profile"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def step_tokens(self):
        return self.seq_len * self.batch

    def steps(self, tokens):
        return math.ceil(tokens / self.step_tokens)

    def case_list(self):
        """(student, row) in the order in which their figures matter."""
        return [(student, self.rows[row]) for student, rows in self.cases.items() for row in rows]

    def search(self, student, row):
        if not self.search_tokens:
            return []
        return [Run("search", student, row.name, self.search_tokens, lr, self.seeds[0]) for lr in self.lrs]

    def final(self, student, row, lr):
        return [Run("final", student, row.name, self.tokens, lr, seed) for seed in self.seeds]

    def base(self, student, lr, seed):
        """The run whose model a second phase begins with."""
        return Run("base", student, self.second["row"], self.tokens, lr, seed)

    def second_runs(self, student, row):
        """The second phases of a row: each learning rate with each seed."""
        tokens = self.second["steps"] * self.step_tokens
        return [Run("second", student, row.name, tokens, lr, seed) for lr in self.second["lrs"] for seed in self.seeds]

    def second_rows(self, student):
        """The rows of a student's second phase."""
        return [self.rows[name] for name in (self.second or {}).get("cases", {}).get(student, [])]

    def scaling_runs(self):
        if not self.scaling:
            return []
        return [
            Run("scaling", self.scaling["student"], row, self.tokens * times, lr, self.seeds[0])
            for times in [1, *self.scaling["times"]]
            for row in self.scaling["rows"]
            for lr in self.lrs
        ]

    def speed_runs(self):
        if not self.speed:
            return []
        tokens = self.speed["steps"] * self.step_tokens
        return [Run("speed", student, row.name, tokens, self.lrs[0], 1) for student, row in self.case_list()]


@functools.cache
def known_keys(program):
    """The configuration keys that a build of distill has."""
    text = subprocess.run([program, "--help-config"], capture_output=True, text=True, check=True).stdout
    keys = {line.split()[0] for line in text.splitlines() if line.startswith("  ") and not line.startswith("   ")}
    if "loss.divergence" not in keys:
        raise ValueError(f"{program} --help-config: expected a list of keys, found {text[:200]!r}")
    return keys
