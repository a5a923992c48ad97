"""Logits, gradients and saved folders of tiny random models, against transformers.

One process of model_probe runs all models; the C++ side never sees transformers and this side never sees the C++ code.
"""

import functools
import json
import subprocess
import warnings
import zlib

import pytest
import torch
from edited_models import EDITED
from probe import PROBE, Probe, bound, relative_error, tokens_and_targets
from small_models import MODELS, SMALL
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.utils import logging as transformers_logging

ALL = MODELS | EDITED
PACKED = (
    "llama31_rope_scaling", "mistral_window", "exaone4_windows", "olmo3", "ministral3", "gemma3", "gemma2", "gemma4",
)  # fmt: skip
PACKED += ("phi3_longrope", "smollm3_windows", "qwen3_moe", "qwen3_5", "qwen3_5_tied", "qwen3_5_moe")
BOUNDARIES = [0, 5, 48, 49, 80, 96]  # of the packed documents, which all of PACKED are run on as well


def perturb(model):
    """Norms away from one and biases away from zero, so that mixing them up shows."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            if name.endswith("k_norm.weight") and model.config.model_type.startswith("gemma4"):
                parameter.mul_(parameter.numel() ** -0.5)  # Gemma 4 leaves the scale of the scores to its norms
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):  # Gemma 4's, which is saved and not trained
                buffer.add_(torch.randn_like(buffer) * 0.2)


def of_experts(name, stacked):
    """The tensors of a folder, expert by expert, that transformers holds as one."""
    parts = {}
    prefix, kind = name.rsplit(".", 1)
    for expert, value in enumerate(stacked):
        if kind == "gate_up_proj":
            gate, up = value.chunk(2)
            parts |= {f"{prefix}.{expert}.gate_proj.weight": gate, f"{prefix}.{expert}.up_proj.weight": up}
        else:
            parts[f"{prefix}.{expert}.{kind}.weight"] = value
    return parts


def reference(folder, tokens, targets):
    """Logits, loss and gradients in fp32 from the stored weights."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return run(model, tokens, targets)


def balance_loss(router_logits, config):
    """transformers' load_balancing_loss_func without its conversions to fp32."""
    probabilities = torch.cat(router_logits).softmax(-1)
    chosen = probabilities.topk(config.num_experts_per_tok).indices
    visits = torch.zeros_like(probabilities).scatter(1, chosen, 1.0)
    return config.num_experts * (visits.mean(0) * probabilities.mean(0)).sum()


def run(model, tokens, targets):
    outputs = model(tokens)
    logits = outputs.logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    if getattr(outputs, "aux_loss", None) is not None:
        in_fp64 = logits.dtype == torch.float64
        aux_loss = balance_loss(outputs.router_logits, model.config) if in_fp64 else outputs.aux_loss
        loss = loss + model.config.router_aux_loss_coef * aux_loss
    loss.backward()
    grads = {}
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            grads |= of_experts(name, parameter.grad)
        else:
            grads[name] = parameter.grad
    return logits.detach().flatten(0, 1), loss.detach(), grads


def route_in_fp64(router, hidden_states):
    """Qwen3MoeTopKRouter.forward, whose softmax is in fp32."""
    logits = torch.nn.functional.linear(hidden_states, router.weight)
    scores, indices = logits.softmax(-1).topk(router.top_k, dim=-1)
    return logits, scores / scores.sum(-1, keepdim=True) if getattr(router, "norm_topk_prob", True) else scores, indices


def delta_in_fp64(module, hidden_states, **_):
    """Qwen3_5GatedDeltaNet.forward token by token, where transformers' gates, chunks and norms are in fp32."""
    functional = torch.nn.functional
    batch, length, _ = hidden_states.shape
    mixed = module.in_proj_qkv(hidden_states).transpose(1, 2)
    mixed = functional.pad(mixed, (module.conv_kernel_size - 1, 0))
    mixed = functional.silu(functional.conv1d(mixed, module.conv1d.weight, groups=module.conv_dim)).transpose(1, 2)
    query, key, value = mixed.split([module.key_dim, module.key_dim, module.value_dim], -1)
    query, key = (x.reshape(batch, length, -1, module.head_k_dim) for x in (query, key))
    value = value.reshape(batch, length, -1, module.head_v_dim)
    query, key = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    share = module.num_v_heads // module.num_k_heads
    query, key = (x.repeat_interleave(share, 2) for x in (query * module.head_k_dim**-0.5, key))
    beta = module.in_proj_b(hidden_states).sigmoid()
    decay = (-module.A_log.exp() * functional.softplus(module.in_proj_a(hidden_states) + module.dt_bias)).exp()
    state = torch.zeros(batch, module.num_v_heads, module.head_k_dim, module.head_v_dim, dtype=value.dtype)
    outputs = []
    for t in range(length):
        state = state * decay[:, t, :, None, None]
        held = (state * key[:, t, :, :, None]).sum(-2)
        state = state + key[:, t, :, :, None] * ((value[:, t] - held) * beta[:, t, :, None])[..., None, :]
        outputs.append((state * query[:, t, :, :, None]).sum(-2))
    out = torch.stack(outputs, 1)
    out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + module.norm.variance_epsilon) * module.norm.weight
    gate = module.in_proj_z(hidden_states).reshape(out.shape)
    return module.out_proj((out * functional.silu(gate)).flatten(2))


def reference_in_fp64(folder, tokens, targets):
    """The same in fp64 throughout: transformers' norms and its eager softmax compute in fp32 whatever the dtype is."""
    capped = getattr(AutoConfig.from_pretrained(folder), "attn_logit_softcapping", None) is not None
    attention = "eager_in_fp64" if capped else "sdpa"  # which computes no softcap
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation=attention).eval()
    if hasattr(model.config, "num_experts"):
        model.set_experts_implementation("eager")  # the others have no fp64
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("GatedDeltaNet"):
            module.forward = functools.partial(delta_in_fp64, module)
        if name.endswith("TopKRouter"):
            module.forward = functools.partial(route_in_fp64, module)
        if name.endswith("RMSNorm"):
            eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
            offset = 1.0 if name.startswith(("Gemma2", "Gemma3", "Qwen3_5")) else 0.0
            weight = getattr(module, "weight", torch.ones(()))  # Gemma 4's norm of v has none
            module.forward = lambda x, weight=weight, eps=eps, offset=offset: (
                x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (weight + offset)
            )
    return run(model, tokens, targets)


def eager_in_fp64(module, query, key, value, attention_mask, scaling, softcap=None, **_):
    """eager_attention_forward of modeling_gemma2, whose softmax is in fp32."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.transpose(2, 3) * scaling
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    return (torch.softmax(scores + attention_mask, -1) @ value).transpose(1, 2), None


AttentionInterface.register("eager_in_fp64", eager_in_fp64)
AttentionMaskInterface.register("eager_in_fp64", AttentionMaskInterface()["eager"])


def seed_of(name):
    """Of a model's weights and tokens, with which each of its experts has a visit."""
    return zlib.crc32(f"{name} 1".encode())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every model made, run by transformers, and run by one model_probe process."""
    root = tmp_path_factory.mktemp("models")
    torch.set_num_threads(2)
    probe, expected = Probe(root), {}
    for name, (config, dtype, shard_size, edit) in ALL.items():
        folder, seed = root / name, seed_of(name)
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        perturb(model)
        model.to(dtype).save_pretrained(folder, **({"max_shard_size": shard_size} if shard_size else {}))
        if shard_size:
            assert len(list(folder.glob("model-*.safetensors"))) > 1
        if edit:
            edit(folder)
        inputs = tokens_and_targets(config.vocab_size, seed)
        expected[name] = reference(folder, *inputs)
        probe.add(name, *inputs, save_dtype=dtype)
        if name in MODELS:
            expected[name, "float64"] = reference_in_fp64(folder, *inputs)
            probe.add(name, *inputs, suffix=".float64", dtype="float64")
        if name in PACKED:
            probe.add(name, *inputs, suffix=".packed", boundaries=BOUNDARIES)
    probe.run()
    return probe, expected


@pytest.mark.parametrize("name", ALL)
def test_logits_equal_transformers(results, name):
    probe, expected = results
    logits, loss, _ = expected[name]
    actual = probe.output(name)
    assert logits.std() > 0.3, "logits of unit scale"
    model_type = ALL[name].config.model_type
    assert (actual["logits"] - logits).abs().max() < bound(model_type, 1e-4)
    assert relative_error(actual["logits"], logits) < bound(model_type, 1e-5)
    assert abs(actual["loss"] - loss) < 1e-5 * loss


def gradients_of(output):
    grads = {}
    for key, value in output.items():
        name = key.removeprefix("grad.")
        if name != key:
            grads |= of_experts(name, value) if ".experts." in name and value.ndim == 3 else {name: value}
    return grads


@pytest.mark.parametrize("name", MODELS)
def test_fp64_equals_transformers_in_fp64(results, name):
    probe, expected = results
    logits, loss, grads = expected[name, "float64"]
    actual = probe.output(name, ".float64")
    assert logits.dtype == torch.float64
    assert relative_error(actual["logits"], logits) < 1e-11
    assert abs(actual["loss"] - loss) < 1e-12 * loss
    for parameter, gradient in gradients_of(actual).items():
        assert relative_error(gradient, grads[parameter]) < 1e-10, parameter


@pytest.mark.parametrize("name", ALL)
def test_every_gradient_equals_autograd(results, name):
    probe, expected = results
    grads = expected[name][2]
    actual = gradients_of(probe.output(name))
    assert actual.keys() == grads.keys()
    for parameter, grad in grads.items():
        assert grad.abs().max() > 1e-8, parameter
        assert relative_error(actual[parameter], grad) < bound(ALL[name].config.model_type, 1e-4), parameter


def expect_saved_model(results, name):
    """transformers reads all of the saved folder, and computes the same logits. Returns its config.json."""
    probe, expected = results
    model, info = AutoModelForCausalLM.from_pretrained(
        probe.saved(name), dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info[key] for key in info), info
    with torch.no_grad():
        logits = model.eval()(probe.tokens(name)).logits.flatten(0, 1)
    assert torch.equal(logits, expected[name][0])
    return json.loads((probe.saved(name) / "config.json").read_text())


@pytest.mark.parametrize("name", MODELS)
def test_saved_folder_loads_without_a_warning_and_gives_the_same_logits(results, name, caplog):
    transformers_logging.enable_propagation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = expect_saved_model(results, name)
    transformers_logging.disable_propagation()
    assert not [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    dtype = str(MODELS[name].dtype).removeprefix("torch.")
    assert written.get("dtype", written.get("torch_dtype")) == dtype
    shards = list(results[0].saved(name).glob("model-*.safetensors"))
    assert len(shards) > 1, "more than one shard was asked for"


@pytest.mark.parametrize("name", EDITED)
def test_a_saved_folder_is_the_model_that_was_read(results, name):
    """Also where the files of the folder contradicted each other."""
    tied = "lm_head.weight" not in results[1][name][2]
    assert expect_saved_model(results, name)["tie_word_embeddings"] is tied


@pytest.mark.parametrize("name", PACKED)
def test_packed_documents_equal_the_documents_one_by_one(results, name):
    probe, _ = results
    folder = probe.root / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    packed, tokens = probe.output(name, ".packed")["logits"], probe.tokens(name, ".packed").flatten()
    for begin, end in zip(BOUNDARIES, BOUNDARIES[1:]):
        with torch.no_grad():
            logits = model(tokens[None, begin:end]).logits[0]
        assert (packed[begin:end] - logits).abs().max() < 1e-4


def test_probe_names_a_model_that_is_not_supported(tmp_path):
    config = json.loads(LlamaConfig(**SMALL).to_json_string())
    config["mlp_bias"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "jobs.json").write_text(json.dumps([{"model": str(tmp_path), "input": "", "output": ""}]))
    result = subprocess.run([PROBE, tmp_path / "jobs.json"], capture_output=True, text=True)
    assert result.returncode == 1
    assert "mlp_bias" in result.stderr
