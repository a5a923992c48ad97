"""What the command line prints and returns when nothing is wrong."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]


def test_help_names_commands_options_and_exit_codes(distill, tmp_path):
    done = distill(tmp_path, "--help")
    assert done.returncode == 0
    for text in (
        "--config",
        "--set",
        "--resume",
        "--overwrite",
        "--dry-run",
        "--help-config",
        "eval",
        "inspect",
        "Exit codes: 0",
        "3 stopped by",
    ):
        assert text in done.stdout


def test_version_names_libtorch(distill, tmp_path):
    done = distill(tmp_path, "--version")
    assert done.returncode == 0
    assert re.fullmatch(r"distill \d+\.\d+\.\d+ \(libtorch 2\.11\.0, with(out)? CUDA\)\n", done.stdout)


def test_documentation_holds_the_help_of_every_key(distill, tmp_path):
    done = distill(tmp_path, "--help-config")
    assert done.returncode == 0
    reference = (ROOT / "docs" / "configuration.md").read_text()
    assert done.stdout in reference, "docs/configuration.md is behind: run tests/cli/update_reference.py"


def test_dry_run_checks_a_good_job_and_writes_nothing(distill, job):
    before = sorted(job.rglob("*"))
    done = distill(job, "--config", "config.yaml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert sorted(job.rglob("*")) == before


def write_adapter(folder, base):
    """An adapter of rank 2 on one module of the model in `base`, as peft writes it."""
    name = "model.layers.0.self_attn.q_proj"
    rows, columns = load_file(base / "model.safetensors")[f"{name}.weight"].shape
    folder.mkdir(parents=True)
    adapter = {"A": np.ones((2, columns), dtype=np.float32), "B": np.ones((rows, 2), dtype=np.float32)}
    tensors = {f"base_model.model.{name}.lora_{which}.weight": values for which, values in adapter.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    description = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": [name]}
    (folder / "adapter_config.json").write_text(json.dumps(description))


# tests/training/test_other_tokenizer.py has those whose models have two tokenizers.
EXAMPLES = [path for path in (ROOT / "configs").glob("*.yaml") if "alignment: bytes" not in path.read_text()]


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES))
def test_example_configs_pass_a_dry_run_on_tiny_models(distill, name, place):
    config = ROOT / "configs" / name
    rounds = ("onpolicy.prompts=train", "onpolicy.max_new_tokens=8", "onpolicy.completions=0")
    if "eval_prompts:" in config.read_text():
        rounds += ("onpolicy.eval_prompts=eval.dtok", "onpolicy.eval_completions=2")
    data = rounds if "\nonpolicy:" in config.read_text() else ("data.train=train",)
    teacher = "teacher.path=teacher"
    if "\nteachers:" in config.read_text():
        adapters = [f"{{name: {name}, path: teacher, adapter: adapters/domain}}" for name in ("math", "code")]
        teacher = f"teachers=[{', '.join(adapters)}]"
        dealt = "teacher: {math: 1, code: 1}}"
        data = (f"data.train={{path: train, {dealt}", f"data.eval={{path: eval.dtok, {dealt}")
    overrides = [
        part
        for text in (
            "data.eval=eval.dtok",
            *data,
            "student.path=student",
            teacher,
            "data.seq_len=32",
            "data.teacher_seq_len=64",
            "train.device=cpu",
            "run.dir=run",
            "train.global_batch_size=8",
            "scheduler.warmup_steps=1",
        )
        for part in ("--set", text)
    ]
    if "adapter: adapters/" in config.read_text():
        write_adapter(place / "adapters" / "domain", place / "teacher")
    if "source: cache" in config.read_text():
        captured = distill(place, "capture", "--config", str(config), *overrides)
        assert captured.returncode == 0, captured.stderr
    done = distill(place, "--config", str(config), "--dry-run", *overrides)
    assert done.returncode == 0, done.stderr
    assert not (place / "run").exists()


@pytest.mark.parametrize(
    "path, says",
    [
        ("student", ["llama", "parameters", "lm_head.weight", "tokenizer", "hash"]),
        ("train", ["token shards", "documents", "tokenizer hash"]),
        ("eval.dtok", ["token shard", "documents", "intact"]),
    ],
)
def test_inspect_describes(distill, job, path, says):
    done = distill(job, "inspect", path)
    assert done.returncode == 0, done.stderr
    for text in says:
        assert text in done.stdout


@pytest.mark.parametrize(
    "args",
    [
        ["verify", "--cache", "c", "--teacher", "teacher", "--samples"],
        ["verify", "--cache", "c", "--teacher", "teacher", "--seq-len"],
        ["quantize", "--teacher", "teacher", "--data", "train", "--tokens"],
        ["quantize", "--teacher", "teacher", "--data", "train", "--limit"],
        ["plan", "--config", "config.yaml", "--ranks"],
        ["plan", "--config", "config.yaml", "--ranks-per-node"],
        ["profile-memory", "--config", "config.yaml", "--steps"],
        ["inspect", "train", "--document"],
        ["inspect", "train", "--tokens"],
        ["inspect", "train", "--tokenizer", "student", "--documents"],
    ],
    ids=lambda args: f"{args[0]} {args[-1]}",
)
def test_counts_that_mean_nothing_are_refused(distill, job, args):
    may_be_zero = args[-1] in ("--document", "--tokens") and args[0] == "inspect"
    is_count = args[-1] != "--limit"
    for value in ["-1", "x"] + (["1e99"] if is_count else []) + ([] if may_be_zero else ["0"]):
        done = distill(job, *args, value)
        assert done.returncode == 2, (value, done.stdout, done.stderr)
        assert args[-1].removeprefix("--").rstrip("s") in done.stderr, (value, done.stderr)
        assert not re.search(r"\d{25}", done.stderr), "a limit of doubles, digit by digit"
