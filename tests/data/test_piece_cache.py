"""token_shards.piece_cache against the tokenizer itself, on texts made to be split in surprising places."""

import json
import random

import pytest
import tokenize_runs  # noqa: F401 (finds token_shards)
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from token_shards import piece_cache
from token_shards.piece_cache import PieceCache, splitting_of

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )


FAMILIES = {
    "gpt2": (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": (
        None,
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    ),
    "llama3": (None, split(LLAMA3)),
    "qwen2": (normalizers.NFC(), split(LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"))),
}
WORDS = [
    "the", "fox", "Don't", "it'S", "we'Ll", "12345", "3.14", "x=1;", "été", "ﬁ", "日本語", "e\u0301", "🙂🙂", "К\u212a",
]  # fmt: skip
SPACES = [
    " ", "  ", "   ", "\n", "\n\n", " \n ", "\t", "\r\n", "\u00a0", "\u3000", "\x0b", "\x1c", "\x85", "\u2028", "",
]  # fmt: skip
MARKS = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\x00\x7f") + [
    "...",
    "'s",
    "'",
    "\u037e",
    "“",
    "<|end|>",
    "<|",
    "\u0308",
]


def trained(family):
    normalizer, splitter = FAMILIES[family]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|end|>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    # White space and punctuation are merged, too, so that a text that is split elsewhere has other ids.
    tokenizer.train_from_iterator([text(random.Random(seed)) for seed in range(300)], trainer)
    return tokenizer


def text(source, pieces=60):
    return "".join(source.choice(source.choice((WORDS, SPACES, SPACES, MARKS))) for _ in range(pieces))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ids_are_the_tokenizers_own(family):
    tokenizer = trained(family)
    cache = PieceCache.of(tokenizer)
    assert cache.find is not None
    source = random.Random(1)
    alphabet = "".join(map(chr, range(0x20, 0x7F))) + "\n\t\r  '' é"
    for _ in range(150):
        texts = [text(source) for _ in range(10)]
        texts += ["".join(source.choices(alphabet, k=80)) for _ in range(10)] + [""]
        ids = cache.encode(texts)
        for one, found in zip(texts, ids):
            assert found.tolist() == tokenizer.encode(one, add_special_tokens=False).ids, repr(one)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_pair_and_triple_of_kinds_of_characters_is_split_as_the_tokenizer_does(family):
    tokenizer = trained(family)
    cache = PieceCache.of(tokenizer)
    kinds = ["a", "S", "7", " ", "\n", "\r", "\t", "'", "!", "é", "\u00a0", "\u0301"]
    texts = [a + b + c + d for a in kinds for b in kinds for c in kinds for d in kinds]
    expected = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    for one, found, right in zip(texts, cache.encode(texts), expected):
        assert found.tolist() == right.ids, repr(one)


def test_pieces_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(piece_cache, "MAX_PIECES", 50)
    tokenizer = trained("gpt2")
    cache, source = PieceCache.of(tokenizer), random.Random(2)
    for _ in range(20):
        one = text(source)
        assert cache.encode([one])[0].tolist() == tokenizer.encode(one, add_special_tokens=False).ids
        assert len(cache.pieces) < 200


def changed(change):
    described = json.loads(trained("gpt2").to_str())
    change(described)
    return described


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["pre_tokenizer"].update(add_prefix_space=True),
        lambda d: d["model"].update(dropout=0.1),
        lambda d: d["model"].update(type="WordPiece"),
        lambda d: d.update(normalizer={"type": "NFKC"}),
        lambda d: d.update(normalizer={"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}),
        lambda d: d.update(pre_tokenizer={"type": "Metaspace"}),
        lambda d: d.update(pre_tokenizer=None),
        lambda d: d.update(
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
                ],
            }
        ),
    ],
)
def test_other_tokenizers_see_whole_texts(change):
    assert splitting_of(changed(lambda described: None)) is not None
    assert splitting_of(changed(change)) is None
