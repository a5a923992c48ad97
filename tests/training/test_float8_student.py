"""A student that is trained in float8: products and gradients against PyTorch, ranks, resumption, plan, metrics."""

import json
import statistics

import pytest
import torch
import transformers

import reference_training
import tiny
from float8_teacher import NAMES, mixer_of, rounded
from memory_plans import UNPLANNED, check_against_measured, config_of, profile

SHADOW = ["float8_gradient_cosine"]
OF_WEIGHTS = "float8_underflow_weight_gradients"
LOSSES = ["float8_underflow_activations", "float8_underflow_gradients", "float8_bad_rows"]


def float8_config(folder, pair, shard, student=None, **sections):
    sections.setdefault("train", {"steps": 4})
    config = tiny.base_config(folder, *pair, shard, scheduler={"warmup_steps": 1}, **sections)
    config["student"].update({"dtype": "float8"} | (student or {}))
    return config


def steps_of(folder, config):
    return tiny.read_metrics(tiny.train(folder, config))[0]


def power_of_two_scale(x):
    largest = x.abs().amax(-1, keepdim=True)
    mantissa, exponent = torch.frexp(largest / 448)
    return torch.ldexp(torch.ones_like(largest), exponent - (mantissa == 0.5).int())


def to_e4m3(x):
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).float()


class Float8Product(torch.autograd.Function):
    """x W^T and dy W in e4m3, dy^T x by option: written out from docs/float8.md."""

    @staticmethod
    def forward(context, x, weight, weight_gradients):
        context.save_for_backward(x, weight)
        context.weight_gradients = weight_gradients
        scale = power_of_two_scale(weight)
        return rounded(x) @ (to_e4m3(weight / scale) * scale).T

    @staticmethod
    def backward(context, dy):
        x, weight = context.saved_tensors
        scale = power_of_two_scale(weight)
        dx = rounded(dy * scale.T) @ to_e4m3(weight / scale)
        dy, x = dy.flatten(0, -2), x.flatten(0, -2)
        if not context.weight_gradients:
            return dx, dy.T @ x, None
        q, of_token = rows_of(dy * scale.T)
        inputs, of_input = rows_of((of_token * x).T)
        return dx, (q.T @ inputs.T) / scale * of_input.T, None


def rows_of(x):
    """The e4m3 values of each row, and their scale."""
    scale = (x.abs().amax(-1, keepdim=True) / 448).clamp_min(1e-30)
    return to_e4m3(x * (1 / scale)), scale


class PartOfProduct(torch.nn.Module):
    """One of the layers that read the same input and are one product (q, k and v; gate and up)."""

    def __init__(self, linear, first, weight_gradients):
        super().__init__()
        self.weight_gradients = weight_gradients
        self.weight, self.bias = linear.weight, linear.bias
        self.group = [self] if first is None else first.group + [self]
        for part in self.group:
            part.__dict__["group"] = self.group  # not as modules of one another

    def forward(self, x):
        if self is self.group[0]:
            weight = torch.cat([part.weight for part in self.group])
            whole = Float8Product.apply(x, weight, self.weight_gradients)
            for part, result in zip(self.group, whole.split([len(part.weight) for part in self.group], dim=-1)):
                part.__dict__["result"] = result
        result = self.__dict__.pop("result")
        return result if self.bias is None else result + self.bias


def float8_student(folder, weight_gradients, **options):
    model = reference_student(folder, **options)
    for layer in model.model.layers:
        for names in NAMES.values():
            part = None
            for name in names:
                owner = mixer_of(layer) if hasattr(mixer_of(layer), name) else layer.mlp
                if getattr(owner, name, None) is None:  # a name of families that have the parts in one, or no v_proj
                    continue
                part = PartOfProduct(getattr(owner, name), part, weight_gradients)
                setattr(owner, name, part)
    return model


reference_student = transformers.AutoModelForCausalLM.from_pretrained


@pytest.mark.parametrize(
    "family, weight_gradients",
    [(family, False) for family in tiny.FAMILIES if not family.endswith("_moe")]
    + [(family, True) for family in ("llama", "qwen3_5", "gemma3")],
)
def test_losses_and_gradients_are_those_of_pytorch_with_the_same_rounding(
    tmp_path, models, ragged_shard, monkeypatch, family, weight_gradients
):
    student, teacher = models[family]
    # Updates that change next to nothing: AdamW divides small gradients by themselves, and would turn a value on the
    # edge between two e4m3 numbers, which may fall either way, into another model.
    still = {"train": {"steps": 6}, "optimizer": {"lr": 1e-9}}
    option = {"float8": {"weight_gradients": True}} if weight_gradients else {}
    config = float8_config(tmp_path, (student, teacher), ragged_shard, **still, **option)

    def load(folder, **options):
        if str(folder) == student:
            return float8_student(folder, weight_gradients, **options)
        return reference_student(folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(reference_training.AutoModelForCausalLM, "from_pretrained", load)
        expected, _ = reference_training.train(config)
    found = steps_of(tmp_path, config)
    plain = tiny.base_config(tmp_path / "plain", student, teacher, ragged_shard, scheduler={"warmup_steps": 1}, **still)
    without = steps_of(tmp_path / "plain", plain)
    on_gpu = tiny.DEVICE == "cuda"
    # A value on the edge between two e4m3 numbers may fall either way, which shows in the step's loss; most steps have
    # none. The change is what float8 changes.
    missed = [abs(step["loss"] - reference["loss"]) for step, reference in zip(found, expected)]
    changed = [abs(step["loss"] - exact["loss"]) for step, exact in zip(found, without)]
    for step, reference in zip(found, expected):
        assert step["loss"] == pytest.approx(reference["loss"], rel=5e-3 if on_gpu else 1e-3)
        assert step["grad_norm"] == pytest.approx(reference["grad_norm"], rel=3e-2 if on_gpu else 5e-3)
    if not on_gpu:
        assert statistics.median(missed) < 1e-5
        assert sum(missed) < 0.2 * sum(changed)
    assert max(changed) < 0.05 * without[0]["loss"], "float8's losses are near those without it"


@pytest.mark.parametrize(
    "ranks, accumulate, gather, weight_gradients",
    [(2, "reduce_each", "copy", False), (3, "keep_full", "copy", False), (3, "reduce_each", "nccl", False)]
    + [(2, "keep_full", "nccl", False), (2, "reduce_each", "copy", True), (3, "keep_full", "nccl", True)],
)
def test_k_ranks_equal_one(tmp_path, models, ragged_shard, ranks, accumulate, gather, weight_gradients):
    tiny.need_devices(ranks)

    def run(name, processes, lr, **parallel):
        config = float8_config(
            tmp_path / name,
            models["llama"],
            ragged_shard,
            student={"float8_exceptions": ["1"]},
            float8={"shadow_every": 2, "weight_gradients": weight_gradients},
            data={"eval": [{"path": ragged_shard}]},
            eval={"every": 2, "at_start": True},
            train={"steps": 5, "micro_batch_size": 1, "global_batch_size": 6},
            optimizer={"lr": lr},
            parallel={"processes": processes, "debug_checks": True, "accumulate": accumulate} | parallel,
        )
        steps, evaluations = tiny.read_metrics(tiny.train(tmp_path / name, config))
        return steps, [evaluation["eval"]["soft"] for evaluation in evaluations]

    # A sum in another order may put a value on the edge between two float8 numbers on the other side. Where weights
    # stay as they are, that changes gradients alone; where they learn, it changes the losses of later steps.
    for lr, rel, absolute in ((1e-9, 1e-5, 0.01), (2e-3, 2e-3, 0.02)):
        one, one_eval = run(f"one-{lr}", 1, lr)
        many, many_eval = run(f"many-{lr}", ranks, lr, gather=gather)
        assert many[0]["loss"] == pytest.approx(one[0]["loss"], rel=1e-5)
        assert [step["loss"] for step in many] == pytest.approx([step["loss"] for step in one], rel=rel)
        assert many_eval == pytest.approx(one_eval, rel=rel)
        for name in LOSSES + [OF_WEIGHTS] * weight_gradients:
            assert many[0][name] == pytest.approx(one[0][name], rel=0.02)
            assert [step[name] for step in many] == pytest.approx([step[name] for step in one], abs=absolute)
        cosines = [[step.get(name) for step in steps] for steps in (one, many) for name in SHADOW]
        assert [cosine is None for cosine in cosines[0]] == [False, True, False, True, False]
        for mine, other in zip(*cosines):
            assert mine is None or mine == pytest.approx(other, abs=0.02)  # another sample: every 61st of a shard


def test_a_shadow_changes_nothing_and_measures_the_gradient(tmp_path, models, ragged_shard):
    def run(name, student=None, **float8):
        config = float8_config(tmp_path / name, models["llama"], ragged_shard, student=student, float8=float8)
        config["train"] |= {"micro_batch_size": 2, "global_batch_size": 4}
        return steps_of(tmp_path / name, config)

    without, with_shadow = run("without", shadow_every=0), run("with", shadow_every=3)
    assert [step["loss"] for step in with_shadow] == [step["loss"] for step in without]
    assert ["float8_gradient_cosine" in step for step in with_shadow] == [True, False, False, True]
    assert not any("float8_gradient_cosine" in step for step in without)
    cosines = [step["float8_gradient_cosine"] for step in with_shadow if "float8_gradient_cosine" in step]
    assert all(0.9 < cosine < 0.9999 for cosine in cosines)
    # With one of the two blocks in train.dtype, the two gradients are closer.
    nearer = run("nearer", student={"float8_exceptions": ["0"]}, shadow_every=3)
    assert cosines[0] < nearer[0]["float8_gradient_cosine"] < 1
    for step in without:
        assert all(0 <= step[name] < 0.5 for name in LOSSES) and step["float8_bad_rows"] == 0
        assert step["float8_underflow_gradients"] > 0 and OF_WEIGHTS not in step
    # The reference has none of the weights' gradients in float8: it shows what these add.
    farther = run("farther", shadow_every=3, weight_gradients=True)
    assert farther[0]["loss"] == without[0]["loss"]
    assert 0.9 < farther[0]["float8_gradient_cosine"] < cosines[0]
    # Most tokens of these texts have no target; those without a gradient do not count as lost.
    assert all(0 <= step[OF_WEIGHTS] < 0.01 for step in farther)
    assert [step["loss"] for step in farther][1:] != [step["loss"] for step in without][1:]


def test_weight_gradients_may_change_when_a_run_is_resumed(tmp_path, models, ragged_shard):
    def config(name, **float8):
        return float8_config(tmp_path / name, models["llama"], ragged_shard, checkpoint={"every": 2}, float8=float8)

    whole = steps_of(tmp_path / "whole", config("whole", weight_gradients=True))
    run = tiny.train(tmp_path / "parts", config("parts", weight_gradients=True))
    config_file = tmp_path / "parts" / "config.yaml"
    resume = ("--config", config_file, "--resume-from", run / "checkpoints" / "step-2")
    tiny.distill(*resume, "--set", "float8.weight_gradients=false")
    changed = tiny.read_metrics(run)[0]
    assert [OF_WEIGHTS in step for step in changed] == [True, True, False, False]
    tiny.distill(*resume)
    again = tiny.read_metrics(run)[0]
    assert [step["loss"] for step in again] == [step["loss"] for step in whole], "bit for bit"
    assert again[-1]["loss"] != changed[-1]["loss"]


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path, models, ragged_shard):
    def config(name):
        return float8_config(tmp_path / name, models["llama"], ragged_shard, checkpoint={"every": 2})

    whole = steps_of(tmp_path / "whole", config("whole"))
    run = tiny.train(tmp_path / "parts", config("parts"))
    tiny.distill("--config", tmp_path / "parts" / "config.yaml", "--resume-from", run / "checkpoints" / "step-2")
    resumed = tiny.read_metrics(run)[0]
    assert [(step["step"], step["loss"]) for step in resumed] == [(step["step"], step["loss"]) for step in whole]
    model = ("run", "model", "model.safetensors")
    assert tmp_path.joinpath("parts", *model).read_bytes() == tmp_path.joinpath("whole", *model).read_bytes()


@pytest.mark.parametrize("activation", ["keep", "recompute", "offload"])
def test_activation_policies_change_nothing(tmp_path, models, ragged_shard, activation):
    sections = {"float8": {"weight_gradients": True}}

    def losses(name, policy):
        memory = {"activation": policy}
        config = float8_config(tmp_path / name, models["llama"], ragged_shard, memory=memory, **sections)
        return [step["loss"] for step in steps_of(tmp_path / name, config)]

    assert losses(activation, activation) == losses("reference", "keep")


@pytest.mark.parametrize("policy, tile", [("keep", 0), ("recompute", 0), ("offload", 128)])
def test_the_plan_knows_the_operands_of_weight_gradients(tmp_path, models, long_shard, policy, tile):
    memory = {"activation": policy, "tile_tokens": tile}
    config = config_of(tmp_path, models["llama"], long_shard, memory=memory, float8={"weight_gradients": True})
    config["student"]["dtype"] = "float8"
    check_against_measured(profile(tmp_path, config))


@pytest.mark.parametrize("shadow_every", [0, 2])
def test_the_plan_is_what_the_run_allocates(tmp_path, models, ragged_shard, shadow_every):
    def highest(name, dtype):
        config = float8_config(tmp_path / name, models["llama"], ragged_shard, student={"dtype": dtype})
        config["train"]["dtype"] = "bfloat16"
        if dtype == "float8":
            config["float8"] = {"shadow_every": shadow_every}
        report = profile(tmp_path / name, config)
        measured = report["measured"]["peak"]
        assert abs(report["peak_error"]) * measured <= 0.03 * measured + UNPLANNED
        return report["plan"]["phases"]["forward"]["highest"]["student"]

    float8, exact = highest("float8", "float8"), highest("exact", "auto")
    weights = transformers.AutoModelForCausalLM.from_pretrained(models["llama"][0]).model.layers
    matrices = [weight for weight in weights.parameters() if weight.dim() == 2]
    scales = 6 * sum(len(weight) for weight in matrices)  # fp32, and a copy in bf16 that only vectors use
    expected = sum(weight.numel() for weight in matrices) - scales
    assert exact - float8 == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    "section, key, value, says",
    [
        ("student", "float8_exceptions", ["down"], ["student.float8_exceptions", "found products: down"]),
        ("student", "float8_exceptions", ["7"], ["student.float8_exceptions", "blocks from 0 to 1", "found '7'"]),
        (
            "student",
            "float8_exceptions",
            ["0-1"],
            [
                "student.float8_exceptions: expected a block that stays in float8, found none of 2",
                "student.dtype: auto",
            ],
        ),
        ("student", "dtype", "float32", ["student.float8_exceptions", "student.dtype is float8"]),
        ("memory", "optimizer", "host", ["student.dtype", "memory.optimizer", "found host"]),
        ("memory", "optimizer", "device,host", ["student.dtype", "memory.optimizer", "found device,host"]),
        ("float8", "shadow_every", -1, ["float8.shadow_every", "found -1"]),
        ("float8", "max_mean_kl", 0.1, ["float8.max_mean_kl", "teacher.dtype is float8"]),
        ("float8", "weight_gradients", "yes please", ["float8.weight_gradients", 'found "yes please"']),
    ],
)
def test_bad_input_is_named(tmp_path, models, ragged_shard, section, key, value, says):
    config = float8_config(tmp_path, models["llama"], ragged_shard, student={"float8_exceptions": ["0"]})
    config.setdefault(section, {})[key] = value
    tiny.expect_refused(tmp_path, config, says)


@pytest.mark.parametrize("student", [{"dtype": "auto"}, {"lora": {"rank": 4}}])
def test_weight_gradients_are_those_of_a_float8_student_that_is_trained(tmp_path, models, ragged_shard, student):
    config = float8_config(tmp_path, models["llama"], ragged_shard, student=student, float8={"weight_gradients": True})
    says = ["float8.weight_gradients", "student.dtype is float8 and all of the student is trained"]
    tiny.expect_refused(tmp_path, config, says)


def test_sizes_that_the_products_do_not_take_are_named(tmp_path, models, ragged_shard):
    odd = tiny.make_model(tmp_path / "odd", "llama", seed=4, tied=False, vocab=tiny.TEACHER_VOCAB, hidden=40)
    config = float8_config(tmp_path, (odd, models["llama"][1]), ragged_shard)
    done = tiny.distill("--config", tiny.write_config(tmp_path, config), code=tiny.BAD_INPUT)
    assert "student.dtype: float8: expected weights whose sizes are multiples of 16" in done.stderr
    # A student's exceptions are whole blocks, and all of its blocks have these sizes.
    assert "set student.dtype: auto" in done.stderr
    assert "student.float8_exceptions" not in done.stderr


def test_the_trained_model_is_evaluated_in_either_dtype(tmp_path, models, ragged_shard):
    config = float8_config(
        tmp_path, models["llama"], ragged_shard, data={"eval": [{"path": ragged_shard}]}, eval={"every": 4}
    )
    run = tiny.train(tmp_path, config)
    during = tiny.read_metrics(run)[1][-1]["eval"]["loss"]

    def loss(dtype):
        path, model = tmp_path / "config.yaml", run / "model"
        done = tiny.distill(
            "eval", "--config", path, "--set", f"student.path={model}", f"student.dtype={dtype}", "--json"
        )
        return json.loads(done.stdout)["loss"]

    # The scales of a weight that is not trained are exact and not powers of two.
    assert loss("float8") == pytest.approx(during, rel=5e-3)
    assert loss("auto") == pytest.approx(during, rel=5e-3) and loss("auto") != loss("float8")
