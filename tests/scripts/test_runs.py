"""The runner of studies, scripts/shared/runs.py, with a program that stands for distill."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from shared import runs

PROFILE = SimpleNamespace(seq_len=32, batch=4, device="cpu", dtype="float32")
# Writes down how it was called. A training whose student.path is "stop" is cut off after a checkpoint.
PROGRAM = """#!{python}
import json, pathlib, sys
calls = pathlib.Path(__file__).with_name("calls")
with open(calls, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "eval":
    print("warning: a line before it")
    print(json.dumps({{"hard": 2.5}}))
else:
    config = json.load(open(sys.argv[2]))
    folder = pathlib.Path(config["run"]["dir"])
    step = folder / "checkpoints" / "step-1"
    step.mkdir(parents=True, exist_ok=True)
    if config["student"]["path"] == "stop":
        (step / "COMPLETE").touch()
        sys.exit("out of memory")
    (folder / "model").mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text('{{"step": 1, "loss": 3.5}}\\n{{"step": 1, "eval": {{"hard": 3.0}}}}\\n')
"""


class Folder:
    def __init__(self, path):
        self.path, self.program = path, path / "program"
        self.program.write_text(PROGRAM.format(python=sys.executable))
        self.program.chmod(0o755)

    def runner(self, jobs=1):
        arguments = SimpleNamespace(program=str(self.program), jobs=jobs, threads=1)
        return runs.Runner(arguments, PROFILE, self.path / "runs", self.path / "results")

    def calls(self):
        return [json.loads(line) for line in (self.path / "calls").read_text().splitlines()]

    def config(self, name, student="student"):
        return runs.merged({}, runs.settings(PROFILE, 40, self.path / "runs" / name) | {"student.path": student})


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_settings_are_merged_over_a_config_that_stays_as_it_was():
    config = {"train": {"seed": 3}, "scheduler": {"type": "cosine", "warmup_steps": 5}}
    found = runs.merged(config, runs.settings(PROFILE, 40, Path("a")) | {"optimizer.lr": 1e-3})
    assert found["scheduler"] == {"type": "cosine", "warmup_steps": 2} and found["optimizer"] == {"lr": 1e-3}
    assert found["train"]["seed"] == 3 and found["train"]["steps"] == 40 and found["train"]["micro_batch_size"] == 4
    assert config == {"train": {"seed": 3}, "scheduler": {"type": "cosine", "warmup_steps": 5}}
    assert runs.settings(PROFILE, 1, Path("a"))["scheduler.warmup_steps"] == 0, "the warm-up is shorter than the run"


def test_a_result_is_a_file_and_is_not_made_again(folder, capsys):
    made = []

    def work(number):
        made.append(number)
        return {"number": number}

    tasks = {f"task-lr0.5-s{number}": lambda number=number: work(number) for number in range(3)}
    found = folder.runner(2).do(tasks, lambda result: f"number {result['number']}, ")
    assert found == {f"task-lr0.5-s{number}": {"number": number} for number in range(3)} and sorted(made) == [0, 1, 2]
    assert "task-lr0.5-s1: number 1, " in capsys.readouterr().out
    files = sorted(path.name for path in (folder.path / "results").iterdir())
    assert files == [f"task-lr0.5-s{number}.json" for number in range(3)]
    assert folder.runner().do(tasks) == found and len(made) == 3 and capsys.readouterr().out == ""


def test_what_has_not_begun_is_left_out_where_one_fails(folder):
    begun = []

    def fails():
        begun.append("fails")
        raise runs.RunFailed("no such file")

    tasks = {"first": lambda: begun.append("first") or {}, "fails": fails}
    tasks |= {f"later-{number}": lambda number=number: begun.append(number) or time.sleep(0.2) for number in range(20)}
    with pytest.raises(SystemExit, match="fails: no such file"):
        folder.runner().do(tasks)
    assert begun[:2] == ["first", "fails"] and len(begun) < 6
    assert (folder.path / "results" / "first.json").exists() and not (folder.path / "results" / "fails.json").exists()


def test_an_interrupted_training_continues_and_a_finished_one_leaves_no_checkpoints(folder):
    runner = folder.runner()
    with pytest.raises(runs.RunFailed, match="exit code 1\nout of memory"):
        runner.train("one", folder.config("one", "stop"))
    found = runner.do({"one": lambda: {"loss": runner.train("one", folder.config("one"))[0][-1]["loss"]}})
    runner.train("two", folder.config("two"))
    assert [call[2] for call in folder.calls()] == ["--overwrite", "--resume", "--overwrite"]
    assert found["one"] == {"loss": 3.5} and runner.model("one").exists()
    assert not (folder.path / "runs" / "one" / "checkpoints").exists()
    steps, evaluations, seconds = runner.train("two", folder.config("two"))
    assert len(steps) == 1 and evaluations[0]["eval"] == {"hard": 3.0} and 0 < seconds < 60


def test_an_evaluation_with_and_without_a_teacher(folder):
    runner = folder.runner()
    assert runner.evaluate("model", "data", "teacher", ["eval.batches=2"]) == {"hard": 2.5}
    assert runner.evaluate("model", "data") == {"hard": 2.5}
    with_teacher, alone = folder.calls()
    assert with_teacher[with_teacher.index("--teacher") + 1] == "teacher" and "eval.batches=2" in with_teacher
    assert "loss.divergence=forward_kl" in with_teacher
    assert "--teacher" not in alone and "loss.divergence=forward_kl" not in alone and "data.seq_len=32" in alone


def test_a_program_is_asked_to_end_when_the_time_is_over(tmp_path):
    command = ["sh", "-c", f"trap 'echo saved > {tmp_path}/saved; exit 3' TERM; sleep 300 & wait"]
    assert runs.call(["echo", "in time"], deadline=time.monotonic() + 60) == "in time\n"
    with pytest.raises(runs.Stopped):
        runs.call(command, deadline=time.monotonic() + 1)
    assert (tmp_path / "saved").read_text() == "saved\n"


def test_ctrl_c_ends_the_programs_and_begins_no_other(tmp_path):
    script = tmp_path / "study.py"
    script.write_text(
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job inherits that it is ignored
        f"sys.path.append({str(Path(runs.__file__).parents[1])!r})\n"
        "from pathlib import Path\nfrom types import SimpleNamespace\nfrom shared import runs\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "arguments = SimpleNamespace(program='', jobs=2, threads=1)\n"
        "profile = SimpleNamespace(device='cpu')\n"
        "runner = runs.Runner(arguments, profile, folder / 'runs', folder / 'results')\n"
        "def work(name):\n"
        "    runner.call('sh', '-c', f'echo $$ > {folder}/{name}.pid; exec sleep 300')\n"
        "runner.do({name: lambda name=name: work(name) for name in ('a', 'b', 'c')})\n"
    )
    process = subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True)
    pids = [tmp_path / "a.pid", tmp_path / "b.pid"]
    until = time.monotonic() + 60
    while not all(path.exists() and path.read_text().strip() for path in pids):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0 and "KeyboardInterrupt" in errors
    assert not (tmp_path / "c.pid").exists()
    for path in pids:
        state = Path(f"/proc/{path.read_text().strip()}/stat")
        assert not state.exists() or state.read_text().split()[2] == "Z"
