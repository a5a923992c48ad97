"""The text models of multimodal folders, and the folders that are saved from them, against transformers."""

import json
import subprocess

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from small_models import FULL_ATTENTION, GEMMA4, QWEN3_5, small
from test_models import PROBE, bound, relative_error, tokens_and_targets

import multimodal_models as multimodal

LLAMA = transformers.LlamaConfig(**small())
MISTRAL = transformers.MistralConfig(**small(sliding_window=None))
MINISTRAL_ROPE = dict(
    rope_type="yarn",
    rope_theta=1e6,
    factor=4.0,
    original_max_position_embeddings=16,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=1.0,
    llama_4_scaling_beta=0.1,
)
GEMMA = small(num_hidden_layers=3, head_dim=32, sliding_window=8, query_pre_attn_scalar=20, pad_token_id=None)
PADDED = dict(pad_token_id=0)  # which transformers needs in Gemma 4, and does not train where it is an input
# name -> (configuration, dtype of the files, naming of the tensors, shard size, change of config.json)
MODELS = {
    "llava": (multimodal.llava(LLAMA), torch.float32, "as published", None, None),
    "llava_tied": (
        multimodal.llava(transformers.LlamaConfig(**small(tie_word_embeddings=True))),
        torch.bfloat16,
        "transformers 5",
        None,
        None,
    ),
    "llava_qwen3": (
        multimodal.llava(transformers.Qwen3Config(**small(head_dim=32))),
        torch.float16,
        "transformers 5",
        "60KB",
        None,
    ),
    "llava_exaone4": (
        multimodal.llava(transformers.Exaone4Config(**small(**FULL_ATTENTION))),
        torch.float32,
        "as published",
        "60KB",
        None,
    ),
    "mistral3": (
        multimodal.mistral3(MISTRAL, tie_word_embeddings=False),
        torch.bfloat16,
        "as published",
        None,
        None,
    ),
    "mistral3_tied": (
        multimodal.mistral3(transformers.MistralConfig(**small(sliding_window=None, tie_word_embeddings=True))),
        torch.float32,
        "as published",
        "60KB",
        None,
    ),
    "ministral3": (
        multimodal.mistral3(
            transformers.Ministral3Config(**small(head_dim=16, rope_parameters=MINISTRAL_ROPE)),
            tie_word_embeddings=False,
        ),
        torch.bfloat16,
        "as published",
        None,
        None,
    ),
    "gemma3": (
        multimodal.gemma3(transformers.Gemma3TextConfig(**GEMMA)),
        torch.bfloat16,
        "as published",
        "60KB",
        None,
    ),
    "gemma3_untied": (
        multimodal.gemma3(transformers.Gemma3TextConfig(**GEMMA), tie_word_embeddings=False, initializer_range=0.15),
        torch.float32,
        "transformers 5",
        None,
        None,
    ),
    "gemma3_as_published": (
        multimodal.gemma3(
            transformers.Gemma3TextConfig(
                **GEMMA
                | dict(num_hidden_layers=7, num_attention_heads=8, num_key_value_heads=4, head_dim=256)
                | dict(max_position_embeddings=131072, query_pre_attn_scalar=256, rms_norm_eps=1e-6)
            )
        ),
        torch.float32,
        "as published",
        None,
        lambda config: as_published(config),
    ),
    "gemma4": (
        multimodal.gemma4(
            transformers.Gemma4TextConfig(**GEMMA4 | PADDED, hidden_size_per_layer_input=0, tie_word_embeddings=True)
        ),
        torch.bfloat16,
        "as published",
        "60KB",
        lambda config: published_heads(config),
    ),
    "gemma4_unified": (
        multimodal.gemma4_unified(transformers.Gemma4UnifiedTextConfig(**GEMMA4 | PADDED, tie_word_embeddings=True)),
        torch.float32,
        "as published",
        None,
        None,
    ),
    "qwen3_5": (
        multimodal.qwen3_5(transformers.Qwen3_5TextConfig(**small(**QWEN3_5)), tie_word_embeddings=False),
        torch.bfloat16,
        "as published",
        "60KB",
        lambda config: published_qwen(config),
    ),
    "qwen3_5_tied": (
        multimodal.qwen3_5(
            transformers.Qwen3_5TextConfig(**small(**QWEN3_5), tie_word_embeddings=True), tie_word_embeddings=True
        ),
        torch.float32,
        "as published",
        None,
        None,
    ),
    "mistral3_tied_by_default": (
        multimodal.mistral3(MISTRAL),
        torch.float32,
        "transformers 5",
        None,
        lambda config: config.pop("tie_word_embeddings", None),
    ),
    "mistral3_untied_by_its_tensors": (
        multimodal.mistral3(MISTRAL, tie_word_embeddings=False),
        torch.float32,
        "as published",
        None,
        lambda config: config.pop("tie_word_embeddings", None),
    ),
    "mistral3_old_keys": (
        multimodal.mistral3(MISTRAL, tie_word_embeddings=False),
        torch.bfloat16,
        "as published",
        None,
        lambda config: old_keys(config),
    ),
    "llava_default_keys": (
        multimodal.llava(
            transformers.LlamaConfig(**small(rms_norm_eps=1e-6, max_position_embeddings=2048, num_key_value_heads=4))
        ),
        torch.float32,
        "as published",
        None,
        lambda config: [
            config["text_config"].pop(key, None)
            for key in ("rms_norm_eps", "max_position_embeddings", "num_key_value_heads", "rope_parameters", "head_dim")
        ],
    ),
}


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


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Every model made, run by transformers, and run and saved by one model_probe process."""
    root = tmp_path_factory.mktemp("models")
    torch.set_num_threads(2)
    jobs, expected = [], {}
    for seed, (name, (config, dtype, spelling, shard_size, edit)) in enumerate(MODELS.items()):
        folder = root / name
        multimodal.save(folder, config, seed, dtype, spelling, shard_size)
        if edit:
            fields = json.loads((folder / "config.json").read_text())
            edit(fields)
            (folder / "config.json").write_text(json.dumps(fields, indent=2))
        tokens, targets = tokens_and_targets(config.text_config.vocab_size, seed)
        tokens[(tokens == multimodal.IMAGE_TOKEN) | (tokens == 0)] = 1
        save_file({"tokens": tokens, "targets": targets}, root / f"{name}.in.safetensors")
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
        jobs.append(
            {
                "model": str(folder),
                "input": str(root / f"{name}.in.safetensors"),
                "output": str(root / f"{name}.out.safetensors"),
                "save": str(root / f"{name}.saved"),
                "save_dtype": str(dtype).removeprefix("torch."),
            }
        )
    (root / "jobs.json").write_text(json.dumps(jobs))
    subprocess.run([PROBE, root / "jobs.json"], check=True)
    return root, expected


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_every_gradient_equal_transformers(results, name):
    root, expected = results
    logits, loss, grads, _ = expected[name]
    actual = load_file(root / f"{name}.out.safetensors")
    assert logits.std() > 0.3, "logits of unit scale"
    model_type = MODELS[name][0].model_type
    assert relative_error(actual["logits"], logits) < bound(model_type, 1e-5)
    assert abs(actual["loss"] - loss) < 1e-5 * loss
    assert {key.removeprefix("grad.") for key in actual if key.startswith("grad.")} == grads.keys()
    for parameter, grad in grads.items():
        assert grad.abs().max() > 1e-8, parameter
        assert relative_error(actual[f"grad.{parameter}"], grad) < bound(model_type, 1e-4), parameter


@pytest.mark.parametrize("name", MODELS)
def test_the_saved_folder_is_the_same_multimodal_model(results, name):
    root, expected = results
    saved = root / f"{name}.saved"
    model, info = multimodal.load(saved)
    assert not any(info.values()), info
    assert type(model) is type(multimodal.load(root / name)[0])
    assert torch.equal(multimodal.with_image(model), expected[name][3])
    tokens = load_file(root / f"{name}.in.safetensors")["tokens"]
    with torch.no_grad():
        assert torch.equal(model(tokens).logits.flatten(0, 1), expected[name][0])
    before, after = multimodal.all_tensors(root / name), multimodal.all_tensors(saved)
    assert before.keys() == after.keys()
    for tensor, values in before.items():
        assert multimodal.same_bytes(values, after[tensor]), tensor
    for file in ("preprocessor_config.json", "processor_config.json"):
        assert (saved / file).read_bytes() == (root / name / file).read_bytes()
    assert len(list(saved.glob("model-*.safetensors"))) > 1, "more than one shard was asked for"
    listed = json.loads((saved / "model.safetensors.index.json").read_text())["weight_map"]
    assert listed.keys() == after.keys()


@pytest.mark.parametrize("name", MODELS)
def test_the_saved_config_changes_nothing_but_a_tie_that_the_tensors_decided(results, name):
    root, _ = results
    before, after = (json.loads((root / f"{name}{suffix}" / "config.json").read_text()) for suffix in ("", ".saved"))
    if name == "mistral3_untied_by_its_tensors":
        before["tie_word_embeddings"] = False
    if name == "gemma3_untied":
        before["text_config"]["tie_word_embeddings"] = False
    if name == "mistral3_tied_by_default":
        before["text_config"]["tie_word_embeddings"] = True
    assert after == before


TEXTS = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "exaone4",
    "olmo2",
    "gemma2",
    "gemma3_text",
    "gemma4_unified_text",
    "phi3",
    "qwen3_5_text",
]


@pytest.mark.parametrize("text", TEXTS)
def test_defaults_of_absent_keys_are_those_of_transformers_classes(tmp_path, text):
    """`distill inspect` of a folder whose text_config has nothing but its model_type."""
    expected = transformers.AutoConfig.for_model(text)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": {"model_type": text}}))
    distill = PROBE.parents[2] / "apps/distill/distill"
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
