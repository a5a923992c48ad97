"""The text model of a Hugging Face folder, which may be multimodal: its keys, tensors and modules.

trainer/hf/text_config.h and text_names.h decide in the same way."""

import json
from pathlib import Path

DECODERS = ("model.", "model.language_model.", "language_model.model.", "language_model.")
HEADS = ("lm_head.", "language_model.lm_head.")
DECODER_PARTS = ("embed_tokens.", "layers.", "norm.")


def is_multimodal(config):
    """Whether a config.json has its text model's keys in an object of their own."""
    return isinstance(config.get("text_config"), dict)


def text_fields(folder, config):
    """The keys of `config`, the folder's config.json, that describe the text model. A text_config often lacks those
    that have the defaults of transformers' class, which fills them in. ValueError: it cannot."""
    if not is_multimodal(config):
        return config
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True).get_text_config().to_dict()
    except Exception as error:  # whatever the checks of a configuration raise
        raise ValueError(f"{folder}/config.json: transformers cannot read it ({error})") from None


def with_text_fields(config, changes):
    """A config.json with other values of the text model's keys."""
    if is_multimodal(config):
        return config | {"text_config": config["text_config"] | changes}
    return config | changes


def text_prefixes(names):
    """(decoder's, head's): what the names of the text model's tensors begin with, of all names of a folder.

    ValueError: there are two text models."""
    names = list(names)
    of_decoder = {
        prefix: [name for name in names if name.startswith(tuple(prefix + part for part in DECODER_PARTS))]
        for prefix in DECODERS
    }
    of_head = {prefix: [name for name in names if name.startswith(prefix)] for prefix in HEADS}
    return _one(of_decoder), _one(of_head)


def _one(names):
    found = {prefix: of_prefix for prefix, of_prefix in names.items() if of_prefix}
    if len(found) > 1:
        first, second, *_ = (of_prefix[0] for of_prefix in found.values())
        raise ValueError(f"one text model is expected, found two: {first} and {second}")
    return next(iter(found or names))


def load_text_model(folder, **options):
    """transformers' model of a folder, multimodal or not, whose forward takes text."""
    import transformers

    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    kind = transformers.AutoModelForImageTextToText if is_multimodal(config) else transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder, local_files_only=True, **options)
