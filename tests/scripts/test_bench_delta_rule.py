"""scripts/benches/bench_delta_rule.py without a GPU: the processes that compile end in time, and so does the script."""

import subprocess
import sys
import time

import pytest

import bench_delta_rule


@pytest.fixture
def part(tmp_path, monkeypatch):
    """A function that makes this Python code stand for the script in the processes that compile."""

    def stand_in(code, parts):
        script = tmp_path / "part.py"
        script.write_text(f"import sys, time\nnumber = int(sys.argv[2])\n{code}\n")
        monkeypatch.setattr(bench_delta_rule, "__file__", str(script))
        monkeypatch.setattr(bench_delta_rule, "PARTS", parts)

    return stand_in


def test_problems_of_processes_are_counted(part, capsys):
    part("print(*sys.argv[3:], sep='|') if number == 0 else print('done' if number < 3 else 'no memory')", parts=4)
    bench_delta_rule.compile_beside([(32, 8192, 8192), (32, 65536, 700), (48, 64, 64)], False, seconds=60)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("compiled in ")
    assert line.endswith("s; 1 x --shapes|32x2048x2048; 1 x --shapes|48x2048x64; 2 x no memory")
    assert bench_delta_rule.COMPILERS == []


def test_a_process_that_hangs_or_dies_is_named(part, capsys):
    part("time.sleep(600) if number else sys.exit(3)", parts=3)
    begin = time.monotonic()
    bench_delta_rule.compile_beside([(32, 64, 64)], True, seconds=2)
    assert time.monotonic() - begin < 30
    line = capsys.readouterr().out
    assert "1 x a process ended with 3" in line and "2 x a process was not done in time" in line


def test_the_script_ends_at_its_limit():
    code = "import bench_delta_rule, time; bench_delta_rule.end_after(1); time.sleep(600)"
    folder = bench_delta_rule.__file__.rpartition("/")[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (bench_delta_rule.TOO_LATE, "not done within 1 s\n"), done.stderr


def test_shapes_are_checked():
    assert bench_delta_rule.shapes_of("32x8192x700,48x64x64") == [(32, 8192, 700), (48, 64, 64)]
    for text in ("32x8192", "31x64x64", "axbxc"):
        with pytest.raises(SystemExit, match="--shapes: value heads"):
            bench_delta_rule.shapes_of(text)
