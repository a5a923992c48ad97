"""Tokenizers with a token for each of a few words, and tiny models that always say the same one."""

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers


def save_tokenizer(folder, words, unknown="<eos>"):
    """Words stand between white space; `words` has <eos>, and `unknown`, which stands for all others."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token=unknown)
    wrapped.save_pretrained(folder)


def save_random_model(folder, words, seed=3):
    """A model whose distributions differ from place to place, with its tokenizer. Returns the folder."""
    config = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, bos_token_id=None, eos_token_id=0, pad_token_id=0,
        initializer_range=0.6,
    )  # fmt: skip
    torch.manual_seed(seed)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    save_tokenizer(folder, words)
    return folder


def save_constant_model(folder, words, favourite):
    """A model to which every text goes on with `favourite`, with its tokenizer."""
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight[words.index(favourite)] = 1.0
    model.save_pretrained(folder)
    save_tokenizer(folder, words)
