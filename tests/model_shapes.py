"""Sizes of tiny models of transformers, and their parameters away from where they begin."""

import torch

NO_SPECIAL_TOKENS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)


def shape(vocab, hidden, mlp, layers, heads, kv_heads, **keys):
    """Keys of a configuration class: sizes, and `keys` as they are."""
    sizes = dict(vocab_size=vocab, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers)
    return sizes | dict(num_attention_heads=heads, num_key_value_heads=kv_heads) | keys


def randomise(model, scale=0.3):
    """Biases and norms, which are zeros and ones otherwise."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(scale * torch.randn_like(parameter))
