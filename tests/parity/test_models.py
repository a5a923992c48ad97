"""Logits, gradients and saved folders of tiny random models, against transformers.

One process of model_probe runs all models; the C++ side never sees transformers and this side never sees the C++ code.
"""

import functools
import json
import os
import subprocess
import warnings
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import EXPERTS, GEMMA4, LLAMA3_ROPE, MODELS, QWEN3_5, SMALL, small
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
    Gemma4UnifiedTextConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.utils import logging as transformers_logging

PROBE = Path(os.environ.get("DISTILL_BUILD", "build/release")) / "tests/parity/model_probe"


def with_keys(**keys):
    """Changes keys of config.json; REMOVED takes a key away."""

    def edit(folder):
        path = folder / "config.json"
        config = json.loads(path.read_text()) | keys
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not REMOVED}, indent=2))

    return edit


def with_tensors(change, file="model.safetensors"):
    """Changes the dictionary of tensors of a file, which is `file` or, in shards, the last one."""

    def edit(folder):
        path = folder / file if (folder / file).exists() else sorted(folder.glob("model-*.safetensors"))[-1]
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, metadata={"format": "pt"})

    return edit


def without_listing(*names):
    """Takes names out of the index; the shards keep the tensors."""

    def edit(folder):
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        for name in names:
            del index["weight_map"][name]
        path.write_text(json.dumps(index))

    return edit


def other_head(tensors):
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()


def equal_head(tensors):
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()


def head_alone(tensors):
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")


def equal_embedding(tensors):
    tensors["model.embed_tokens.weight"] = tensors["lm_head.weight"].clone()


def stacked_experts(tensors):
    """The experts of a layer in two tensors, as folders of the hub have them."""
    prefixes = {name.split(".experts.")[0] + ".experts." for name in tensors if ".experts." in name}
    for prefix in prefixes:
        parts = {
            kind: torch.stack([tensors.pop(f"{prefix}{expert}.{kind}.weight") for expert in range(6)])
            for kind in ("gate_proj", "up_proj", "down_proj")
        }
        tensors[prefix + "gate_up_proj"] = torch.cat([parts["gate_proj"], parts["up_proj"]], 1)
        tensors[prefix + "down_proj"] = parts["down_proj"]


def without_prefix(tensors):
    for name in list(tensors):
        tensors[name.removeprefix("model.")] = tensors.pop(name)


def more_tensors(tensors):
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    tensors["model.mtp.weight"] = torch.zeros(3)
    tensors["model.layers.3.mlp.up_proj.weight"] = torch.zeros(3, 4)
    tensors["score.weight"] = torch.zeros(2, 64)


def unlisted_tensor(tensors):
    tensors["model.mtp.weight"] = torch.zeros(3)


def rope_factor(folder):
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["full_attention"]["factor"] = 3.0
    (folder / "config.json").write_text(json.dumps(config))


REMOVED = object()
ROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=777.0))
TIED = LlamaConfig(**small(tie_word_embeddings=True))
LINEAR = {"rope_type": "linear", "factor": 2.0}
# Folders whose files are changed after they were saved, and that transformers loads all the same:
# name -> (configuration, dtype of the files, shard size, change)
EDITED = {
    "rope_scaling_empty": (LlamaConfig(**small(**ROPE)), torch.float32, None, with_keys(rope_scaling={})),
    "rope_scaling_null": (LlamaConfig(**small(**ROPE)), torch.float32, None, with_keys(rope_scaling=None)),
    "rope_scaling_default": (
        LlamaConfig(**small(**ROPE)),
        torch.float32,
        None,
        with_keys(rope_scaling={"rope_type": "default"}),
    ),
    "rope_scaling_against_parameters": (
        Qwen2Config(**small(**ROPE)),
        torch.float32,
        None,
        with_keys(rope_scaling=LINEAR, rope_theta=55.0),
    ),
    "rope_theta_twice": (
        MistralConfig(**small(sliding_window=None, **ROPE)),
        torch.float32,
        None,
        with_keys(rope_theta=5.0),
    ),
    "rope_theta_outside": (
        Qwen3Config(**small(head_dim=32)),
        torch.float32,
        None,
        with_keys(rope_parameters={"rope_type": "default"}, rope_theta=55.0),
    ),
    "rope_context_outside": (
        LlamaConfig(**small(rope_parameters=LLAMA3_ROPE)),
        torch.float32,
        None,
        with_keys(original_max_position_embeddings=32),
    ),
    "mistral_kv_heads_absent": (
        MistralConfig(**small(sliding_window=None, num_attention_heads=16, num_key_value_heads=8)),
        torch.float32,
        None,
        with_keys(num_key_value_heads=REMOVED),
    ),
    "llama_kv_heads_absent": (
        LlamaConfig(**small(num_key_value_heads=4)),
        torch.float32,
        None,
        with_keys(num_key_value_heads=REMOVED),
    ),
    "qwen_kv_heads_null": (
        Qwen2Config(**small(num_key_value_heads=4)),
        torch.float32,
        None,
        with_keys(num_key_value_heads=None),
    ),
    "experts_under_their_old_name": (
        Qwen3MoeConfig(**small(**EXPERTS)),
        torch.float32,
        None,
        with_keys(num_experts=6, num_local_experts=REMOVED, mlp_only_layers=REMOVED),
    ),
    "no_experts": (Qwen3MoeConfig(**small(num_experts=0)), torch.float32, None, with_keys(mlp_only_layers=[0])),
    "layers_at_an_interval": (
        Qwen3_5TextConfig(**small(**QWEN3_5 | dict(num_hidden_layers=5)), full_attention_interval=3),
        torch.float32,
        None,
        with_keys(layer_types=REMOVED, full_attention_interval=3),
    ),
    "defaults_of_qwen3_5": (
        Qwen3_5TextConfig(
            **small(num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, head_dim=256),
            rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25),
        ),
        torch.float32,
        None,
        with_keys(
            layer_types=REMOVED,
            rope_parameters=REMOVED,
            head_dim=REMOVED,
            linear_conv_kernel_dim=REMOVED,
            linear_key_head_dim=REMOVED,
            linear_value_head_dim=REMOVED,
            linear_num_key_heads=REMOVED,
            linear_num_value_heads=REMOVED,
            full_attention_interval=4,
            attn_output_gate=True,
            mamba_ssm_dtype="float32",
            mtp_num_hidden_layers=1,
            mtp_use_dedicated_embeddings=False,
        ),
    ),
    "stacked_experts": (
        Qwen3_5MoeTextConfig(
            **small(**QWEN3_5 | dict(num_hidden_layers=2), **EXPERTS, shared_expert_intermediate_size=24),
            layer_types=["linear_attention", "full_attention"],
        ),
        torch.float32,
        None,
        with_tensors(stacked_experts),
    ),
    "gemma4_rope_factor": (Gemma4UnifiedTextConfig(**GEMMA4), torch.float32, None, rope_factor),
    "head_dim_null": (LlamaConfig(**small()), torch.float32, None, with_keys(head_dim=None)),
    "tokens_null": (
        LlamaConfig(**small()),
        torch.float32,
        None,
        with_keys(pad_token_id=None, bos_token_id=None, eos_token_id=[1, 2]),
    ),
    "dtype_absent": (LlamaConfig(**small()), torch.bfloat16, None, with_keys(dtype=REMOVED)),
    "window_of_llama": (LlamaConfig(**small()), torch.float32, None, with_keys(sliding_window=8)),
    "window_switched_off": (
        Qwen2Config(**small()),
        torch.float32,
        None,
        with_keys(sliding_window=8, use_sliding_window=False, max_window_layers=0),
    ),
    "window_of_later_layers": (
        Qwen3Config(**small(head_dim=32)),
        torch.float32,
        None,
        with_keys(sliding_window=8, use_sliding_window=True, max_window_layers=3, layer_types=REMOVED),
    ),
    "window_of_layer_28": (
        Qwen2Config(**small()),
        torch.float32,
        None,
        with_keys(sliding_window=8, use_sliding_window=True, max_window_layers=REMOVED, layer_types=REMOVED),
    ),
    "window_against_layer_types": (
        Qwen2Config(**small()),
        torch.float32,
        None,
        with_keys(sliding_window=8, use_sliding_window=True, max_window_layers=0, layer_types=["full_attention"] * 3),
    ),
    "tied_other_head": (TIED, torch.float32, None, with_tensors(other_head)),
    "tied_equal_head": (TIED, torch.float32, None, with_tensors(equal_head)),
    "tied_head_alone": (TIED, torch.bfloat16, None, with_tensors(head_alone)),
    "tied_without_prefix": (TIED, torch.float32, None, with_tensors(without_prefix)),
    "tied_other_head_in_shards": (
        Qwen3Config(**small(head_dim=32, tie_word_embeddings=True)),
        torch.bfloat16,
        "60KB",
        with_tensors(lambda tensors: tensors.update({"lm_head.weight": torch.randn(211, 64).bfloat16()})),
    ),
    "untied_equal_head": (LlamaConfig(**small()), torch.float32, None, with_tensors(equal_embedding)),
    "more_tensors": (LlamaConfig(**small()), torch.float32, None, with_tensors(more_tensors)),
    "more_tensors_in_shards": (LlamaConfig(**small()), torch.float32, "60KB", with_tensors(unlisted_tensor)),
    "unlisted_tensors": (
        LlamaConfig(**small()),
        torch.float32,
        "60KB",
        without_listing("model.norm.weight", "model.layers.1.mlp.up_proj.weight"),
    ),
}
PACKED = [  # run as packed documents as well
    "llama31_rope_scaling",
    "mistral_window",
    "exaone4_windows",
    "olmo3",
    "ministral3",
    "gemma3",
    "gemma2",
    "gemma4",
    "phi3_longrope",
    "smollm3_windows",
    "qwen3_moe",
    "qwen3_5",
    "qwen3_5_tied",
    "qwen3_5_moe",
]


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


def use_old_spelling(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2))


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


def tokens_and_targets(vocab_size, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab_size, (2, 48), generator=generator)
    targets = torch.randint(0, vocab_size, (2, 48), generator=generator)
    targets[torch.rand(targets.shape, generator=generator) < 0.3] = -100
    return tokens, targets


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every model made, run by transformers, and run by one model_probe process."""
    root = tmp_path_factory.mktemp("models")
    torch.set_num_threads(2)
    jobs, expected = [], {}
    for name, (config, dtype, shard_size, edit) in (MODELS | EDITED).items():
        folder, seed = root / name, seed_of(name)
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        perturb(model)
        model.to(dtype).save_pretrained(folder, **({"max_shard_size": shard_size} if shard_size else {}))
        if shard_size:
            assert len(list(folder.glob("model-*.safetensors"))) > 1
        if edit:
            (use_old_spelling if edit is True else edit)(folder)
        tokens, targets = tokens_and_targets(config.vocab_size, seed)
        save_file({"tokens": tokens, "targets": targets}, root / f"{name}.in.safetensors")
        expected[name] = reference(folder, tokens, targets)
        save_dtype = str(dtype).removeprefix("torch.")
        jobs.append(
            {
                "model": str(folder),
                "input": str(root / f"{name}.in.safetensors"),
                "output": str(root / f"{name}.out.safetensors"),
                "save": str(root / f"{name}.saved"),
                "save_dtype": save_dtype,
            }
        )
        if name in MODELS:
            expected[name, "float64"] = reference_in_fp64(folder, tokens, targets)
            output = str(root / f"{name}.float64.safetensors")
            jobs.append({"model": jobs[-1]["model"], "input": jobs[-1]["input"], "output": output, "dtype": "float64"})
    boundaries = [0, 5, 48, 49, 80, 96]
    for name in PACKED:
        tokens, targets = tokens_and_targets(SMALL["vocab_size"], seed_of(name))
        packed_input = {"tokens": tokens, "targets": targets, "boundaries": torch.tensor(boundaries)}
        save_file(packed_input, root / f"{name}.packed.safetensors")
        jobs.append(
            {
                "model": str(root / name),
                "input": str(root / f"{name}.packed.safetensors"),
                "output": str(root / f"{name}.packed.out.safetensors"),
            }
        )
    (root / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run([PROBE, root / "jobs.json"], check=True)
    return root, expected, boundaries


def bound(model_type, error):
    """The bound of an error in fp32: where states decay fast, transformers' own against fp64 is up to ten times that of
    other models."""
    return 10 * error if model_type.startswith("qwen3_5") else error


def relative_error(actual, expected):
    return ((actual - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize("name", MODELS | EDITED)
def test_logits_equal_transformers(results, name):
    root, expected, _ = results
    logits, loss, _ = expected[name]
    actual = load_file(root / f"{name}.out.safetensors")
    assert logits.std() > 0.3, "logits of unit scale"
    model_type = (MODELS | EDITED)[name][0].model_type
    assert (actual["logits"] - logits).abs().max() < bound(model_type, 1e-4)
    assert relative_error(actual["logits"], logits) < bound(model_type, 1e-5)
    assert abs(actual["loss"] - loss) < 1e-5 * loss


def gradients_of(path):
    grads = {}
    for key, value in load_file(path).items():
        name = key.removeprefix("grad.")
        if name != key:
            grads |= of_experts(name, value) if ".experts." in name and value.ndim == 3 else {name: value}
    return grads


@pytest.mark.parametrize("name", MODELS)
def test_fp64_equals_transformers_in_fp64(results, name):
    root, expected, _ = results
    logits, loss, grads = expected[name, "float64"]
    path = root / f"{name}.float64.safetensors"
    actual = load_file(path)
    assert logits.dtype == torch.float64
    assert relative_error(actual["logits"], logits) < 1e-11
    assert abs(actual["loss"] - loss) < 1e-12 * loss
    for parameter, gradient in gradients_of(path).items():
        assert relative_error(gradient, grads[parameter]) < 1e-10, parameter


@pytest.mark.parametrize("name", MODELS | EDITED)
def test_every_gradient_equals_autograd(results, name):
    root, expected, _ = results
    grads = expected[name][2]
    actual = gradients_of(root / f"{name}.out.safetensors")
    assert actual.keys() == grads.keys()
    for parameter, grad in grads.items():
        assert grad.abs().max() > 1e-8, parameter
        assert relative_error(actual[parameter], grad) < bound((MODELS | EDITED)[name][0].model_type, 1e-4), parameter


@pytest.mark.parametrize("name", MODELS)
def test_saved_folder_loads_without_a_warning_and_gives_the_same_logits(results, name, caplog):
    root, expected, _ = results
    saved = root / f"{name}.saved"
    transformers_logging.enable_propagation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, info = AutoModelForCausalLM.from_pretrained(
            saved, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    transformers_logging.disable_propagation()
    assert not [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert not any(info[key] for key in info), info
    tokens = load_file(root / f"{name}.in.safetensors")["tokens"]
    with torch.no_grad():
        logits = model.eval()(tokens).logits.flatten(0, 1)
    assert torch.equal(logits, expected[name][0])
    written = json.loads((saved / "config.json").read_text())
    dtype = str(MODELS[name][1]).removeprefix("torch.")
    assert written.get("dtype", written.get("torch_dtype")) == dtype
    assert len(list(saved.glob("model-*.safetensors"))) > 1, "more than one shard was asked for"


@pytest.mark.parametrize("name", EDITED)
def test_a_saved_folder_is_the_model_that_was_read(results, name):
    """Also where the files of the folder contradicted each other."""
    root, expected, _ = results
    saved = root / f"{name}.saved"
    model, info = AutoModelForCausalLM.from_pretrained(
        saved, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info[key] for key in info), info
    tokens = load_file(root / f"{name}.in.safetensors")["tokens"]
    with torch.no_grad():
        logits = model.eval()(tokens).logits.flatten(0, 1)
    assert torch.equal(logits, expected[name][0])
    tied = "lm_head.weight" not in expected[name][2]
    assert json.loads((saved / "config.json").read_text())["tie_word_embeddings"] is tied


@pytest.mark.parametrize("name", PACKED)
def test_packed_documents_equal_the_documents_one_by_one(results, name):
    root, _, boundaries = results
    model = AutoModelForCausalLM.from_pretrained(root / name, dtype=torch.float32, attn_implementation="eager").eval()
    packed = load_file(root / f"{name}.packed.out.safetensors")["logits"]
    tokens = load_file(root / f"{name}.packed.safetensors")["tokens"].flatten()
    for begin, end in zip(boundaries, boundaries[1:]):
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
