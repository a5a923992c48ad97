"""Stopping and resuming changes no bit; on other ranks only rounding; a signal loses nothing."""

import json
import shutil
import signal
from pathlib import Path

import pytest

import jobs
import tiny
from model_files import change_model
from run_results import files, state_files, timeless


@pytest.fixture
def config(tmp_path, models, ragged_shard):
    def build(name, steps, **sections):
        data = {"shuffle": True, "packing": "pack", "seed": 5, "eval": [{"path": ragged_shard}]}
        train = {"steps": steps, "deterministic": tiny.DEVICE == "cuda"}  # bit for bit is promised on GPUs in that mode
        sections = {"data": data, "train": train, "eval": {"every": 4, "batches": 2}} | sections
        return tiny.base_config(tmp_path / name, *models["qwen3"], ragged_shard, **sections)

    return build


@pytest.mark.parametrize(
    "threads, parallel, moments",
    [
        (1, {"processes": 1}, "float32"),
        (2, {"processes": 1}, "float32"),
        (1, {"processes": 2}, "float32"),
        (1, {"processes": 4}, "float32"),
        (1, {"processes": 4, "shard": 2, "replicate": 2}, "float32"),
        (2, {"processes": 1}, "bfloat16"),
        (1, {"processes": 4, "shard": 2, "replicate": 2}, "bfloat16"),
    ],
)
def test_two_halves_equal_the_whole_bit_for_bit(tmp_path, config, threads, parallel, moments):
    sections = {"checkpoint": {"every": 6}, "parallel": parallel, "optimizer": {"moments": moments}}
    whole = config("whole", 12, **sections)
    whole["train"]["micro_batch_size"] = 1
    run = tiny.train(tmp_path / "whole", whole, threads=threads)
    model, state, metrics = files(run / "model"), state_files(run, 12), tiny.read_metrics(run)
    assert len(state) == parallel.get("shard", parallel["processes"])

    # The second run has done all 12 steps too; the end of it is then lost, as if it had been killed after step 6.
    half = config("half", 12, **sections)
    half["train"]["micro_batch_size"] = 1
    run = tiny.train(tmp_path / "half", half, threads=threads)
    checkpoints = sorted((run / "checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
    assert [path.name for path in checkpoints] == ["step-6", "step-12"]
    shutil.rmtree(checkpoints[1])
    shutil.rmtree(run / "model")
    tiny.train(tmp_path / "half", half, "--resume", threads=threads)
    assert files(run / "model") == model
    assert state_files(run, 12) == state
    for found, reference in zip(tiny.read_metrics(run), metrics, strict=True):
        assert timeless(found) == timeless(reference)


def test_moments_of_another_dtype_are_refused(tmp_path, config):
    before = config("run", 4)
    run = tiny.train(tmp_path / "run", before)
    sizes = {path.stat().st_size for path in (run / "checkpoints" / "step-4").glob("rank-*")}
    after = config("run", 6, optimizer={"moments": "bfloat16"})
    path = tiny.write_config(tmp_path / "run", after)
    message = tiny.distill("--config", path, "--resume", code=tiny.BAD_INPUT).stderr
    assert "checkpoint: AdamW, float32 moments" in message and "this run:   AdamW, bfloat16 moments" in message
    small = config("small", 4, optimizer={"moments": "bfloat16"})
    run = tiny.train(tmp_path / "small", small)
    halves = {path.stat().st_size for path in (run / "checkpoints" / "step-4").glob("rank-*")}
    assert 0.6 < max(halves) / max(sizes) < 0.75  # 8 bytes for each parameter instead of 12, and what else there is


def test_the_ranks_may_change_from_one_part_of_a_run_to_the_next(tmp_path, config):
    """4 ranks, 2, 3, 1, then replicas; other micro-batches too: the samples are the same, only sums round otherwise."""
    tiny.need_devices(4)
    parts = [
        ({"processes": 4}, 1),
        ({"processes": 2}, 3),
        ({"processes": 3}, 4),
        ({"processes": 1}, 6),
        ({"processes": 4, "shard": 2, "replicate": 2}, 1),
        ({"processes": 1}, 2),
    ]
    steps = 3 * len(parts)

    def part(name, parallel, micro, total):
        scheduler = {"type": "constant", "warmup_steps": 2}
        result = config(name, total, parallel=parallel, checkpoint={"keep": 9}, scheduler=scheduler)
        result["train"] |= {"micro_batch_size": micro, "global_batch_size": 12}
        result["eval"] = {"every": 3, "batches": 0}
        return result

    expected = tiny.train(tmp_path / "whole", part("whole", {"processes": 1}, 2, steps))
    for index, (parallel, micro) in enumerate(parts):
        run = tiny.train(
            tmp_path / "parts", part("parts", parallel, micro, 3 * (index + 1)), *(["--resume"] if index else [])
        )
        index_json = json.loads((run / "checkpoints" / f"step-{3 * (index + 1)}" / "index.json").read_text())
        assert index_json["samples"] == 36 * (index + 1)
        assert len(index_json["files"]) == parallel.get("shard", parallel["processes"])
    for found, reference in zip(tiny.read_metrics(run), tiny.read_metrics(expected), strict=True):
        assert [line["step"] for line in found] == [line["step"] for line in reference]
        for line, correct in zip(found, reference, strict=True):
            line, correct = line.get("eval", line), correct.get("eval", correct)
            assert line["valid_tokens"] == correct["valid_tokens"], "the same samples in the same global batches"
            assert line["loss"] == pytest.approx(correct["loss"], rel=3e-5)
    difference = tiny.relative_difference(tiny.load_weights(run / "model"), tiny.load_weights(expected / "model"))
    assert difference < 1e-4


def test_resuming_from_an_earlier_checkpoint_sets_the_later_ones_aside(tmp_path, config):
    whole = config("run", 12, checkpoint={"every": 4, "keep": 9})
    run = tiny.train(tmp_path / "run", whole)
    model, metrics = files(run / "model"), tiny.read_metrics(run)
    tiny.train(tmp_path / "run", whole, "--resume-from", run / "checkpoints" / "step-4")
    assert files(run / "model") == model
    for found, reference in zip(tiny.read_metrics(run), metrics, strict=True):
        assert timeless(found) == timeless(reference)
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"step-4", "step-8", "step-12", "step-8.superseded", "step-12.superseded"}
    flags = ("--config", tmp_path / "run" / "config.yaml", "--resume-from", run / "checkpoints" / "step-4")
    tiny.distill(*flags, "--overwrite", code=tiny.BAD_INPUT)


def test_a_run_that_ends_between_setting_aside_and_dropping_lines_loses_none(tmp_path, config):
    """Later checkpoints go first: with the lines gone and them still there, a resumption would leave a gap."""
    whole = config("run", 12, checkpoint={"every": 4, "keep": 9})
    run = tiny.train(tmp_path / "run", whole)
    metrics = tiny.read_metrics(run)
    (run / "metrics.jsonl").rename(tmp_path / "metrics.jsonl")
    (run / "metrics.jsonl").mkdir()
    flags = ("--config", tmp_path / "run" / "config.yaml", "--resume-from", run / "checkpoints" / "step-4")
    failed = tiny.distill(*flags, code=tiny.RUNTIME_FAILURE)
    assert f"{run}/metrics.jsonl: cannot be read" in failed.stderr
    (run / "metrics.jsonl").rmdir()
    (tmp_path / "metrics.jsonl").rename(run / "metrics.jsonl")
    tiny.train(tmp_path / "run", whole, "--resume")
    assert "after step 4" in (run / "log.txt").read_text()
    for found, reference in zip(tiny.read_metrics(run), metrics, strict=True):
        assert timeless(found) == timeless(reference)


def test_other_files_of_the_same_teacher_are_named(tmp_path, config):
    first, teacher = config("run", 4), tmp_path / "teacher"
    shutil.copytree(first["teacher"]["path"], teacher)
    changed = "changed since the checkpoint: the model files of teacher.path"
    for steps in (4, 6, 8):
        if steps == 8:
            change_model(teacher, lambda weights: weights["model.norm.weight"].add_(1))
        longer = config("run", steps)
        longer["teacher"]["path"] = str(teacher)
        run = tiny.train(tmp_path / "run", longer, *(["--resume"] if steps > 4 else []))
        assert (changed in (run / "log.txt").read_text()) == (steps == 8)


def test_a_run_may_branch_off_from_another_ones_checkpoint(tmp_path, config):
    sections = {"checkpoint": {"every": 4, "keep": 9}}
    run = tiny.train(tmp_path / "run", config("run", 12, **sections))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    branch = tiny.train(
        tmp_path / "branch", config("branch", 12, **sections), "--resume-from", run / "checkpoints" / "step-8"
    )
    assert files(branch / "model") == files(run / "model")
    assert [record["step"] for record in tiny.read_metrics(branch)[0]] == [9, 10, 11, 12]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "change, says",
    [
        ({"student": "llama"}, ["qwen3", "llama"]),
        ({"data": {"seed": 6}}, ["seed 5", "seed 6"]),
        ({"data": {"shuffle": False}}, ["shuffled", "in order"]),
        ({"data": {"seed": 6, "seq_len": 64}}, [f"seq_len 32, pack, shuffled, seed {seed}" for seed in (5, 6)]),
    ],
)
def test_a_run_that_cannot_go_on_is_refused_with_both_values(tmp_path, config, models, change, says):
    first = config("run", 4)
    run = tiny.train(tmp_path / "run", first)
    other = config("run", 8)
    if "student" in change:
        other["student"]["path"], other["teacher"]["path"] = models[change.pop("student")]
    for section, values in change.items():
        other[section] |= values
    refused = tiny.distill("--config", tiny.write_config(tmp_path / "run", other), "--resume", code=tiny.BAD_INPUT)
    lines = [line for line in refused.stderr.splitlines() if "checkpoint: " in line or "this run:" in line]
    assert any(says[0] in line for line in lines if "checkpoint: " in line), refused.stderr
    assert any(says[1] in line for line in lines if "this run:" in line), refused.stderr
    assert (run / "checkpoints" / "step-4" / "COMPLETE").exists()


def test_an_evaluation_that_is_due_and_not_in_the_checkpoint_comes_after_the_resumption(tmp_path, config):
    """As after a signal during the evaluation. A run without evaluations stands in for that."""
    expected = tiny.read_metrics(tiny.train(tmp_path / "whole", config("whole", 12)))[1]
    first = config("run", 12, checkpoint={"every": 4, "keep": 9})
    first["eval"]["every"] = 0
    run = tiny.train(tmp_path / "run", first)
    assert tiny.read_metrics(run)[1] == []
    first["eval"]["every"] = 4
    tiny.train(tmp_path / "run", first, "--resume-from", run / "checkpoints" / "step-8")
    assert timeless(tiny.read_metrics(run)[1]) == timeless(line for line in expected if line["step"] >= 8)
    # The last evaluation is not in the last checkpoint, and does not come twice.
    tiny.train(tmp_path / "run", first, "--resume")
    assert timeless(tiny.read_metrics(run)[1]) == timeless(line for line in expected if line["step"] >= 8)


def stop_after(steps, configuration, folder, number):
    """Starts a run and signals it once `steps` steps are in metrics.jsonl. Returns the exit code and its output."""
    path = tiny.write_config(folder, configuration)
    with open(Path(folder) / "output.txt", "w+") as output:
        process = tiny.start(path, stdout=output, stderr=output)
        jobs.until(lambda: jobs.steps_done(configuration["run"]["dir"]) >= steps, process)
        process.send_signal(number)
        code = process.wait(timeout=60)
        output.seek(0)
        return code, output.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_resumed_run_equals_the_whole(tmp_path, config, number):
    steps = 300
    expected = tiny.train(tmp_path / "whole", config("whole", steps))
    stopped = config("stopped", steps)
    code, output = stop_after(10, stopped, tmp_path / "stopped", number)
    run = Path(stopped["run"]["dir"])
    assert code == tiny.STOPPED_BY_SIGNAL, output
    assert "--resume" in output
    done = tiny.read_metrics(run)[0]
    assert 10 - 3 <= len(done) < steps, "the run ended before the signal came: the test needs more steps"
    assert not (run / "model").exists(), "a model is written at the end only"
    assert (run / "checkpoints" / f"step-{len(done)}").is_dir()

    tiny.train(tmp_path / "stopped", stopped, "--resume")
    assert files(run / "model") == files(expected / "model")
    for found, reference in zip(tiny.read_metrics(run), tiny.read_metrics(expected)):
        assert timeless(found) == timeless(reference)


def test_a_killed_run_resumes_from_its_newest_complete_checkpoint(tmp_path, config):
    steps = 300
    expected = tiny.train(tmp_path / "whole", config("whole", steps))
    killed = config("killed", steps, checkpoint={"every": 5})
    code, output = stop_after(20, killed, tmp_path / "killed", signal.SIGKILL)
    assert code == -signal.SIGKILL, output
    run = Path(killed["run"]["dir"])
    # A checkpoint that was being written when the machine died: unfinished, and newer than every complete one.
    newest = max(
        (marker.parent for marker in (run / "checkpoints").glob("step-*/COMPLETE")),
        key=lambda path: int(path.name.split("-")[1]),
    )
    torn = run / "checkpoints" / "step-299"
    torn.mkdir()
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    (torn / largest.name).write_bytes(largest.read_bytes()[:1000])
    tiny.train(tmp_path / "killed", killed, "--resume")
    assert files(run / "model") == files(expected / "model")
    assert [record["step"] for record in tiny.read_metrics(run)[0]] == list(range(1, steps + 1))


def test_a_run_folder_is_neither_overwritten_nor_resumed_without_being_asked(tmp_path, config):
    first = config("run", 4)
    run = tiny.train(tmp_path / "run", first)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    refused = tiny.distill("--config", tiny.write_config(tmp_path / "run", first), code=tiny.BAD_INPUT)
    assert "--resume" in refused.stderr and "--overwrite" in refused.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    tiny.train(tmp_path / "run", first, "--overwrite")
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["step"] == 1
    assert files(run / "model")["model.safetensors"] == before[run / "model" / "model.safetensors"]
