"""The text models of multimodal folders, and the folders that are saved from them, against transformers."""

import json
import subprocess
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import transformers
from probe import BUILD, Probe, bound, relative_error, tokens_and_targets
from small_models import BF16, DENSE_GEMMA4, FP16, FP32, FULL_ATTENTION, GEMMA4, QWEN3_5, TIED, UNTIED, small

import multimodal_models as multimodal

MINISTRAL_ROPE = dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=16, beta_fast=32.0)
MINISTRAL_ROPE |= dict(beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1)
GEMMA = small(num_hidden_layers=3, head_dim=32, sliding_window=8, query_pre_attn_scalar=20)
PADDED = dict(pad_token_id=0)  # which transformers needs in Gemma 4, and does not train where it is an input


class Model(NamedTuple):
    config: transformers.PretrainedConfig
    dtype: torch.dtype = FP32  # of the files
    spelling: str = "as published"  # of the tensors' names
    shard_size: str | None = None
    edit: Callable[[dict], None] | None = None  # changes config.json


def without_tie(config):
    config.pop("tie_word_embeddings", None)


def without_defaults(config):
    for key in ("rms_norm_eps", "max_position_embeddings", "num_key_value_heads", "rope_parameters", "head_dim"):
        config["text_config"].pop(key, None)


def old_keys(config):
    """config.json as transformers 4 wrote it."""
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    text["rope_theta"], text["rope_scaling"] = rope["rope_theta"], None
    text.pop("dtype", None)
    config["torch_dtype"] = config.pop("dtype")


def published_heads(config):
    """config.json with the keys of Gemma 4's folders in the place of those that transformers writes."""
    text = config["text_config"]
    (heads,) = {json.dumps(entry) for entry in text.pop("per_layer_config").values()}
    text["global_head_dim"] = json.loads(heads)["head_dim"]
    text["num_global_key_value_heads"] = json.loads(heads)["num_key_value_heads"]


def published_qwen(config):
    """config.json with the further keys of Qwen3.5's folders."""
    config["text_config"] |= {
        "full_attention_interval": 4,
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
    }
    config["text_config"]["rope_parameters"] |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}


def as_published(config):
    """config.json with as few keys as those of the first folders of Gemma 3 have."""
    text = config["text_config"]
    kept = ("hidden_size", "intermediate_size", "model_type", "num_hidden_layers", "sliding_window", "vocab_size")
    config["text_config"] = {key: text[key] for key in kept} | {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    config["text_config"]["pad_token_id"] = None  # transformers gives the row of a padding token no gradient
    config["torch_dtype"] = config.pop("dtype")
    config.pop("tie_word_embeddings", None)


def llava(kind=transformers.LlamaConfig, **keys):
    return multimodal.llava(kind(**small(**keys)))


def mistral3(keys=UNTIED, **text):
    return multimodal.mistral3(transformers.MistralConfig(**small(sliding_window=None, **text)), **keys)


def gemma3(more=None, **keys):
    return multimodal.gemma3(transformers.Gemma3TextConfig(**GEMMA | (more or {})), **keys)


def qwen3_5(keys, **text):
    return multimodal.qwen3_5(transformers.Qwen3_5TextConfig(**small(**QWEN3_5, **text)), **keys)


MINISTRAL = transformers.Ministral3Config(**small(head_dim=16, rope_parameters=MINISTRAL_ROPE))
WIDE_GEMMA = dict(num_hidden_layers=7, num_attention_heads=8, num_key_value_heads=4, head_dim=256)
WIDE_GEMMA |= dict(max_position_embeddings=131072, query_pre_attn_scalar=256, rms_norm_eps=1e-6)
GEMMA_4 = transformers.Gemma4TextConfig(**DENSE_GEMMA4 | PADDED | TIED)
UNIFIED = transformers.Gemma4UnifiedTextConfig(**GEMMA4 | PADDED | TIED)
LONG = dict(rms_norm_eps=1e-6, max_position_embeddings=2048, num_key_value_heads=4)
MODELS = {
    "llava": Model(llava()),
    "llava_tied": Model(llava(**TIED), BF16, "transformers 5"),
    "llava_qwen3": Model(llava(transformers.Qwen3Config, head_dim=32), FP16, "transformers 5", "60KB"),
    "llava_exaone4": Model(llava(transformers.Exaone4Config, **FULL_ATTENTION), shard_size="60KB"),
    "mistral3": Model(mistral3(), BF16),
    "mistral3_tied": Model(mistral3({}, **TIED), shard_size="60KB"),
    "ministral3": Model(multimodal.mistral3(MINISTRAL, **UNTIED), BF16),
    "gemma3": Model(gemma3(), BF16, shard_size="60KB"),
    "gemma3_untied": Model(gemma3(**UNTIED, initializer_range=0.15), spelling="transformers 5"),
    "gemma3_as_published": Model(gemma3(WIDE_GEMMA), edit=as_published),
    "gemma4": Model(multimodal.gemma4(GEMMA_4), BF16, shard_size="60KB", edit=published_heads),
    "gemma4_unified": Model(multimodal.gemma4_unified(UNIFIED)),
    "qwen3_5": Model(qwen3_5(UNTIED), BF16, shard_size="60KB", edit=published_qwen),
    "qwen3_5_tied": Model(qwen3_5(TIED, **TIED)),
    "mistral3_tied_by_default": Model(mistral3({}), spelling="transformers 5", edit=without_tie),
    "mistral3_untied_by_its_tensors": Model(mistral3(), edit=without_tie),
    "mistral3_old_keys": Model(mistral3(), BF16, edit=old_keys),
    "llava_default_keys": Model(llava(**LONG), edit=without_defaults),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every model made, run by transformers, and run and saved by one model_probe process."""
    root = tmp_path_factory.mktemp("models")
    torch.set_num_threads(2)
    probe, expected = Probe(root), {}
    for seed, (name, (config, dtype, spelling, shard_size, edit)) in enumerate(MODELS.items()):
        folder = root / name
        multimodal.save(folder, config, seed, dtype, spelling, shard_size)
        if edit:
            fields = json.loads((folder / "config.json").read_text())
            edit(fields)
            (folder / "config.json").write_text(json.dumps(fields, indent=2))
        tokens, targets = tokens_and_targets(config.text_config.vocab_size, seed)
        tokens[(tokens == multimodal.IMAGE_TOKEN) | (tokens == 0)] = 1
        model, _ = multimodal.load(folder)
        logits = model(tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        grads = {
            multimodal.own_name(name): parameter.grad
            for name, parameter in model.named_parameters()
            if multimodal.is_text(name)
        }
        expected[name] = logits.detach().flatten(0, 1), loss.detach(), grads, multimodal.with_image(model)
        probe.add(name, tokens, targets, save_dtype=dtype)
    probe.run()
    return probe, expected


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_every_gradient_equal_transformers(results, name):
    probe, expected = results
    logits, loss, grads, _ = expected[name]
    actual = probe.output(name)
    assert logits.std() > 0.3, "logits of unit scale"
    model_type = MODELS[name].config.model_type
    assert relative_error(actual["logits"], logits) < bound(model_type, 1e-5)
    assert abs(actual["loss"] - loss) < 1e-5 * loss
    assert {key.removeprefix("grad.") for key in actual if key.startswith("grad.")} == grads.keys()
    for parameter, grad in grads.items():
        assert grad.abs().max() > 1e-8, parameter
        assert relative_error(actual[f"grad.{parameter}"], grad) < bound(model_type, 1e-4), parameter


@pytest.mark.parametrize("name", MODELS)
def test_the_saved_folder_is_the_same_multimodal_model(results, name):
    probe, expected = results
    folder, saved = probe.root / name, probe.saved(name)
    model, info = multimodal.load(saved)
    assert not any(info.values()), info
    assert type(model) is type(multimodal.load(folder)[0])
    assert torch.equal(multimodal.with_image(model), expected[name][3])
    with torch.no_grad():
        assert torch.equal(model(probe.tokens(name)).logits.flatten(0, 1), expected[name][0])
    before, after = multimodal.all_tensors(folder), multimodal.all_tensors(saved)
    assert before.keys() == after.keys()
    for tensor, values in before.items():
        assert multimodal.same_bytes(values, after[tensor]), tensor
    for file in ("preprocessor_config.json", "processor_config.json"):
        assert (saved / file).read_bytes() == (folder / file).read_bytes()
    assert len(list(saved.glob("model-*.safetensors"))) > 1, "more than one shard was asked for"
    listed = json.loads((saved / "model.safetensors.index.json").read_text())["weight_map"]
    assert listed.keys() == after.keys()


@pytest.mark.parametrize("name", MODELS)
def test_the_saved_config_changes_nothing_but_a_tie_that_the_tensors_decided(results, name):
    folders = (results[0].root / name, results[0].saved(name))
    before, after = (json.loads((folder / "config.json").read_text()) for folder in folders)
    if name == "mistral3_untied_by_its_tensors":
        before["tie_word_embeddings"] = False
    if name == "gemma3_untied":
        before["text_config"]["tie_word_embeddings"] = False
    if name == "mistral3_tied_by_default":
        before["text_config"]["tie_word_embeddings"] = True
    assert after == before


TEXTS = ["llama", "mistral", "qwen2", "qwen3", "exaone4", "olmo2", "gemma2", "gemma3_text", "gemma4_unified_text"]
TEXTS += ["phi3", "qwen3_5_text"]


@pytest.mark.parametrize("text", TEXTS)
def test_defaults_of_absent_keys_are_those_of_transformers_classes(tmp_path, text):
    """`distill inspect` of a folder whose text_config has nothing but its model_type."""
    expected = transformers.AutoConfig.for_model(text)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": {"model_type": text}}))
    distill = BUILD / "apps/distill/distill"
    shown = subprocess.run([distill, "inspect", tmp_path], check=True, capture_output=True, text=True).stdout
    heads = expected.num_attention_heads
    first = expected.per_layer_config[0] if text.startswith("gemma4") else expected  # of its layers
    size = getattr(first, "head_dim", None) or expected.hidden_size // heads
    for part in (
        f"{text}, {expected.num_hidden_layers} layers, hidden {expected.hidden_size}, "
        f"ffn {expected.intermediate_size}, vocabulary {expected.vocab_size}",
        f"{heads} heads of {size}, {first.num_key_value_heads or heads} key/value heads",
        f"context {expected.max_position_embeddings} tokens",
    ):
        assert part in shown, shown
