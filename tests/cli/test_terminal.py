"""What a run shows on terminals of many widths, with and without colour (docs/terminal.md)."""

import os
import re
import subprocess

import pytest

import tiny_job
from program import distill_program
from terminal import run_in_terminal, screen_of, set_columns

STEPS = 30
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
BAR = re.compile(r"^(\[#*\.*\] +)?(step )?\d+/\d+ ")
STAMP = re.compile(r"^\d{4}-\d\d-\d\d ")


def train(place, columns, *settings, environment=None, steps=STEPS, **options):
    sets = [part for setting in (f"train.steps={steps}", "run.progress=auto", *settings) for part in ("--set", setting)]
    command = [distill_program(), "--config", "config.yaml", *sets]
    code, output = run_in_terminal(
        command,
        columns,
        environment={"OMP_NUM_THREADS": "1", "NO_COLOR": None, **(environment or {})},
        cwd=place,
        **options,
    )
    assert code == 0, output
    return output


def frames(output):
    """What stood on the line that is rewritten, each time."""
    pieces = [COLOUR.sub("", piece.split("\r\n")[0]) for piece in output.split("\r\x1b[K")[1:]]
    return [piece for piece in pieces if BAR.match(piece)]


def step_lines(output):
    return [line for line in COLOUR.sub("", output).split("\r\n") if BAR.match(line)]


def has_the_four(line, steps=STEPS):
    """Step, loss, tok/s and ETA."""
    return re.search(rf"\b\d+/{steps} +(loss )?\d[\d.e-]* .*[\dk] tok/s.* \d+:\d\d\b", line)


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("coloured", [True, False])
def test_the_bar_has_step_loss_speed_and_eta_on_any_width(place, columns, coloured):
    output = train(place, columns, environment={} if coloured else {"NO_COLOR": "1"})
    shown = frames(output)
    assert len(shown) >= STEPS
    for line in shown:
        assert has_the_four(line) and len(line) < columns, line
    if columns > 40:
        assert all(line.startswith("[") for line in shown)
    if columns == 200:
        assert "agree" in shown[-1] and "rss" in shown[-1]
    assert bool(COLOUR.search(output)) == coloured
    # Log lines and bar do not tear each other: no line holds parts of both.
    for line in screen_of(output, 10_000).text().splitlines():
        assert line.count("eta ") <= (0 if STAMP.match(line) else 1), line
    assert screen_of(output, columns).text().splitlines()[-1] != ""


def test_without_progress_nothing_is_printed_and_the_log_has_all(distill, place):
    sets = [part for one in ("eval.every=1", "checkpoint.every=1") for part in ("--set", one)]
    done = distill(place, "--config", "config.yaml", *sets)
    assert done.returncode == 0 and done.stdout == "", done
    log = (place / "run" / "log.txt").read_text()
    assert "wrote the model" in log and "eval" in log and "saved" in log


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("settings", [{"TERM": "dumb"}, {"TERM": None}, {}])
def test_lines_fit_into_the_terminal(place, columns, settings):
    output = train(place, columns, *([] if settings else ["run.progress=lines"]), environment=settings)
    lines = step_lines(output)
    assert len(lines) == STEPS
    for line in lines:
        assert has_the_four(line) and len(line) < columns, line
    if settings:
        assert "\x1b" not in output and "\r" not in output.replace("\r\n", "\n")


def test_a_bar_is_no_bar_where_lines_cannot_be_rewritten(place):
    output = train(place, 80, "run.progress=bar", environment={"TERM": "dumb"})
    assert "\x1b" not in output and len(step_lines(output)) == STEPS


def test_the_bar_follows_the_width(place):
    narrow_from = []

    def resize(output, terminal):
        if not narrow_from and b"step 20/300" in output:
            set_columns(terminal, 40)
            narrow_from.append(len(output))

    output = train(place, 200, steps=300, on_output=resize)
    assert narrow_from
    shown = frames(output)
    assert max(map(len, shown[:20])) > 100
    assert all(len(line) < 40 and has_the_four(line, 300) for line in shown[-100:])


def test_warnings_have_colour_where_it_is_forced(place):
    tiny_job.write_shard(place / "empty.dtok", documents=30, masked=True)
    command = [distill_program(), "--config", "config.yaml", "--overwrite"]
    sets = ["run.progress=lines", "data.train=empty.dtok", "train.steps=2"]
    command += [part for setting in sets for part in ("--set", setting)]
    for variables, coloured in (
        ({}, False),
        ({"CLICOLOR_FORCE": "1"}, True),
        ({"CLICOLOR_FORCE": "0"}, False),
        ({"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, False),
        ({"CLICOLOR_FORCE": "1", "NO_COLOR": ""}, True),
    ):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        warning = next(line for line in done.stderr.splitlines() if "has a target" in line)
        step = done.stdout.splitlines()[0]
        assert bool(COLOUR.search(warning)) == coloured == bool(COLOUR.search(step)), (variables, warning, step)
        # Outside a terminal a line has everything.
        for part in ("step 1/2", "loss -", "|g| -", "lr ", "tok/s", "rss ", "eta ", "EMPTY"):
            assert part in step


class PatternShown(Exception):
    pass


def until(pattern):
    def look(output, _):
        if re.search(pattern, COLOUR.sub("", output.decode(errors="replace"))):
            raise PatternShown

    return look


def test_a_long_evaluation_shows_how_far_it_is(place):
    tiny_job.write_shard(place / "eval.dtok", documents=40_000)
    command = [distill_program(), "eval", "--config", "config.yaml", "--set", "run.progress=auto"]
    with pytest.raises(PatternShown):
        pattern = r"\r\x1b\[K\[#*\.*\]  evaluation  \d+%  \d+/\d+ sequences  eta \d+:\d\d"
        run_in_terminal(command, 80, {"OMP_NUM_THREADS": "1"}, cwd=place, on_output=until(pattern))


def test_a_long_verification_shows_how_far_it_is(place):
    with open(place / "student" / "large", "wb") as file:
        file.truncate(1 << 38)  # sparse
    (place / "student" / "checksums.xxh3").write_text("XXH3 (large) = 0123456789abcdef\n")
    with pytest.raises(PatternShown):
        pattern = r"\r\x1b\[Kverifying +\d+% +eta \d+"
        run_in_terminal([distill_program(), "verify", "student"], 30, {}, cwd=place, on_output=until(pattern))


def test_short_tasks_show_nothing(place):
    code, output = run_in_terminal([distill_program(), "eval", "--config", "config.yaml"], 80, {}, cwd=place)
    assert code == 0 and "\x1b[K" not in output
