"""Runs what a study needs and what is not there yet: several runs at a time on each device, for a limited time.

  scripts/studies/quality.py run --profile gpu --work work/quality --results results --jobs 6 --minutes 9
  scripts/studies/quality.py run --profile gpu --results more --published docs/quality/gpu.json  # what is missing there
  quality.py run --profile gpu --results again --published docs/quality/gpu.json --again forward_kl --only again

Each finished run is a JSON file in --results, and is not repeated. When the time is over, the runs that work are ended
and leave nothing; the same command continues. Runs whose speed is measured have the first device for themselves.
With --published, what that file has is taken as finished. --again trains the final runs of some of its rows once more,
at the published learning rates.
"""

import json
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from shared.command_line import fail
from shared.runs import PROGRAM, RunFailed, end_children, visible_devices, write_json

from . import calibration, results, training
from .folders import Folders
from .study import Run, Study, known_keys

WORDS = ("capture", "models", "speed", "cases", "scaling", "again", "second")


def add_arguments(parser):
    parser.add_argument("--profile", default="gpu", help="of study.yaml (default: gpu)")
    parser.add_argument("--study", type=Path, help="another study.yaml")
    parser.add_argument("--program", default=PROGRAM, help="the distill program")
    parser.add_argument("--work", type=Path, default=Path("work/quality"), help="folder of the inputs")
    parser.add_argument("--scratch", type=Path, help="for run folders and caches (default: in --work)")
    parser.add_argument("--results", type=Path, required=True, help="folder for one JSON file of each run")
    parser.add_argument("--published", type=Path, help="merged results (docs/quality/gpu.json) that are not repeated")
    parser.add_argument(
        "--again", default="", metavar="ROW,...", help="rows of --published whose final runs are trained again, or all"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time on each device")
    parser.add_argument("--devices", type=int, default=0, help="number of GPUs (default: all that are visible)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads of a run")
    parser.add_argument("--minutes", type=float, default=0, help="ends after this time (default: when all is done)")
    parser.add_argument("--tokens", type=int, help="of a run, in place of the profile's; a quarter of it in the search")
    parser.add_argument("--rows", default="", metavar="ROW,...", help="these rows alone (default: all of the profile)")
    parser.add_argument("--only", default="", metavar="WORD,...", help="some of: " + ", ".join(WORDS))
    parser.add_argument("--list", action="store_true", help="says what is done and what is left, and starts nothing")


@dataclass(frozen=True)
class Task:
    """Something that makes one result file. `work(device)` returns its content."""

    name: str
    work: object
    tokens: int = 0
    needs: str = ""  # the name of a result that must be there


class Results:
    """The JSON files of finished tasks, and what was published of others."""

    def __init__(self, folders, published):
        """`published`: {name: result}"""
        self._folders, self.published = folders, dict(published)
        folders.results.mkdir(parents=True, exist_ok=True)

    def has(self, name):
        return name in self.published or self._folders.result(name).exists()

    def read(self, name):
        path = self._folders.result(name)
        return json.loads(path.read_text()) if path.exists() else self.published[name]

    def forget(self, name):
        self.published.pop(name, None)
        self._folders.result(name).unlink(missing_ok=True)

    def write(self, name, value):
        write_json(self._folders.result(name), value)


class Schedule:
    """Hands out tasks in the order of their importance."""

    def __init__(self, study, folders, program, threads, words, published=None, again=()):
        """`again`: rows whose final runs in `published`, {name: result}, are trained once more."""
        self.study, self.folders, self.program, self.threads = study, folders, program, threads
        self.results = Results(folders, published or {})
        self.words = words
        self.again = [run for row in again for run in self._finals_of(published or {}, row)]
        self.failed, self.running, self.seconds = {}, set(), {}
        rows = [row for _, row in study.case_list()] + [
            row for name in study.students for row in study.second_rows(name)
        ]
        self.left_out = {row.name: why for row in rows if (why := row.why_left_out(known_keys(program)))}
        self.changed = threading.Condition()
        self.over = False  # whether the time is over, or a signal has come
        self._forget_lost_captures()
        self._forget_lost_bases()
        self._forget_unmeasured_models()

    def _forget_lost_captures(self):
        """On another machine, results may be there while the teacher's cache is not: it is then captured again."""
        for _, row in self.cases():
            name = f"capture-{row.name}"
            if (
                row.cache is None
                or not self.results.has(name)
                or (self.folders.cache(row.name) / "manifest.json").exists()
            ):
                continue
            tasks = self.shared() + self.exclusive()
            missing = [task for task in tasks if task.needs == name and not self.results.has(task.name)]
            if missing:
                self.results.forget(name)

    def _forget_lost_bases(self):
        """On another machine, the models that second phases begin with are trained again."""
        for task in self.second() if self.wants("second") else []:
            lost = task.needs and not (self.folders.run(task.needs) / "model" / "config.json").exists()
            if lost and self.results.has(task.needs) and not self.results.has(task.name):
                self.results.forget(task.needs)

    def _forget_unmeasured_models(self):
        """Of a model that is still there, a result without a measure that is now taken."""
        names = [task.name for task in self.shared() if task.name.startswith("model-")] if self.study.prompts else []
        for name in names:
            if self.results.has(name) and calibration.PARSE_KEY not in self.results.read(name):
                self.results.forget(name)

    def _finals_of(self, published, row):
        """Runs like the published final ones of a row in this study, for results of their own."""
        return [
            Run("again", *(result[key] for key in results.RUN_KEYS))
            for result in published.values()
            if result.get("purpose") == "final" and row in (result["row"], "all")
            if (result["tokens"], result["profile"]) == (self.study.tokens, self.study.profile_name)
        ]

    def wants(self, word):
        return not self.words or word in self.words

    def cases(self):
        return [(student, row) for student, row in self.study.case_list() if row.name not in self.left_out]

    def exclusive(self):
        """Tasks that need a device for themselves, in order: what others wait for, and what is timed."""
        tasks = []
        if self.wants("capture"):
            rows = {row.name: row for _, row in self.cases() if row.cache is not None}
            tasks += [self._capture(row) for row in rows.values()]
        if self.wants("speed"):
            runs = [run for run in self.study.speed_runs() if run.row not in self.left_out]
            tasks += [self._run(run) for run in runs]
        return tasks

    def _capture(self, row):
        def work(device):
            return training.capture(self.program, self.study, self.folders, row, device, self.threads)

        return Task(f"capture-{row.name}", work)

    def _run(self, run, base=None):
        def work(device):
            arguments = (self.program, self.study, self.folders)
            result = training.train(*arguments, run, device, self.threads, base)
            if run.measured:
                model = self.folders.run(run.name) / "model"
                result["tests"] = training.tests(*arguments, model, device, self.threads)
                result |= self._measured(model, device, run.own_words)
            if run.purpose != "base":
                training.forget(self.folders, run.name)
            return result

        needs = f"capture-{run.row}" if self.study.rows[run.row].cache is not None else ""
        return Task(run.name, work, run.tokens, base.name if base else needs)

    def second(self):
        """The second phases, each after the run whose model it begins with."""
        tasks = []
        for student in self.study.students:
            rows = [row for row in self.study.second_rows(student) if row.name not in self.left_out]
            rate = self.best_rate(student, self.study.rows[self.study.second["row"]]) if rows else None
            if rate is None:
                continue
            bases = {seed: self.study.base(student, rate, seed) for seed in self.study.seeds}
            tasks += [self._run(base) for base in bases.values()]
            tasks += [self._run(run, bases[run.seed]) for row in rows for run in self.study.second_runs(student, row)]
        return tasks

    def _model(self, name, folder):
        def work(device):
            result = {"model": name}
            result["tests"] = training.tests(self.program, self.study, self.folders, folder, device, self.threads)
            return result | self._measured(folder, device)

        return Task(f"model-{name}", work)

    def _measured(self, model, device, own_words=False):
        """Calibration and generated functions, which a profile with `prompts: 0` leaves out."""
        if not self.study.prompts:
            return {}
        return calibration.call(self.study, self.folders, model, device, self.threads, own_words)

    def best_rate(self, student, row):
        """The learning rate of the search with the lowest cross-entropy; None while it is not known."""
        runs = self.study.search(student, row)
        if not runs:
            return self.study.lrs[0]
        found = []
        for run in runs:
            if self.results.has(run.name):
                found.append((self.results.read(run.name)["validation"][-1]["ce"], run.lr))
            elif run.name not in self.failed:
                return None
        return min(found)[1] if found else None

    def shared(self):
        """Tasks that may share a device, in the order of their importance, as far as they are known yet."""
        tasks = []
        if self.wants("models"):
            tasks.append(self._model("teacher", self.folders.teacher))
            tasks += [self._model(name, self.folders.student(name)) for name in self.study.cases]
        if self.wants("again"):
            tasks += [self._run(run) for run in self.again]
        if self.wants("second"):
            tasks += self.second()
        for student in self.study.cases:
            if self.wants("cases"):
                tasks += [task for name, row in self.cases() if name == student for task in self._case(student, row)]
            if self.wants("scaling"):
                # One of these may be a final run, which is measured more closely: it is then already in the list.
                runs = [run for run in self.study.scaling_runs() if run.student == student]
                tasks += [self._run(run) for run in runs if self.best_rate(student, self.study.rows[run.row])]
        return tasks

    def _case(self, student, row):
        rate = self.best_rate(student, row)
        final = self.study.final(student, row, rate) if rate is not None else []
        return [self._run(run) for run in self.study.search(student, row) + final]

    def waiting(self, tasks):
        """Those that are neither done, nor failed, nor being worked on; each result once."""
        unique = {task.name: task for task in reversed(tasks)}  # a scaling run may be a final one, too
        names = dict.fromkeys(task.name for task in tasks)
        return [
            unique[name]
            for name in names
            if not self.results.has(name) and name not in self.failed and name not in self.running
        ]

    def ready(self, task):
        return not task.needs or self.results.has(task.needs)

    def expected_seconds(self, task):
        """From the longest task so far that was not smaller; 0 where none was."""
        times = [seconds * max(1, task.tokens / max(1, tokens)) for tokens, seconds in self.seconds.items()]
        return max(times, default=0) if task.tokens else 0

    def do(self, task, device):
        began = time.monotonic()
        try:
            result = task.work(device)
        except (RunFailed, OSError, ValueError, KeyError) as error:
            with self.changed:
                self.failed[task.name] = str(error)
                self.running.discard(task.name)
                self.changed.notify_all()
            print(f"{task.name}: {'ended with the time' if self.over else f'FAILED: {error}'}", flush=True)
            return
        seconds = time.monotonic() - began
        with self.changed:
            self.results.write(task.name, result)
            self.running.discard(task.name)
            if task.tokens:
                self.seconds[task.tokens] = max(seconds, self.seconds.get(task.tokens, 0))
            self.changed.notify_all()
        print(f"{task.name}: {seconds:.1f} s{summary(result)}", flush=True)


def summary(result):
    if not result.get("validation"):
        return ""
    last = result["validation"][-1]
    kl = f", KL {last['kl']:.4f}" if "kl" in last else ""
    return f", validation cross-entropy {last['ce']:.4f}{kl}, {result['tokens_per_second']:.0f} tok/s"


class Workers:
    """Threads that do the tasks of a schedule until there are none, or until the time is over."""

    def __init__(self, schedule, devices, jobs, deadline):
        self.schedule, self.devices, self.jobs, self.deadline = schedule, devices, jobs, deadline

    def run(self):
        threads = [threading.Thread(target=self._device, args=(index,)) for index in range(len(self.devices))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _device(self, index):
        if index == 0:
            for task in self.schedule.waiting(self.schedule.exclusive()):
                if self._in_time(task):
                    self.schedule.do(task, self.devices[0])
        threads = [threading.Thread(target=self._slot, args=(self.devices[index],)) for _ in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _in_time(self, task):
        left = self.deadline - time.monotonic()
        return not self.schedule.over and left > 0 and self.schedule.expected_seconds(task) < left

    def _slot(self, device):
        schedule = self.schedule
        while True:
            with schedule.changed:
                waiting = [task for task in schedule.waiting(schedule.shared()) if self._in_time(task)]
                task = next((task for task in waiting if schedule.ready(task)), None)
                if task is None:
                    if schedule.over or time.monotonic() >= self.deadline or not (schedule.running or waiting):
                        return
                    if not schedule.running and not self._exclusive_left():
                        return  # what waits needs a result that will not come
                    schedule.changed.wait(timeout=1)
                    continue
                schedule.running.add(task.name)
            schedule.do(task, device)
            if schedule.over:
                return

    def _exclusive_left(self):
        return bool(self.schedule.waiting(self.schedule.exclusive()))


def print_state(schedule):
    tasks = {task.name: task for task in schedule.exclusive() + schedule.shared()}
    done = [name for name in tasks if schedule.results.has(name)]
    print(f"{len(done)} of the {len(tasks)} results known to be needed so far are there")
    for name in tasks:
        if name not in done:
            print(f"  to do: {name}")
    for row, why in schedule.left_out.items():
        print(f"  left out: {row}: {why}")


def main(args):
    search = None if args.tokens is None else args.tokens // 4
    table = {} if args.study is None else {"table": args.study}
    try:
        study = Study(args.profile, **table, tokens=args.tokens, search_tokens=search)
        study.take_rows([row for row in args.rows.split(",") if row])
    except (ValueError, OSError) as error:
        fail(error)
    folders = Folders(args.work, args.scratch or args.work, args.results)
    words, again = ([word for word in text.split(",") if word] for text in (args.only, args.again))
    unknown = [word for word in words if word not in WORDS]
    if unknown:
        fail(f"--only: expected some of {', '.join(WORDS)}, found {', '.join(unknown)}")
    published = results.read(args.published) if args.published else {}
    try:
        schedule = Schedule(study, folders, args.program, args.threads, words, published, again)
    except (ValueError, OSError) as error:
        fail(f"--program {args.program}: expected a built distill (scripts/build.sh release distill), found: {error}")
    unknown = set(again) - {"all"} - {run.row for run in schedule.again}
    if unknown:
        fail(f"--again: expected rows with final runs of {study.tokens} tokens in --published, found {min(unknown)}")
    if args.list:
        print_state(schedule)
        return
    devices = visible_devices(study.device, args.devices)
    deadline = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    workers = Workers(schedule, devices, args.jobs, deadline)

    def stop(*_):
        schedule.over = True
        end_children()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if args.minutes:
        timer = threading.Timer(args.minutes * 60, stop)
        timer.daemon = True
        timer.start()
    began = time.monotonic()
    workers.run()
    print(f"{time.monotonic() - began:.0f} s")
    print_state(schedule)
    if schedule.failed and not schedule.over:
        sys.exit(1)
