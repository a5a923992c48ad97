"""Tokenizers with a token for each of a few words, and tiny models that always say the same one."""

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from model_shapes import shape

END_ALONE = dict(bos_token_id=None, eos_token_id=0, pad_token_id=0)


def save_tokenizer(folder, words, unknown="<eos>"):
    """Words stand between white space; `words` has <eos>, and `unknown`, which stands for all others."""
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token=unknown)
    wrapped.save_pretrained(folder)


def random_model(words, seed, hidden=16, positions=64, spread=0.6):
    """A model whose distributions differ from place to place."""
    keys = shape(len(words), hidden, 2 * hidden, 2, 2, 1, max_position_embeddings=positions, initializer_range=spread)
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**keys, **END_ALONE))


def save_random_model(folder, words, seed=3, **options):
    """Such a model with its tokenizer. Returns the folder."""
    random_model(words, seed, **options).save_pretrained(folder)
    save_tokenizer(folder, words)
    return folder


def save_constant_model(folder, words, favourite):
    """A model to which every text goes on with `favourite`, with its tokenizer."""
    config = transformers.LlamaConfig(**shape(len(words), 16, 16, 1, 2, 2, max_position_embeddings=64), **END_ALONE)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.lm_head.weight[words.index(favourite)] = 1.0
    model.save_pretrained(folder)
    save_tokenizer(folder, words)
