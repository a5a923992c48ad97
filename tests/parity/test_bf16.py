"""Errors in bf16 against transformers' own: both from the same weights, compared with transformers in fp32.

With DISTILL_TEST_DEVICE=cuda, everything runs on the GPU, through the kernels that training has there.
"""

import copy
import json
import os
import re
import statistics

import pytest
import torch
from probe import Probe, tokens_and_targets
from small_models import MODELS, small
from test_models import perturb, run, seed_of
from transformers import AutoModelForCausalLM, LlamaConfig

DEVICE = os.environ.get("DISTILL_TEST_DEVICE", "cpu")
if DEVICE == "cuda" and not torch.cuda.is_available():
    pytest.skip("needs a CUDA device, none is visible", allow_module_level=True)
DECAY = ("linear_attn.dt_bias", "linear_attn.A_log", "linear_attn.in_proj_a.weight")
# Rows long enough for cuDNN's attention and for blocks of several tiles; the models above have rows of 48 tokens.
LONG = dict(vocab_size=307, hidden_size=256, intermediate_size=448, max_position_embeddings=512)
# Copies: a model that is saved in bf16 writes that into its configuration, which test_models.py has, too.
CONFIGS = {name: copy.deepcopy(model.config) for name, model in MODELS.items() if "old_spelling" not in name} | {
    "llama_long_rows": LlamaConfig(**small(**LONG, num_attention_heads=4, num_key_value_heads=2)),
}


def is_mixture(config):
    return hasattr(config, "num_experts_per_tok")


def inputs_of(config, model, seed):
    """Tokens and targets. Of a model with experts those of many draws where no router is near a tie: rounding sends
    a token to another expert, which says nothing about precision."""
    if not is_mixture(config):
        tokens, targets = tokens_and_targets(config.vocab_size, seed)
        if config.max_position_embeddings > 256:
            tokens, targets = (x.repeat(1, 8)[:, :300].contiguous() for x in (tokens, targets))
        return tokens, targets
    best = (-1.0, None)
    for draw in range(60):
        tokens, targets = (x[:1, :16].contiguous() for x in tokens_and_targets(config.vocab_size, seed + draw))
        with torch.no_grad():
            logits = torch.cat(model(tokens, output_router_logits=True).router_logits)
        ranked = logits.sort(-1, descending=True).values
        chosen = config.num_experts_per_tok
        best = max(best, ((ranked[:, chosen - 1] - ranked[:, chosen]).min().item(), draw))
    return tuple(x[:1, :16].contiguous() for x in tokens_and_targets(config.vocab_size, seed + best[1]))


def by_transformers(folder, dtype, tokens, targets):
    capped = "attn_logit_softcapping" in json.loads((folder / "config.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager" if capped else "sdpa"
    ).to(DEVICE)
    logits, loss, grads = run(model.eval(), tokens.to(DEVICE), targets.to(DEVICE))
    return {"logits": logits.cpu(), "loss": loss.cpu()} | {f"grad.{name}": x.cpu() for name, x in grads.items()}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """{name: (transformers in fp32, transformers in bf16, model_probe in bf16)}"""
    root = tmp_path_factory.mktemp("bf16")
    torch.set_num_threads(2)
    probe, expected = Probe(root), {}
    for name, config in CONFIGS.items():
        seed = seed_of(name)
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).float()
        perturb(model)
        folder = root / name
        model.bfloat16().save_pretrained(folder)
        inputs = inputs_of(config, model.float().eval(), seed)
        expected[name] = [by_transformers(folder, dtype, *inputs) for dtype in (torch.float32, torch.bfloat16)]
        probe.add(name, *inputs, dtype="bfloat16", device=DEVICE)
    probe.run()
    return {name: (*both, probe.output(name)) for name, both in expected.items()}


def error(actual, exact):
    return ((actual.double() - exact.double()).norm() / exact.double().norm()).item()


def over_layers(key):
    """The name of a parameter of a delta rule's decay without its layer: a head has one number, or one row, of them, so
    that the error of one layer's says little. Other names are as they are."""
    return re.sub(r"layers\.\d+", "layers.*", key) if key.endswith(DECAY) else key


def gradients(model, keys):
    """{name as of over_layers: all of its gradients in one vector}"""
    groups = {}
    for key in keys:
        groups.setdefault(over_layers(key), []).append(model[key].flatten())
    return {name: torch.cat(parts) for name, parts in groups.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_error_is_within_twice_transformers_own(results, name):
    exact, plain, ours = results[name]
    assert ours.keys() == exact.keys()
    assert 1e-4 < error(plain["logits"], exact["logits"]) < 0.1, "bf16, and no other model"
    assert error(ours["logits"], exact["logits"]) <= 2 * error(plain["logits"], exact["logits"])
    names = [key for key in exact if key.startswith("grad.") and exact[key].norm() > 0]
    in_fp32, in_bf16, in_ours = (gradients(x, names) for x in (exact, plain, ours))
    own = {key: error(in_bf16[key], in_fp32[key]) for key in in_fp32}
    typical = statistics.median(own.values())  # of a short vector, the error may be small by chance
    for key in in_fp32:
        assert error(in_ours[key], in_fp32[key]) <= 2 * max(own[key], typical), key
    norms = [sum((x[key].double() - exact[key].double()).square().sum() for key in names).sqrt() for x in (ours, plain)]
    assert norms[0] <= 2 * norms[1]
    print(
        f"{name}: logits {error(ours['logits'], exact['logits']):.2e} (transformers "
        f"{error(plain['logits'], exact['logits']):.2e}), gradients {norms[0] / norms[1]:.2f} of transformers'"
    )


def test_experts_without_visits_have_no_gradient(results):
    exact, _, ours = results["qwen3_moe"]
    unused = [key for key in exact if ".experts." in key and exact[key].norm() == 0]
    assert all(ours[key].norm() == 0 for key in unused)
