"""Folders of small tokenizers that split one text in different ways."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXTS = [(DOCS / name).read_text() for name in ("data.md", "ranks.md")]
SPECIAL = ["<|end|>", "<|begin|>", "<|turn|>"]


def byte_level(folder, size, special=SPECIAL, normalizer=None, **config):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet)
    )
    if normalizer:
        tokenizer.normalizer = normalizer
    return saved(folder, tokenizer, {"eos_token": special[0], "bos_token": special[1]} | config)


def sentence_piece(folder, size):
    """As Llama 2's: spaces are U+2581, one is put before a text, and unknown characters become bytes."""
    special = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=size + 256, special_tokens=special + bytes_)
    tokenizer.train_from_iterator([word + " " for text in TEXTS for word in text.split()], trainer)
    described = json.loads(tokenizer.to_str())
    described["added_tokens"] = [token for token in described["added_tokens"] if token["content"] in special]
    return saved(folder, Tokenizer.from_str(json.dumps(described)), {"eos_token": "</s>", "bos_token": "<s>"})


def saved(folder, tokenizer, config):
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
