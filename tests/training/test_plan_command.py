"""What a plan says, what a run that does not fit is told, and what `plan` and `profile-memory` write."""

import json
import pickle
import re
import subprocess
import sys

import pytest

import tiny
from memory_plans import config_of, profile


def too_tight(folder, pair, shard, **memory):
    """The configuration of a run whose allocator may take less than the tensors need at their peak."""
    # The plan counts the 780 MiB that a driver takes under the limit: on a GPU, tensors need several times of that.
    rows = 2 if tiny.DEVICE == "cpu" else 2048
    train = {"steps": 3, "micro_batch_size": rows, "global_batch_size": rows}
    config = config_of(folder, pair, shard, train=train, memory=memory)
    config["memory"]["limit_gib"] = 0.9 * tiny.plan(folder, config, "--ranks", 1)["bytes"]["peak"] / 2**30
    return config


def test_a_plan_that_does_not_fit_stops_before_any_weight_is_read(tmp_path, models, long_shard):
    config = too_tight(tmp_path, models["llama"], long_shard)
    (tmp_path / "student").mkdir()
    for name in ("config.json", "model.safetensors"):  # weights that would be an error if they were read
        content = (tiny.Path(models["llama"][0]) / name).read_bytes()
        (tmp_path / "student" / name).write_bytes(content)
    config["student"]["path"] = str(tmp_path / "student")
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.DOES_NOT_FIT)
    assert "the memory plan does not fit: device memory" in done.stderr
    assert "what would fit, the fastest first:" in done.stderr
    assert "memory.on_overflow=warn tries anyway" in done.stderr
    assert not (tmp_path / "run").exists()
    # The plan and the dry run have the same exit code. Only a run may be tried anyway.
    path = tmp_path / "config.yaml"
    for flags in ((), ("--json",)):
        tiny.distill("plan", "--config", path, *flags, code=tiny.DOES_NOT_FIT)
    tiny.distill("--config", path, "--dry-run", code=tiny.DOES_NOT_FIT)
    tiny.distill("--config", path, "--dry-run", "--set", "memory.on_overflow=warn")
    tiny.distill("plan", "--config", path, "--set", "memory.on_overflow=warn", code=tiny.DOES_NOT_FIT)
    tiny.distill("plan", "--config", path, "--set", "memory.limit_gib=16")


def test_out_of_memory_says_what_was_held_and_what_would_fit(tmp_path, models, long_shard):
    config = too_tight(tmp_path, models["llama"], long_shard, on_overflow="warn")
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.RUNTIME_FAILURE)
    report = done.stderr[done.stderr.index("out of memory on rank 0") :]
    for text in (
        "were asked for while tensors held",
        "activations",
        "moments",
        "the plan had predicted a peak of",
        "what would fit, the fastest first:",
    ):
        assert text in report, report
    # The first change that is named fits.
    settings, numbers = report.split("the fastest first:")[1].strip().splitlines()[0].split("  (")
    assert re.fullmatch(r"predicted peak [\d.]+ \w+, \d+ tok/s\)", numbers)
    assert tiny.plan(tmp_path, config, "--set", *settings.split())["fits"]


def test_offload_beyond_the_hosts_memory_is_refused_with_both_numbers(tmp_path, models, long_shard):
    config = config_of(tmp_path, models["llama"], long_shard, memory={"activation": "offload"})
    # In bfloat16 the attention of all rows is one call; a GPU's in float32 is one for each row, which the plan counts.
    config["train"].update(micro_batch_size=1 << 21, global_batch_size=1 << 21, dtype="bfloat16")
    config["loss"] = {}  # a head in few chunks
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.DOES_NOT_FIT)
    found = re.search(r"host memory of a rank: ([\d.]+) (\w+) are predicted, ([\d.]+) (\w+) are there", done.stderr)
    assert found, done.stderr
    scale = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
    assert float(found[1]) * scale[found[2]] > float(found[3]) * scale[found[4]]
    # Without the plan's word the slab itself refuses, before any of it is taken.
    config["memory"]["on_overflow"] = "warn"
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.RUNTIME_FAILURE)
    assert re.search(
        r"memory.activation: expected [\d.]+ \w+ of host memory .*, found [\d.]+ \w+ available", done.stderr
    )


def test_each_change_that_a_plan_names_fits(tmp_path, models, long_shard):
    rows = 32  # a number whose tensors take more than a GPU's product library, whose 32 MiB nothing makes smaller
    train = {"steps": 3, "micro_batch_size": rows, "global_batch_size": rows}
    config = config_of(tmp_path, models["llama"], long_shard, train=train)

    def plan(*sets, ranks=1, code=tiny.SUCCESS):
        sets = ["--set", *sets] if sets else []
        return tiny.plan(tmp_path, config, "--ranks", ranks, *sets, code=code)

    whole = plan()["bytes"]["peak"]
    limit = f"memory.budget_gib={0.8 * whole / 2**30}"
    found = plan(limit, code=tiny.DOES_NOT_FIT)
    assert not found["fits"] and 1 <= len(found["changes"]) <= 3
    for change in found["changes"]:
        settings = dict(change["settings"])
        ranks = int(settings.pop("ranks", settings.pop("parallel.processes", 1)))
        sets = [f"{key}={value}" for key, value in settings.items()]
        if ranks > 1:
            sets.append(f"train.global_batch_size={rows * ranks}")
        changed = plan(limit, *sets, ranks=ranks)
        assert changed["fits"] and changed["bytes"]["peak"] == change["peak_bytes"], change
        assert changed["tokens_per_second"] == pytest.approx(change["tokens_per_second"], rel=0.01), change
        speed = changed["tokens_per_second"] / found["tokens_per_second"] / ranks
        assert speed == pytest.approx(change["speed"], rel=0.01), change


def test_profile_leaves_a_snapshot_that_memory_viz_opens_and_a_timeline(tmp_path, models, long_shard):
    config = config_of(tmp_path, models["llama"], long_shard)
    profile(tmp_path, config)
    folder = tmp_path / "profile"
    with open(folder / "snapshot.pickle", "rb") as file:
        snapshot = pickle.load(file)
    from torch.cuda import _memory_viz

    if tiny.DEVICE == "cpu":
        labels = {frame["name"] for entry in snapshot["device_traces"][0] for frame in entry["frames"]}
        assert {"activations", "moments", "head", "forward", "backward"} <= labels
    else:  # the snapshot of the caching allocator, which knows no categories, but has segments
        actions = {entry["action"] for entry in snapshot["device_traces"][0]}
        assert {"alloc", "free_requested", "free_completed"} <= actions
        assert actions & {"segment_alloc", "segment_map"}  # the second one of expandable segments
        assert sum(segment["total_size"] for segment in snapshot["segments"]) > 0
    assert len(_memory_viz.trace_plot(snapshot)) > 10_000
    script = tiny.REPOSITORY / "scripts" / "plot_memory.py"
    drawn = subprocess.run([sys.executable, script, folder], capture_output=True, text=True, timeout=120)
    assert drawn.returncode == 0, drawn.stderr
    assert (folder / "timeline.png").read_bytes()[:4] == b"\x89PNG"
    written = sorted(path.name for path in folder.iterdir())
    assert written == ["report.json", "snapshot.pickle", "timeline.json", "timeline.png"]


def test_a_sweep_has_a_row_for_each_value(tmp_path, models, long_shard):
    config = config_of(tmp_path, models["llama"], long_shard)
    path = tiny.write_config(tmp_path, config)
    sweep = ("--out", tmp_path / "sweep", "--sweep", "loss.chunk_size=16,64", "--steps", 2)
    done = tiny.distill("profile-memory", "--config", path, *sweep)
    rows = done.stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["loss.chunk_size", "16", "64"]
    for row in rows[1:]:
        assert abs(float(row.split()[3].rstrip("%"))) < 3, row


def test_plan_needs_shapes_alone_and_any_number_of_ranks(tmp_path, models, long_shard):
    config = config_of(tmp_path, models["llama"], long_shard)
    for model in ("student", "teacher"):
        folder = tmp_path / model
        folder.mkdir()
        (folder / "config.json").write_bytes((tiny.Path(config[model]["path"]) / "config.json").read_bytes())
        config[model]["path"] = str(folder)
    config["data"]["train"] = [{"path": str(tmp_path / "nothing.dtok")}]
    config["train"]["global_batch_size"] = 2048
    peaks = []
    for ranks in (1, 4, 1024):
        plan = tiny.plan(tmp_path, config, "--ranks", ranks)
        assert plan["ranks"] == ranks and plan["fits"]
        peaks.append(plan["bytes"]["peak"])
    assert peaks[0] > peaks[2]
    plan = ("plan", "--config", tmp_path / "config.yaml")
    text = tiny.distill(*plan, "--ranks", 4).stdout
    for part in ("activations", "moments", "allocator slack", "tokens per second", "offloaded activations"):
        assert part in text
    budget = ("--set", "memory.budget_gib=0.05")
    longest = tiny.distill(*plan, "--ranks", 1, "--longest", "--json", *budget, code=tiny.BAD_INPUT)
    assert "--longest" in longest.stderr  # the models have 256 positions


@pytest.mark.parametrize("ranks", [1, 2])
def test_calibration_writes_speeds_that_plan_reads(tmp_path, models, long_shard, ranks):
    tiny.need_devices(ranks)
    config = config_of(tmp_path, models["llama"], long_shard)
    file = tmp_path / "machine.json"
    path = tiny.write_config(tmp_path, config)
    assert "all-gather" in tiny.distill("plan", "--config", path, "--ranks", ranks, "--calibrate", file).stdout
    machine = json.loads(file.read_text())
    assert f"{ranks} rank(s)" in machine["name"] and machine["matmul_flops"] > 1e8
    plan = tiny.plan(tmp_path, config, "--ranks", 1, "--set", f"memory.machine={file}")
    assert plan["machine"] == machine["name"] and machine["measured"]["date"] in plan["machine_source"]
    assert machine["measured"]["device"] in machine["name"] and machine["measured"]["libtorch"]


def test_a_plan_for_a_named_machine_has_its_memory_and_says_that_it_was_not_measured(
    tmp_path, models, long_shard, monkeypatch
):
    config = config_of(tmp_path, models["llama"], long_shard, train={"device": "auto", "steps": 1})
    flags = ("--ranks", 1, "--set", "memory.machine=a100-sxm-80")
    text = tiny.distill("plan", "--config", tiny.write_config(tmp_path, config), *flags).stdout
    assert "NVIDIA A100-SXM4-80GB (data sheet, not measured; memory.machine)" in text and "of 79.1 GiB" in text
    assert "expandable segments" in text and "assumed, as on NVIDIA A100-SXM4-80GB" in text
    small = tiny.plan(tmp_path, config, *flags)["bytes"]
    segments = tiny.plan(tmp_path, config, *flags, "--set", "memory.allocator=segments")
    assert segments["allocator"] == "segments" and segments["bytes"]["peak"] == small["peak"]
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    assert tiny.plan(tmp_path, config, *flags)["allocator"] == "segments"
