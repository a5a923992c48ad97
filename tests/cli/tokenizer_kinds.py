"""Small tokenizers of every kind that language models use, trained on a few texts of many scripts."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "The quick brown fox jumps over the lazy dog.\n\n  def f(x):\n\treturn x + 1  # näive café\r\n",
    "  leading spaces, trailing spaces   \n",
    "Überraschung! Ça va? Ελληνικά, русский язык, עברית, العربية, हिन्दी, ไทย, 日本語と中文，한국어.",
    "emoji: 😀 👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 é (two characters),"
    " \u202eright to left\u202c, zero\u200bwidth, nbsp\u00a0here, \u0000 nul, \x1b[31mred",
    "<script>alert(\"1 & 2\")</script> 'quoted' </pre>",
    "▁ is a character of its own, Ġ and Ċ too; <0x41> is a text.",
    "don't we're I'll it 's can n't . , ! ?",
    "a" * 40 + " " * 12 + "0123456789" * 3,
    "x",
    " ",
    "\n",
]


def byte_level():
    """GPT-2, Llama 3, Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=SPECIAL
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("not special", special=False), AddedToken("日本", special=False)])
    return tokenizer


def fused_bytes():
    """A byte-level tokenizer as conversions from other formats write it.

    All tokens are one text before their characters become bytes.
    """
    tokenizer = byte_level()
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " "), decoders.ByteLevel()]
    )
    return tokenizer


def with_byte_tokens(tokenizer):
    """The same with <0x00> ... <0xFF> in the vocabulary, used where no token fits."""
    state = json.loads(tokenizer.to_str())
    model = state["model"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    if isinstance(model["vocab"], list):
        model["vocab"] += [[token, -20.0] for token in bytes_]
    else:
        first = max(model["vocab"].values()) + 1
        model["vocab"] |= {token: first + i for i, token in enumerate(bytes_)}
    model["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(state))


def llama2():
    """Llama 2, Mistral: SentencePiece's BPE; the space that begins every text is taken away again."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.train_from_iterator(TEXTS[:3], trainers.BpeTrainer(vocab_size=220, special_tokens=SPECIAL))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return with_byte_tokens(tokenizer)


def gemma():
    """Gemma: the same without a space at the start."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.train_from_iterator(TEXTS[:3], trainers.BpeTrainer(vocab_size=220, special_tokens=SPECIAL))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return with_byte_tokens(tokenizer)


def unigram(prepend_scheme="always", byte_fallback=False):
    """T5, XLM-R, ALBERT."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.UnigramTrainer(vocab_size=260, special_tokens=SPECIAL, unk_token="<unk>")
    tokenizer.train_from_iterator(TEXTS, trainer)
    if byte_fallback:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()])
        return with_byte_tokens(tokenizer)
    return tokenizer


def word_ends():
    """CLIP, GPT: the end of a word is part of its last token."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, end_of_word_suffix="</w>")
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def without_decoder():
    tokenizer = byte_level()
    tokenizer.decoder = None
    return tokenizer


KINDS = {
    "byte_level": byte_level,
    "fused_bytes": fused_bytes,
    "llama2": llama2,
    "gemma": gemma,
    "unigram": unigram,
    "unigram_never": lambda: unigram("never"),
    "unigram_bytes": lambda: unigram(byte_fallback=True),
    "word_ends": word_ends,
    "without_decoder": without_decoder,
}
