"""A float8 teacher: its error against the same teacher without float8, the gate before a run, the run."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

import reference_training
import teacher_texts
import tiny
from test_memory_plan import UNPLANNED

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


def own_text_error(folder, documents):
    """reference_error where the teacher reads a text of its own: at the tokens from which it predicts a target."""
    exact = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    loss = {"divergence": "forward_kl", "soft_weight": 1.0, "hard_weight": 1.0}
    # Both read the teacher's text; a document without one is its own.
    texts = [own or document for *document, own in documents]
    found = teacher_texts.evaluate(reference_teacher(folder), exact, teacher_texts.same_texts(texts), loss)
    return {
        "mean_kl": found["forward_kl"],
        "agreement": found["agreement"],
        "cross_entropy": found["teacher_ce"],
        "float8_cross_entropy": found["hard"],
        "tokens": found["valid_tokens"],
    }


def own_text_config(folder, pair, shard, **sections):
    data = {"seq_len": 32, "teacher_seq_len": 48, "packing": "pack", "shuffle": False, "eval": [{"path": shard}]}
    float8 = {"gate_tokens": 10**6} | sections.pop("float8", {})
    return float8_config(folder, pair, shard, data=data, float8=float8, **sections)


def gate_line(run):
    (line,) = [line for line in (run / "log.txt").read_text().splitlines() if "float8 teacher against" in line]
    return line


def test_the_gate_measures_the_text_that_the_teacher_reads(tmp_path, models):
    student, teacher = models["llama"]
    random = np.random.default_rng(2)
    # Prompts of both texts have at least one token, so that every target counts in both.
    documents = [
        teacher_texts.random_document(random, 2, int(random.integers(3, 12)), int(random.integers(4, 30)))
        for _ in range(60)
    ]
    documents[7] = documents[7][:2] + (None,)
    shard = teacher_texts.write_shard(tmp_path / "own.dtok", documents)
    config = own_text_config(tmp_path / "run", (student, teacher), shard, train={"steps": 2})
    path = tiny.write_config(tmp_path / "run", config)
    found = json.loads(tiny.distill("quantize", "--config", path, "--limit", 100, "--json").stdout)["before"]
    expected = own_text_error(teacher, documents)
    assert found["tokens"] == expected["tokens"]
    assert found["mean_kl"] == pytest.approx(expected["mean_kl"], rel=0.02)
    assert found["agreement"] == pytest.approx(expected["agreement"], abs=0.02)
    assert found["cross_entropy"] == pytest.approx(expected["cross_entropy"], rel=1e-4)
    assert found["float8_cross_entropy"] == pytest.approx(expected["float8_cross_entropy"], rel=2e-3)
    # The student's text is another measurement.
    other = own_text_error(teacher, [document[:2] + (None,) for document in documents])
    assert other["cross_entropy"] != pytest.approx(expected["cross_entropy"], rel=1e-3)
    # The gate of a run says the same, on any number of ranks, and the run has this teacher's losses.
    lines = [gate_line(tiny.train(tmp_path / "run", config))]
    assert f"mean KL {found['mean_kl']:.4g} nats" in lines[0] and f"{found['tokens']} tokens" in lines[0]
    tiny.need_devices(2)
    for name, parallel in (("ranks", {}), ("whole", {"shard_teacher": False})):
        ranks = own_text_config(
            tmp_path / name, (student, teacher), shard, train={"steps": 2}, parallel={"processes": 2} | parallel
        )
        run = tiny.train(tmp_path / name, ranks)
        lines.append(gate_line(run))
        losses = [tiny.read_metrics(folder)[0][-1]["soft"] for folder in (run, tmp_path / "run" / "run")]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len({line.split("mean KL")[1] for line in lines}) == 1


def test_a_run_whose_float8_teacher_reads_its_own_text_follows_pytorch(tmp_path, models, monkeypatch):
    student, teacher = models["llama"]
    random = np.random.default_rng(3)
    documents = [teacher_texts.random_document(random, 5, 14, int(random.integers(20, 33))) for _ in range(24)]
    shard = teacher_texts.write_shard(tmp_path / "own.dtok", documents)
    train = {"steps": 6, "micro_batch_size": 2, "global_batch_size": 4}
    config = own_text_config(tmp_path, (student, teacher), shard, train=train)
    found, _ = tiny.read_metrics(tiny.train(tmp_path, config))
    batches = [documents[at : at + 4] for at in range(0, 24, 4)]
    exact, _ = teacher_texts.train(config, batches)
    load, rounded_teacher = reference_training.load, reference_teacher(teacher)
    monkeypatch.setattr(
        reference_training, "load", lambda folder: rounded_teacher if str(folder) == teacher else load(folder)
    )
    expected, _ = teacher_texts.train(config, batches)
    assert [step["valid_tokens"] for step in found] == [step["valid_tokens"] for step in expected]
    rounding, elsewhere = (
        sum(abs(step["forward_kl"] - other["forward_kl"]) for step, other in zip(found, reference, strict=True))
        for reference in (expected, exact)
    )
    assert rounding < (0.5 if tiny.DEVICE == "cuda" else 0.2) * elsewhere


def test_a_limit_refuses_a_teacher_for_its_own_text(tmp_path, models):
    random = np.random.default_rng(4)
    documents = [teacher_texts.random_document(random, 2, 8, 20) for _ in range(30)]
    shard = teacher_texts.write_shard(tmp_path / "own.dtok", documents)
    config = own_text_config(tmp_path, models["llama"], shard, float8={"max_mean_kl": 1e-9})
    refused = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.BAD_INPUT)
    assert f"{own_text_error(models['llama'][1], documents)['tokens']} tokens" in refused.stderr


@pytest.mark.parametrize("gate", [True, False])
def test_weights_that_are_not_finite_are_named_by_whichever_rank_reads_them(tmp_path, models, ragged_shard, gate):
    tiny.need_devices(2)
    student, teacher = models["llama"]
    folder = tmp_path / "teacher"
    shutil.copytree(teacher, folder)
    weights = tiny.load_weights(folder)
    weights["model.layers.1.mlp.down_proj.weight"][40, 3] = float("nan")
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = float8_config(
        tmp_path, (student, str(folder)), ragged_shard, float8={"gate": gate}, parallel={"processes": 2}
    )
    if not gate:
        del config["float8"]["max_mean_kl"]
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.BAD_INPUT)
    # The check reads them twice, in both precisions.
    found = rf"tensor model.layers.1.mlp.down_proj.weight: expected finite weights, found {2 if gate else 1} NaN"
    assert re.search(found + r" or infinite value\(s\), the first at \[40, 3\]", done.stderr)


def near_config(folder, teacher, shard, error_steps, **sections):
    """A student with the teacher's own weights, which hardly learns: its KL is the float8 teacher's error."""
    train = {"steps": error_steps, "micro_batch_size": 2, "global_batch_size": 2}
    config = float8_config(
        folder,
        (teacher, teacher),
        shard,
        train=train,
        data={"eval": [{"path": shard}]},
        float8={"gate_tokens": 10**6},
        **sections,
    )
    config["loss"] = {"divergence": "forward_kl", "hard_weight": 0.0, "soft_weight": 1.0}
    config["optimizer"] |= {"lr": 1e-7, "weight_decay": 0.0}
    return config


def float8_events(run):
    path = run / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [event for event in events if event["event"] == "near_float8_error"]


def near_warnings(run):
    return [line for line in (run / "log.txt").read_text().splitlines() if "to the float8 teacher is" in line]


def report_events(folder, run):
    tiny.distill("report", run, "--output", folder / "page.html")
    page = re.search(
        r'<script id="data" type="application/json">(.*?)</script>', (folder / "page.html").read_text(), re.S
    )
    (found,) = json.loads(page.group(1))["runs"]
    return [event for event in found["events"] if event["kind"] == "near_float8_error"]


def test_a_student_near_the_teachers_own_error_is_warned_about_once(tmp_path, models, ragged_shard):
    _, teacher = models["llama"]
    run = tiny.train(tmp_path / "near", near_config(tmp_path / "near", teacher, ragged_shard, 75))
    steps = [step for step in tiny.read_metrics(run)[0] if step["valid_tokens"] > 0][:50]
    (event,) = float8_events(run)
    assert event["step"] == steps[-1]["step"] and event["steps"] == 50
    assert event["forward_kl"] == pytest.approx(np.mean([step["forward_kl"] for step in steps]), rel=1e-6)
    measured = float(re.search(r"mean KL ([0-9.e-]+) nats", gate_line(run)).group(1))
    assert event["float8_error"] == pytest.approx(measured, rel=1e-3)  # the log has four digits
    # The student is the teacher: what it is away is the error.
    assert event["forward_kl"] < 3 * event["float8_error"]
    (line,) = near_warnings(run)
    assert f" W step {event['step']}: " in line and "(mean of 50 steps)" in line and "distill quantize" in line
    figures = [f"{event[name]:.4g}" for name in ("forward_kl", "float8_error")]
    assert f"is {figures[0]} nats" in line and f"itself, {figures[1]}" in line
    # The report shows the event with both figures, and does not repeat the warning.
    (shown,) = report_events(tmp_path, run)
    assert shown["step"] == event["step"] and all(figure in shown["text"] for figure in figures)

    # A student that is far from its teacher is not warned about.
    far = near_config(tmp_path / "far", teacher, ragged_shard, 75)
    far["student"]["path"] = models["llama"][0]
    run = tiny.train(tmp_path / "far", far)
    assert tiny.read_metrics(run)[0][-1]["forward_kl"] > 10 * measured
    assert not float8_events(run) and not near_warnings(run)


@pytest.mark.parametrize("stop", [30, 68])  # before the warning and after it
def test_a_resumed_run_warns_as_an_undisturbed_one(tmp_path, models, ragged_shard, stop):
    def config(name):
        return near_config(
            tmp_path / name, models["llama"][1], ragged_shard, 75, checkpoint={"every": stop, "at_end": False}
        )

    whole = tiny.train(tmp_path / "whole", config("whole"))
    run = tiny.train(tmp_path / "parts", config("parts"))
    path = tmp_path / "parts" / "config.yaml"
    tiny.distill("--config", path, "--resume-from", run / "checkpoints" / f"step-{stop}")
    assert float8_events(run) == float8_events(whole)
    (event,) = float8_events(run)
    assert 50 <= event["step"] < 68
    assert len(report_events(tmp_path, run)) == 1


def test_the_plan_knows_the_smaller_teacher(tmp_path, models, ragged_shard):
    def teacher_bytes(name, dtype):
        config = float8_config(tmp_path / name, models["llama"], ragged_shard, teacher={"dtype": dtype})
        if dtype != "float8":
            del config["float8"]
        path = tiny.write_config(tmp_path / name, config)
        done = tiny.distill("profile-memory", "--config", path, "--out", tmp_path / name / "profile", "--json")
        report = json.loads(done.stdout)
        measured = report["measured"]["peak"]
        assert abs(report["peak_error"]) * measured <= 0.03 * measured + UNPLANNED
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
    "student, ranks, settings, most_gib",
    [
        ("1b", 1, ["parallel.gather=nccl"], 125),
        ("8b", 4, ["parallel.gather=nccl"], 72),
        ("8b", 4, ["parallel.gather=nccl", "student.dtype=float8"], 72),
        ("8b", 4, ["memory.budget_gib=72"], 72),  # copies need more: it does without them
    ],
)
def test_a_70b_teacher_is_planned_within_the_memory_of_h200s(tmp_path, student, ranks, settings, most_gib):
    script = tiny.REPOSITORY / "scripts" / "bench_inputs.py"
    inputs = ["--out", tmp_path, "--shapes", f"{student},70b", "--rows", 1, "--seq-len", 16]
    subprocess.run([sys.executable, *map(str, [script, *inputs])], check=True, capture_output=True)
    config = tiny.base_config(tmp_path, str(tmp_path / student), str(tmp_path / "70b"), str(tmp_path / "tokens.dtok"))
    config["data"] |= {"seq_len": 4096}
    config["train"] |= {"global_batch_size": 2 * ranks, "device": "cuda", "dtype": "bfloat16"}
    path = tiny.write_config(tmp_path, config)
    settings = [*settings, "teacher.dtype=float8", "float8.gate=false"]
    done = tiny.distill("plan", "--config", path, "--ranks", ranks, "--json", "--set", *settings)
    plan = json.loads(done.stdout)
    assert plan["fits"] and plan["gather"] == "nccl"
    assert plan["bytes"]["peak"] <= most_gib * 2**30
    # bf16 instead of float8 is 1 byte more for each element of the blocks' matrices, on each rank its share.
    other = json.loads(tiny.distill("plan", "--config", path, "--ranks", ranks, "--json", "--set", settings[0]).stdout)
    teacher = [each["phases"]["teacher"]["highest"]["teacher"] for each in (other, plan)]
    matrices = 80 * (10240 * 8192 + 8192 * 8192 + 2 * 28672 * 8192 + 28672 * 8192)
    assert teacher[0] - teacher[1] == pytest.approx(matrices / ranks, rel=0.01)


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
