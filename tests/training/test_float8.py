"""A float8 teacher: its error against the same teacher without float8, the gate before a run, the run."""

import json

import pytest
import torch
import transformers

import reference_training
import tiny

FLOAT8 = {"dtype": "float8"}
OPEN = {"max_mean_kl": 100.0}  # the tiny random teachers are far from any real one


def float8_config(folder, pair, shard, **sections):
    teacher = FLOAT8 | sections.pop("teacher", {})
    float8 = OPEN | sections.pop("float8", {})
    sections.setdefault("train", {"steps": 4})
    config = tiny.base_config(folder, *pair, shard, scheduler={"warmup_steps": 1}, float8=float8, **sections)
    config["teacher"].update(teacher)
    return config


def rounded(x):
    """e4m3 with a scale for each row, as a number again."""
    scale = (x.abs().amax(-1, keepdim=True) / 448).clamp_min(1e-30)
    return (x * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


class Float8Linear(torch.nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.weight = rounded(linear.weight.detach())

    def forward(self, x):
        return rounded(x) @ self.weight.T


NAMES = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}


def reference_teacher(folder, products=tuple(NAMES), blocks=None):
    """transformers' model with these products of these blocks (None: all) in float8."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for index, layer in enumerate(model.model.layers):
        if blocks is not None and index not in blocks:
            continue
        for name in (name for product in products for name in NAMES[product]):
            owner = layer.self_attn if hasattr(layer.self_attn, name) else layer.mlp
            setattr(owner, name, Float8Linear(getattr(owner, name)))
    return model


@torch.no_grad()
def reference_error(folder, float8, shard, seq_len=32):
    """(mean KL, 99th percentile, agreement, cross-entropy, the same in float8) over all tokens with a target."""
    tokens, targets = reference_training.concat_rows(shard, seq_len)
    valid = targets != reference_training.IGNORE
    exact = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    p, q = (model(tokens).logits[valid][:, : tiny.VOCAB + 1000].double() for model in (exact, float8))
    kl = reference_training.kl(p.log_softmax(-1), q.log_softmax(-1)).sort().values
    labels = targets[valid]
    return {
        "mean_kl": kl.mean().item(),
        "p99_kl": kl[int(0.99 * (len(kl) - 1))].item(),
        "agreement": (p.argmax(-1) == q.argmax(-1)).double().mean().item(),
        "cross_entropy": torch.nn.functional.cross_entropy(p, labels).item(),
        "float8_cross_entropy": torch.nn.functional.cross_entropy(q, labels).item(),
        "tokens": len(kl),
    }


def quantize(folder, pair, shard, *arguments, **sections):
    sections["data"] = {"eval": [{"path": shard}]} | sections.get("data", {})
    config = float8_config(folder, pair, shard, **sections)
    found = tiny.distill(
        "quantize", "--config", tiny.write_config(folder, config), "--json", "--tokens", 10**6, *arguments
    )
    return json.loads(found.stdout)


@pytest.mark.parametrize("family", ["llama", "qwen3", "exaone4"])
def test_the_error_is_that_of_the_formula_in_pytorch(tmp_path, models, ragged_shard, family):
    teacher = models[family][1]
    found = quantize(tmp_path, models[family], ragged_shard, "--limit", 100)["before"]
    expected = reference_error(teacher, reference_teacher(teacher), ragged_shard)
    assert found["tokens"] == expected["tokens"]
    # A value on the edge between two e4m3 numbers may fall either way.
    assert found["mean_kl"] == pytest.approx(expected["mean_kl"], rel=0.02)
    assert found["p99_kl"] == pytest.approx(expected["p99_kl"], rel=0.1)
    assert found["agreement"] == pytest.approx(expected["agreement"], abs=0.02)
    assert found["cross_entropy"] == pytest.approx(expected["cross_entropy"], rel=1e-4)
    assert found["float8_cross_entropy"] == pytest.approx(expected["float8_cross_entropy"], rel=2e-3)


def test_the_effect_of_each_product_is_its_own(tmp_path, models, ragged_shard):
    student, teacher = models["llama"]
    limit = quantize(tmp_path, (student, teacher), ragged_shard, "--limit", 100)["before"]["mean_kl"] * 0.9999
    # One batch holds all the data, so that single products are measured on the same tokens.
    rows = len(reference_training.concat_rows(ragged_shard, 32)[0])
    sections = {"train": {"steps": 4, "micro_batch_size": rows, "global_batch_size": rows}}
    report = quantize(tmp_path, (student, teacher), ragged_shard, "--limit", limit, **sections)
    assert len(report["products"]) == 3 * 4
    assert sum(product["operations"] for product in report["products"]) == pytest.approx(1)
    for entry in report["products"]:
        block, name = entry["product"].split(".")
        expected = reference_error(teacher, reference_teacher(teacher, (name,), (int(block),)), ragged_shard)
        assert entry["mean_kl"] == pytest.approx(expected["mean_kl"], rel=0.05), entry["product"]


def test_exceptions_bring_the_error_under_the_limit_and_the_gate_then_opens(tmp_path, models, ragged_shard):
    pair = models["llama"]
    all_products = quantize(tmp_path, pair, ragged_shard, "--limit", 100)
    assert all_products["found"] and all_products["float8_exceptions"] == []
    limit = all_products["before"]["mean_kl"] / 3
    report = quantize(tmp_path, pair, ragged_shard, "--limit", limit)
    assert report["found"] and report["after"]["mean_kl"] <= limit < report["before"]["mean_kl"]
    given_back = [product for product in report["products"] if not product["float8"]]
    assert 1 <= len(given_back) < 12
    # The most KL for their operations are given back.
    value = [product["mean_kl"] / product["operations"] for product in report["products"]]
    assert value == sorted(value, reverse=True)
    assert all(not product["float8"] for product in report["products"][: len(given_back)])

    def run(name, exceptions):
        config = float8_config(
            tmp_path / name,
            pair,
            ragged_shard,
            teacher={"float8_exceptions": exceptions},
            float8={"max_mean_kl": limit, "gate_tokens": 10**6},
            data={"eval": [{"path": ragged_shard}]},
        )
        return tiny.write_config(tmp_path / name, config), tmp_path / name / "run"

    config, folder = run("refused", [])
    refused = tiny.distill("--config", config, code=tiny.BAD_INPUT)
    for text in ("float8.max_mean_kl", f"mean KL {report['before']['mean_kl']:.4g}", "distill quantize"):
        assert text in refused.stderr
    assert not (folder / "metrics.jsonl").exists()

    config, folder = run("open", report["float8_exceptions"])
    tiny.distill("--config", config)
    log = (folder / "log.txt").read_text()
    assert f"mean KL {report['after']['mean_kl']:.4g}" in log
    assert f"{12 - len(given_back)} of its 12 block products in float8" in log


def test_a_limit_below_rounding_gives_every_product_back(tmp_path, models, ragged_shard):
    config = float8_config(tmp_path, models["llama"], ragged_shard, data={"eval": [{"path": ragged_shard}]})
    path = tiny.write_config(tmp_path, config)
    done = tiny.distill("quantize", "--config", path, "--limit", 1e-12, "--json")
    report = json.loads(done.stdout)
    assert report["found"] and report["after"]["mean_kl"] <= 1e-12
    assert all(not product["float8"] for product in report["products"])
    assert report["float8_exceptions"] == ["0-2"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_k_ranks_equal_one(tmp_path, models, ragged_shard, ranks):
    tiny.need_devices(ranks)

    def losses(name, processes, **parallel):
        config = float8_config(
            tmp_path / name,
            models["llama"],
            ragged_shard,
            teacher={"float8_exceptions": ["1.o", "2"]},
            float8={"gate_tokens": 10**6},
            data={"eval": [{"path": ragged_shard}]},
            train={"steps": 5, "micro_batch_size": 1, "global_batch_size": 6},
            parallel={"processes": processes, "debug_checks": True} | parallel,
        )
        run = tiny.train(tmp_path / name, config)
        log = (run / "log.txt").read_text()
        gate = next(line for line in log.splitlines() if "float8 teacher against" in line)
        return [step["soft"] for step in tiny.read_metrics(run)[0]], gate.split("mean KL")[1]

    one, gate_one = losses("one", 1)
    many, gate_many = losses("many", ranks)
    whole, gate_whole = losses("whole", ranks, shard_teacher=False)
    assert many == pytest.approx(one, rel=1e-5)
    assert whole == pytest.approx(one, rel=1e-5)
    assert gate_many == gate_one and gate_whole == gate_one


def test_a_run_follows_pytorch_with_the_same_rounding(tmp_path, models, ragged_shard, monkeypatch):
    student, teacher = models["llama"]
    config = float8_config(tmp_path, (student, teacher), ragged_shard, train={"steps": 6})
    load = transformers.AutoModelForCausalLM.from_pretrained

    def load_rounded(folder, **options):
        return reference_teacher(folder) if str(folder) == teacher else load(folder, **options)

    with monkeypatch.context() as patch:
        reference = reference_teacher(teacher)
        patch.setattr(
            reference_training.AutoModelForCausalLM,
            "from_pretrained",
            lambda folder, **options: reference if str(folder) == teacher else load(folder, **options),
        )
        expected, _ = reference_training.train(config)
    found, _ = tiny.read_metrics(tiny.train(tmp_path, config))
    plain = tiny.base_config(
        tmp_path / "plain", student, teacher, ragged_shard, train={"steps": 6}, scheduler={"warmup_steps": 1}
    )
    without, _ = tiny.read_metrics(tiny.train(tmp_path / "plain", plain))
    for step, reference_step, exact in zip(found, expected, without):
        # The tensor cores' fast accumulation has an error of its own.
        assert step["soft"] == pytest.approx(reference_step["soft"], rel=5e-3 if tiny.DEVICE == "cuda" else 2e-3)
        share = 0.5 if tiny.DEVICE == "cuda" else 0.2
        assert abs(step["soft"] - reference_step["soft"]) < share * abs(step["soft"] - exact["soft"])


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path, models, ragged_shard):
    def config(name, steps):
        return float8_config(
            tmp_path / name,
            models["llama"],
            ragged_shard,
            float8={"gate": False},
            train={"steps": steps},
            checkpoint={"every": 2},
        )

    whole = tiny.read_metrics(tiny.train(tmp_path / "whole", config("whole", 4)))[0]
    run = tiny.train(tmp_path / "parts", config("parts", 4))
    path = tmp_path / "parts" / "config.yaml"
    tiny.distill("--config", path, "--resume-from", run / "checkpoints" / "step-2")
    resumed = tiny.read_metrics(run)[0]
    assert [(step["step"], step["loss"]) for step in resumed] == [(step["step"], step["loss"]) for step in whole]
    assert (run / "model" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "run" / "model" / "model.safetensors"
    ).read_bytes()


def test_the_plan_knows_the_smaller_teacher(tmp_path, models, ragged_shard):
    def teacher_bytes(name, dtype):
        config = float8_config(tmp_path / name, models["llama"], ragged_shard, teacher={"dtype": dtype})
        if dtype != "float8":
            del config["float8"]
        path = tiny.write_config(tmp_path / name, config)
        done = tiny.distill("profile-memory", "--config", path, "--out", tmp_path / name / "profile", "--json")
        report = json.loads(done.stdout)
        # Vectors of a few bytes, read-ahead batches and step counters are not in the plan.
        measured = report["measured"]["peak"]
        assert abs(report["peak_error"]) * measured <= 0.03 * measured + 120_000
        planned = report["plan"]["phases"]["forward"]["highest"]["teacher"]
        # A GPU's allocator gives multiples of 512 bytes.
        slack = 512 * 16 if tiny.DEVICE == "cuda" else 0
        assert abs(planned - report["measured"]["phases"]["forward"]["highest"]["teacher"]) <= slack
        return planned

    exact, float8 = teacher_bytes("exact", "float32"), teacher_bytes("float8", "float8")
    blocks = 3 * (128 * 64 + 64 * 64 + 256 * 64 + 64 * 128)  # elements of the products' weights
    scales = 3 * (128 + 64 + 256 + 64) * 4
    assert exact - float8 == pytest.approx(3 * blocks - scales, rel=0.02)


@pytest.mark.parametrize(
    "section, key, value, says",
    [
        ("teacher", "float8_exceptions", ["dwon"], ["teacher.float8_exceptions", "found 'dwon'", "down"]),
        ("teacher", "float8_exceptions", ["3"], ["teacher.float8_exceptions", "blocks from 0 to 2", "found '3'"]),
        ("train", "dtype", "float8", ["train.dtype", "found float8", "teacher.dtype"]),
        ("float8", "max_mean_kl", 0, ["float8.max_mean_kl", "found 0"]),
        ("teacher", "dtype", "float32", ["float8.max_mean_kl", "teacher.dtype is float8"]),
    ],
)
def test_bad_input_is_named(tmp_path, models, ragged_shard, section, key, value, says):
    config = float8_config(tmp_path, models["llama"], ragged_shard)
    config[section][key] = value
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.BAD_INPUT)
    for text in says:
        assert text in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_sizes_that_the_products_do_not_take_are_named(tmp_path, models, ragged_shard):
    odd = tiny.make_model(tmp_path / "odd", "llama", seed=4, tied=False, vocab=tiny.TEACHER_VOCAB, hidden=40)
    config = float8_config(tmp_path, (models["llama"][0], odd), ragged_shard)
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.BAD_INPUT)
    assert "expected weights whose sizes are multiples of 16" in done.stderr
    assert "teacher.float8_exceptions" in done.stderr
