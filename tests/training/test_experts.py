"""Students and teachers with experts: the routers' loss and numbers, ranks, resumption, caches, bad folders."""

import json
import math
import shutil

import pytest
import torch
import transformers

import cache_kinds
import reference_training
import tiny
from float8_teacher import float8_config

COEFFICIENT = 0.05  # router_aux_loss_coef of tiny.make_model
ROUTERS = ("router_aux_loss", "router_entropy", "router_load", "router_highest_load", "router_unused_experts")


@pytest.fixture(scope="module")
def whole_rows(tmp_path_factory):
    """60 rows of 32 tokens without padding, which transformers would count."""
    lengths = [61, 17, 128, 33, 90, 47] * 5 + [41]
    assert sum(lengths) == 60 * 32 + 1
    return tiny.make_shard(tmp_path_factory.mktemp("rows") / "rows.dtok", tiny.random_documents(4, lengths))


def config_of(folder, pair, shard, **sections):
    sections.setdefault("train", {"steps": 4, "micro_batch_size": 2, "global_batch_size": 12})
    sections.setdefault("scheduler", {"warmup_steps": 1 if sections["train"]["steps"] > 1 else 0})
    return tiny.base_config(folder, *pair, shard, **sections)


def test_twenty_steps_follow_transformers(tmp_path, models, whole_rows):
    """The routers' loss is the mean of those of the micro-batches, and part of the gradients."""
    config = config_of(tmp_path, models["qwen3_moe"], whole_rows, train={"steps": 20, "global_batch_size": 8})
    expected, model = reference_training.train(config)
    run = tiny.train(tmp_path, config)
    for step, reference in zip(tiny.read_metrics(run)[0], expected, strict=True):
        for name in ("loss", "soft", "router_aux_loss", "grad_norm"):
            assert step[name] == pytest.approx(reference[name], rel=1e-4), f"step {step['step']}: {name}"
    trained = tiny.load_weights(run / "model")
    reference = transformers.AutoModelForCausalLM.from_pretrained(run / "model", dtype=torch.float32).state_dict()
    assert tiny.relative_difference(reference, model.state_dict()) < 1e-4
    assert any(".experts.4.down_proj" in name for name in trained), "expert by expert, as transformers writes them"


def router_numbers(model, tokens):
    """The numbers of the routers for these sequences, in one micro-batch."""
    experts, chosen = model.config.num_local_experts, model.config.num_experts_per_tok
    loads, entropies, unused = [], [], 0
    with torch.no_grad():
        for logits in model(tokens, output_router_logits=True).router_logits:
            probabilities = logits.double().softmax(-1)
            visits = probabilities.topk(chosen).indices.flatten().bincount(minlength=experts)
            loads.append((visits.max() / visits.double().mean()).item())
            entropies.append(-(probabilities * probabilities.log()).sum(-1).mean().item())
            unused += int((visits == 0).sum())
    return {
        "router_entropy": sum(entropies) / len(entropies),
        "router_load": sum(loads) / len(loads),
        "router_highest_load": max(loads),
        "router_unused_experts": unused,
    }


def test_the_numbers_of_the_routers_are_those_of_transformers(tmp_path, models, whole_rows):
    student = tiny.make_model(tmp_path / "student", "qwen3_moe", seed=9, tied=False, layers=4)
    train = {"steps": 1, "micro_batch_size": 2, "global_batch_size": 12}
    config = config_of(tmp_path, (student, models["qwen3_moe"][1]), whole_rows, train=train)
    step = tiny.read_metrics(tiny.train(tmp_path, config))[0][0]
    tokens = reference_training.concat_rows(whole_rows, 32)[0][:12]
    for name, value in router_numbers(reference_training.load(student), tokens).items():
        assert step[name] == pytest.approx(value, rel=1e-5), name


def test_the_coefficient_may_be_changed_and_switched_off(tmp_path, models, ragged_shard):
    runs = {}
    for value in ("auto", COEFFICIENT, 0, 0.5):
        config = config_of(tmp_path / str(value), models["qwen3_moe"], ragged_shard)
        config["student"]["router_aux_loss"] = value
        runs[value] = tiny.read_metrics(tiny.train(tmp_path / str(value), config))[0]
    norms = {value: [step["grad_norm"] for step in steps] for value, steps in runs.items()}
    assert norms["auto"] == norms[COEFFICIENT]
    assert norms["auto"][0] != norms[0][0] != norms[0.5][0]
    # The first step's numbers are those of the same weights, and its reported loss is without the routers'.
    assert len({(steps[0]["loss"], steps[0]["router_aux_loss"]) for steps in runs.values()}) == 1
    assert runs[0.5][-1]["router_aux_loss"] < runs[0][-1]["router_aux_loss"]


@pytest.mark.parametrize("packing", ["concat", "pack"])
def test_ranks_train_as_one_process_does(tmp_path, models, ragged_shard, packing):
    runs, weights = [], []
    for ranks, activation in ((1, "keep"), (tiny.RANKS, "recompute")):
        folder = tmp_path / str(ranks)
        config = config_of(
            folder,
            models["qwen3_moe"],
            ragged_shard,
            parallel={"processes": ranks},
            data={"packing": packing},
            memory={"activation": activation},
        )
        run = tiny.train(folder, config)
        runs.append(tiny.read_metrics(run)[0])
        weights.append(tiny.load_weights(run / "model"))
    for found, expected in zip(runs[1], runs[0], strict=True):
        for name in ("loss", "soft", "forward_kl", "grad_norm", *ROUTERS):
            assert found[name] == pytest.approx(expected[name], rel=5e-5), name
    assert tiny.relative_difference(weights[1], weights[0]) < 5e-6


def test_a_resumed_run_equals_the_whole_bit_for_bit(tmp_path, models, ragged_shard):
    config = config_of(
        tmp_path,
        models["qwen3_moe"],
        ragged_shard,
        train={"steps": 6, "micro_batch_size": 1, "global_batch_size": 4, "deterministic": tiny.DEVICE == "cuda"},
        checkpoint={"every": 3},
        parallel={"processes": 2},
    )
    run = tiny.train(tmp_path, config)
    weights, steps = tiny.load_weights(run / "model"), tiny.read_metrics(run)[0]
    shutil.rmtree(run / "checkpoints" / "step-6")
    tiny.train(tmp_path, config, "--resume")
    assert tiny.relative_difference(tiny.load_weights(run / "model"), weights) == 0
    for found, expected in zip(tiny.read_metrics(run)[0], steps, strict=True):
        assert [found[name] for name in ("loss", *ROUTERS)] == [expected[name] for name in ("loss", *ROUTERS)]


def test_a_dense_student_of_a_teacher_with_experts(tmp_path, models, ragged_shard):
    """Online, from its hidden states, and from all tokens of the vocabulary."""
    pair = (models["qwen3"][0], models["qwen3_moe"][1])
    data = {"packing": "pack", "eval": [{"path": ragged_shard}]}
    base = config_of(tmp_path / "online", pair, ragged_shard, data=data)
    base["loss"] = dict(cache_kinds.FORWARD_KL)
    online = tiny.read_metrics(tiny.train(tmp_path / "online", base))[0]
    assert not set(ROUTERS) & set(online[0])
    for name, kind in (("hidden", {"kind": "hidden"}), ("topk", cache_kinds.KINDS["whole"])):
        config = json.loads(json.dumps(base))
        config["run"]["dir"] = str(tmp_path / name / "run")
        config["cache"] = kind | {"part_tokens": 200}
        cache_kinds.capture(config, tmp_path / name / "cache")
        config["teacher"] = {"source": "cache", "cache": str(tmp_path / name / "cache")}
        cached = tiny.read_metrics(tiny.train(tmp_path / name, config))[0]
        for found, expected in zip(cached, online, strict=True):
            for metric in ("loss", "soft", "grad_norm"):
                assert found[metric] == pytest.approx(expected[metric], rel=1e-4), (name, metric)


def test_a_float8_teacher_rounds_its_experts_and_not_its_routers(tmp_path, models, ragged_shard):
    pair = (models["qwen3"][0], models["qwen3_moe"][1])
    found = {}
    for name, exceptions in (("all", []), ("without experts", ["1.gate_up", "1.down"])):
        config = float8_config(tmp_path / name, pair, ragged_shard, data={"eval": [{"path": ragged_shard}]})
        config["teacher"]["float8_exceptions"] = exceptions
        run = tiny.train(tmp_path / name, config)
        log = (run / "log.txt").read_text()
        products = "all 12" if not exceptions else "10 of its 12"
        assert f"computes in float32 with {products} block products in float8, routers in float32" in log
        found[name] = tiny.read_metrics(run)[0][0]["soft"]
    assert found["all"] != found["without experts"]
    assert found["all"] == pytest.approx(found["without experts"], rel=0.1)


def test_the_plan_and_inspect_tell_the_active_parameters(tmp_path, models):
    student, _ = models["qwen3_moe"]
    weights = tiny.load_weights(student)
    total = sum(value.numel() for value in weights.values())
    experts = sum(value.numel() for name, value in weights.items() if ".experts." in name)
    active = total - experts + experts * 2 // 5
    said = tiny.distill("inspect", student).stdout
    assert f"{total:,} parameters, {active:,} of them for each token" in said
    assert "ffn 96 in 1 layers, 5 experts of ffn 32 in 1 layers, 2 for each token" in said


LAYER = "model.layers.1.mlp."
BAD = {
    "an expert is missing": (
        lambda w: w.pop(LAYER + "experts.3.up_proj.weight"),
        {},
        ["missing (1)", LAYER + "experts.3.up_proj.weight"],
    ),
    "a router of another width": (
        lambda w: w.update({LAYER + "gate.weight": torch.zeros(6, 48)}),
        {},
        [LAYER + "gate.weight ([5, 48] expected, [6, 48] found)"],
    ),
    "an expert of another width": (
        lambda w: w.update({LAYER + "experts.0.down_proj.weight": torch.zeros(48, 16)}),
        {},
        [LAYER + "experts.0.down_proj.weight ([48, 32] expected, [48, 16] found)"],
    ),
    "fewer experts than the folder has": (
        None,
        {"num_local_experts": 4},
        ["unexpected inside the model", LAYER + "experts.4.gate_proj.weight", "([4, 48] expected, [5, 48] found)"],
    ),
    "more experts for a token than there are": (
        None,
        {"num_experts_per_tok": 6},
        ["num_experts_per_tok: at most the number of experts, 5, is expected, found 6"],
    ),
    "two numbers of experts": (
        None,
        {"num_experts": 7},
        ["num_experts: as num_local_experts, 5, is expected, found 7"],
    ),
    "a layer that is not there": (
        None,
        {"mlp_only_layers": [2]},
        ["mlp_only_layers: layers in [0, 1] are expected, found 2"],
    ),
    "a shared expert": (
        None,
        {"shared_expert_intermediate_size": 24},
        ["shared_expert_intermediate_size: unknown key"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_folder_that_is_wrong_is_refused_by_name(tmp_path, models, ragged_shard, name):
    tensors, keys, says = BAD[name]
    tiny.expect_folder_refused(tmp_path, models["qwen3_moe"], ragged_shard, (tensors, keys, ["config.json", *says]))


def test_settings_that_do_not_fit_the_model_are_refused(tmp_path, models, ragged_shard):
    dense = config_of(tmp_path, models["qwen3"], ragged_shard)
    dense["student"]["router_aux_loss"] = 0.1
    tiny.expect_refused(tmp_path, dense, ["student.router_aux_loss", "no experts", models["qwen3"][0]])
    float8 = config_of(tmp_path, models["qwen3_moe"], ragged_shard)
    float8["student"]["dtype"] = "float8"
    tiny.expect_refused(tmp_path, float8, ["student.dtype: float8", "without experts", "5 experts of ffn 32"])


def test_random_weights_are_trained_too(tmp_path, models, ragged_shard):
    config = config_of(tmp_path, models["qwen3_moe"], ragged_shard, train={"steps": 2})
    config["student"]["init"] = "random"
    steps, _ = tiny.read_metrics(tiny.train(tmp_path, config))
    assert all(math.isfinite(step["loss"]) and step["router_entropy"] > 1 for step in steps)
