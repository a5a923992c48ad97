"""scripts/benches/bench_pairs.py: a pair of tiny shapes from its command line to the table; commands; lines; errors."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import bench_inputs
import bench_pairs
from pairs import runs, table

BUILD = Path(os.environ.get("DISTILL_BUILD", Path(__file__).resolve().parents[2] / "build" / "release")).absolute()
PROGRAM = Path(os.environ.get("DISTILL", BUILD / "apps" / "distill" / "distill"))


def test_a_tiny_pair_runs_both_sides_and_gets_a_line(script, tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="transformers (scripts/requirements.txt) is not installed")
    assert PROGRAM.is_file(), f"{PROGRAM} is not built (scripts/build.sh), or set DISTILL or DISTILL_BUILD"
    monkeypatch.setenv("DISTILL", str(PROGRAM))
    sizes = "--device cpu --vocab 1009 --sequence 32 --steps 2 --peer-steps 2 --pair tiny:tiny"
    output = script("benches/bench_pairs.py", tmp_path, *sizes.split())
    report = json.loads((tmp_path / "pairs.json").read_text())
    (row,) = report["rows"]
    assert "failed" not in row["ours"] and "failed" not in row["peer"], row
    assert row["ours"]["tokens_per_second_per_gpu"] > 0 and row["peer"]["tokens_per_second_per_gpu"] > 0
    assert row["ours"]["planned_gib"] > 0 and row["ours"]["measured_gib"] > 0 and row["ours"]["activation"]
    assert row["peer"]["form"] == "without checkpointing" and report["versions"]["transformers"]
    page = (tmp_path / "pairs.md").read_text()
    assert page == table.table(report)
    assert output.splitlines()[-1] == page.splitlines()[-1]
    assert "`scripts/benches/bench_trainer.sh tiny tiny 2 --set train.global_batch_size=2" in page


def test_every_pair_has_shapes_and_a_tokenizer_in_common():
    for pair in table.PAIRS:
        student, teacher = (bench_inputs.config(shape) for shape in (pair.student, pair.teacher))
        assert student["vocab_size"] == teacher["vocab_size"], pair.name
    assert len({pair.name for pair in table.PAIRS}) == len(table.PAIRS)


@pytest.mark.parametrize(
    "shape, billions, tied",
    [
        ("qwen3-0.6b", 0.596, True),
        ("qwen3-1.7b", 1.721, True),
        ("qwen3-4b", 4.022, True),
        ("qwen3-8b", 8.191, False),
        ("qwen3-32b", 32.762, False),
    ],
)
def test_qwen3_shapes_have_the_parameters_of_the_models(shape, billions, tied):
    """Against the sizes that the models' pages give: 0.6, 1.7, 4.0, 8.2 and 32.8 billion."""
    keys = bench_inputs.config(shape)
    hidden, ffn, head_dim = keys["hidden_size"], keys["intermediate_size"], keys["head_dim"]
    heads = 2 * keys["num_attention_heads"] + 2 * keys["num_key_value_heads"]
    block = hidden * head_dim * heads + 3 * hidden * ffn + 2 * hidden + 2 * head_dim
    embeddings = keys["vocab_size"] * hidden * (1 if keys["tie_word_embeddings"] else 2)
    assert keys["tie_word_embeddings"] == tied
    assert (keys["num_hidden_layers"] * block + embeddings + hidden) / 1e9 == pytest.approx(billions, abs=5e-4)


@pytest.mark.parametrize(
    "shape, billions",
    [("qwen3.5-2b", 1.882), ("qwen3.5-4b", 4.206), ("qwen3.5-9b", 8.954), ("qwen3.5-27b", 26.896)],
)
def test_qwen3_5_shapes_have_the_parameters_of_the_models(shape, billions):
    """Against the text models that transformers makes of the shapes, and the sizes in their names."""
    transformers = pytest.importorskip(
        "transformers", reason="transformers (scripts/requirements.txt) is not installed"
    )
    keys = bench_inputs.config(shape)
    model_class = getattr(transformers, keys["architectures"][0])
    with torch.device("meta"):
        model = model_class(model_class.config_class(**keys))
    assert sum(weight.numel() for weight in model.parameters()) / 1e9 == pytest.approx(billions, abs=5e-4)


def options(**changes):
    found = {"out": Path("out"), "gpus": ["4", "5"], "device": "cuda", "steps": 10, "peer_steps": 8}
    return SimpleNamespace(**found | {"sequence": 4096, "vocab": None, "limit": 5} | changes)


def test_the_commands_of_a_pair_on_two_gpus():
    pair = next(pair for pair in table.PAIRS if pair.name == "qwen3-4b-32b")
    trainer, without, with_checkpointing = runs.Runs(options()).dry_lines(pair)
    assert "CUDA_VISIBLE_DEVICES=4,5 scripts/benches/bench_trainer.sh qwen3-4b qwen3-32b 10 --set " in trainer
    settings = "train.global_batch_size=4 parallel.processes=2 memory.activation=auto memory.optimizer=auto"
    assert trainer.endswith(f"{settings} teacher.dtype=float8 float8.gate=false")
    assert "--nproc-per-node=2 scripts/benches/bench_trainer_peer.py --student=qwen3-4b --teacher=qwen3-32b" in without
    assert "--teacher-float8=rowwise --no-checkpointing" in without
    assert with_checkpointing.endswith("--teacher-float8=rowwise")


def test_the_teacher_of_qwen3_5_is_sharded_where_it_is_too_much_for_a_gpu():
    found = {pair.name: pair for pair in table.PAIRS}
    trainer, without, _ = runs.Runs(options()).dry_lines(found["qwen3.5-4b-27b"])
    assert "bench_trainer.sh qwen3.5-4b qwen3.5-27b 10 --set train.global_batch_size=4 parallel.processes=2" in trainer
    assert "--student=qwen3.5-4b --teacher=qwen3.5-27b" in without
    assert without.endswith("--teacher-float8=rowwise --shard-teacher --no-checkpointing")
    assert "--shard-teacher" not in found["qwen3.5-4b-27b-1gpu"].peer_options
    assert found["qwen3.5-2b-9b"].peer_options == ()


def test_a_dry_run_prints_commands_and_needs_no_gpu(script, tmp_path):
    output = script("benches/bench_pairs.py", tmp_path / "none", "--dry", "llama-1b-8b", "gemma3-4b-12b")
    assert output.splitlines()[0] == "# Llama 1B <- 8B, 1 GPU(s)" and "CUDA_VISIBLE_DEVICES=0,1 " in output
    assert not (tmp_path / "none").exists()


def row(**changes):
    ours = {"tokens_per_second_per_gpu": 20000.0, "planned_gib": 42.94, "measured_gib": 42.9}
    peer = {"tokens_per_second_per_gpu": 16000.0, "form": "without checkpointing"}
    peer |= {"allocated_gib": 44.2, "reserved_gib": 50.1}
    return {"models": "A <- B", "gpus": 2, "command": "run a b", "ours": ours, "peer": peer} | changes


@pytest.mark.parametrize(
    "changes, line",
    [
        (
            {},
            "| A <- B | 2 | 20000 | 16000 without checkpointing | 1.25 | 42.9 / 42.9 | 44.2 / 50.1 | 13.9 "
            "| `run a b` |",
        ),
        (
            {"peer": {"failed": "does not fit"}},
            "| A <- B | 2 | 20000 | does not fit |  | 42.9 / 42.9 |  | 13.9 | `run a b` |",
        ),
        ({"peer": None}, "| A <- B | 2 | 20000 |  |  | 42.9 / 42.9 |  | 13.9 | `run a b` |"),
        (
            {"ours": {"failed": "needs 2 GPUs, found 1"}, "peer": None},
            "| A <- B | 2 | needs 2 GPUs, found 1 |  |  |  |  |  | `run a b` |",
        ),
    ],
)
def test_lines_of_the_table(changes, line):
    assert table.line_of(row(**changes)) == line


def test_a_pair_that_needs_more_gpus_is_not_run():
    pair = next(pair for pair in table.PAIRS if pair.gpus == 2)
    found = runs.Runs(options(gpus=["0"])).measure(pair)
    assert found["ours"] == {"failed": "needs 2 GPUs, found 1"} and found["peer"] is None


@pytest.mark.parametrize(
    "forms, expected",
    [
        ([0], {"form": "without checkpointing", "tokens_per_second_per_gpu": 5, "versions": {"torch": "2"}}),
        (["CUDA out of memory", 0], {"form": "with checkpointing"}),
        (["CUDA out of memory", "CUDA out of memory"], {"failed": "does not fit"}),
        (["ValueError: a | b"], {"failed": "exit code 1: ValueError: a / b"}),
    ],
)
def test_the_peer_takes_the_first_form_that_fits(forms, expected, tmp_path, monkeypatch):
    measured = iter(forms)

    def run(self, command, pair, log):
        outcome = next(measured)
        log.write_text(str(outcome) + "\n")
        if outcome == 0:
            out = next(part for part in command if part.startswith("--json=")).removeprefix("--json=")
            summary = {"tokens_per_second_per_gpu": 5}
            Path(out).write_text(json.dumps({"summary": summary, "versions": {"torch": "2"}}))
        return 1 if outcome else 0

    monkeypatch.setattr(runs.Runs, "run", run)
    found = runs.Runs(options(out=tmp_path)).peer(table.PAIRS[0])
    assert found == found | expected and next(measured, None) is None


def test_a_run_beyond_the_limit_ends_and_says_so(tmp_path):
    one = runs.Runs(options(limit=1, gpus=[]))
    log = tmp_path / "log"
    code = one.run(["sleep", "60"], table.PAIRS[0], log)
    assert (code, runs.failure(code, log)) == (124, "not done within the limit")


def is_running(process):
    """Whether a process is there, and not only its exit code, which its new parent has yet to read."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_runs_ends_with_the_script(tmp_path):
    """SIGTERM, as of `timeout`, ends the trainer too, though it has a session of its own."""
    pid_file, program = tmp_path / "pid", tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $$ >{pid_file}\nexec sleep 600\n")
    program.chmod(0o755)
    command = [sys.executable, bench_pairs.__file__, tmp_path / "out", *["--device", "cpu", "--pair", "tiny:tiny"]]
    script = subprocess.Popen([*command, "--sequence", "32"], env={**os.environ, "DISTILL": str(program)})
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    script.terminate()
    assert script.wait(timeout=30) == 143
    deadline = time.monotonic() + 30
    while is_running(int(pid_file.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(int(pid_file.read_text()))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "expected the folder OUT for the results, found none"),
        (["out", "llama-3b"], "expected names of pairs \\(llama-1b-8b, .*found llama-3b"),
        (["out", "--steps", "1"], "--steps: expected an integer of at least 2"),
    ],
)
def test_bad_arguments_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        bench_pairs.parse_arguments(arguments)
    assert end.value.code == 2
    assert re.search(message, capsys.readouterr().err)
