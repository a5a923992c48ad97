"""Draws folders with a small tokenizer of any kind: model, normalizer, pre-tokenizer, post-processor, decoder, added
tokens with every flag, saved padding and truncation, and the files beside tokenizer.json in their many forms."""

import json
import random

UNK = "<unk>"
LETTERS = "abcdeoxyzABE019.,!'-_éß日▁Ġ"
SPACES = [" ", "  ", "\n", "\t", "\u00a0", "\r\n"]
WORDS = [
    "hello", "World", "I'll", "don't", "123", "4567", "e\u0301", "é", "日本", "🙂", "ab", "xyz", "...", "a_b", "O'X",
]  # fmt: skip
CONTENTS = [
    "<|a|>", "<|b|>", "<s>", "</s>", "[PAD]", "hello", "ab", "é", "e\u0301 x", "日本", "World", " x", "a b", "zz", "1",
    "\n",
]  # fmt: skip
NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# Tokens that transformers' own classes add where a vocabulary lacks them.
DEFAULTS = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", "<bos>", "<eos>", "<|endoftext|>"]
DEFAULTS += ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def byte_alphabet():
    """The characters that stand for bytes in a byte-level tokenizer."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


class Draw:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def some(self, values, most=3):
        return self.random.sample(values, self.random.randint(0, min(most, len(values))))

    def one(self, *values):
        return self.random.choice(values)

    def chance(self, share):
        return self.random.random() < share

    def flags(self):
        return {name: self.chance(0.4) for name in FLAGS}

    # ------------------------------------------------------------------ the model
    def merged(self, tokens, count):
        """Merges of random tokens, and the vocabulary with them."""
        tokens, merges = list(tokens), []
        for _ in range(count):
            pair = self.random.choice(tokens), self.random.choice(tokens)
            if len("".join(pair)) <= 6 and "".join(pair) not in tokens:
                merges.append(list(pair))
                tokens.append("".join(pair))
        return tokens, merges

    def ids(self, tokens):
        """token: id. Now and then an id is left out."""
        out, at = {}, 0
        holes = self.chance(0.15)
        for token in tokens:
            at += holes and self.chance(0.1)
            out[token] = at
            at += 1
        return out

    def bpe(self, byte_level):
        fallback = not byte_level and self.chance(0.4)
        alphabet = byte_alphabet() if byte_level else list(LETTERS)
        pairs = [[a, b] for a, b in zip("helohelob", "eloWalbax")]
        tokens, merges = self.merged(alphabet, self.random.randint(0, 60))
        for pair in pairs:
            if all(one in tokens for one in pair) and "".join(pair) not in tokens:
                tokens.append("".join(pair))
                merges.append(pair)
        first = [UNK] if not byte_level or self.chance(0.2) else []
        first += [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
        return {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNK if first and self.chance(0.8) else None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": self.chance(0.5),
            "byte_fallback": fallback,
            "ignore_merges": self.chance(0.3),
            "vocab": self.ids(first + tokens),
            "merges": merges,
        }

    def substrings(self):
        text = " ".join(WORDS).replace(" ", "▁")
        cuts = [self.random.randrange(len(text)) for _ in range(40)]
        return sorted({text[at : at + self.random.randint(2, 5)] for at in cuts} - set(LETTERS))

    def unigram(self):
        tokens = [UNK, *LETTERS, *self.substrings()]
        fallback = self.chance(0.3)
        if fallback:
            tokens += [f"<0x{byte:02X}>" for byte in range(256)]
        vocab = [[token, -self.random.uniform(1, 12)] for token in dict.fromkeys(tokens)]
        return {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": fallback}

    def word_piece(self):
        tokens = [UNK, *LETTERS, *("##" + one for one in LETTERS)]
        tokens += [self.one("", "##") + one for one in self.substrings()]
        return {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": self.one(100, 4),
            "vocab": self.ids(dict.fromkeys(tokens)),
        }

    def word_level(self):
        return {"type": "WordLevel", "vocab": self.ids([UNK, *LETTERS, *WORDS]), "unk_token": UNK}

    # ------------------------------------------------------------------ what is around it
    def normalizer(self):
        kinds = [
            {"type": "NFC"},
            {"type": "NFKC"},
            {"type": "Lowercase"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Strip", "strip_left": self.chance(0.5), "strip_right": self.chance(0.5)},
            {
                "type": "BertNormalizer",
                "clean_text": self.chance(0.5),
                "handle_chinese_chars": self.chance(0.5),
                "strip_accents": self.one(None, True, False),
                "lowercase": self.chance(0.5),
            },
        ]
        if self.chance(0.4):
            return None
        if self.chance(0.6):
            return self.one({"type": "NFC"}, *kinds)
        return {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, *self.some(kinds, 2)]}

    def pre_tokenizer(self, byte_level):
        if byte_level:
            prefix, regex = self.chance(0.3), self.chance(0.7)
            last = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}
            if self.chance(0.4):
                split = {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}
                return {"type": "Sequence", "pretokenizers": [split, {**last, "use_regex": False}]}
            if self.chance(0.2):
                digits = {"type": "Digits", "individual_digits": self.chance(0.7)}
                return {"type": "Sequence", "pretokenizers": [digits, last]}
            return last
        return self.one(
            None,
            {"type": "Whitespace"},
            {"type": "WhitespaceSplit"},
            {"type": "BertPreTokenizer"},
            {"type": "Punctuation", "behavior": self.one("Isolated", "Removed", "MergedWithPrevious")},
            {"type": "Digits", "individual_digits": self.chance(0.5)},
            *[
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": self.chance(0.6)}
                for scheme in ("always", "first", "never")
            ],
        )

    def decoder(self, byte_level):
        if byte_level:
            return {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
        replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": self.one(0, 1)}
        llama = [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, *([strip] if self.chance(0.5) else [])]
        return self.one(
            None,
            {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": self.one("always", "first", "never"),
                "split": True,
            },
            {"type": "Sequence", "decoders": llama},
            {"type": "BPEDecoder", "suffix": "▁"},
        )

    def post_processor(self, vocab):
        token, other = (self.random.choice(sorted(vocab)) for _ in range(2))
        special = {text: {"id": text, "ids": [vocab[text]], "tokens": [text]} for text in (token, other)}

        def template(before, after):
            ends = [[{"SpecialToken": {"id": text, "type_id": 0}} for text in texts] for texts in (before, after)]
            single = [*ends[0], {"Sequence": {"id": "A", "type_id": 0}}, *ends[1]]
            pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
            return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}

        pairs = {"sep": [other, vocab[other]], "cls": [token, vocab[token]]}
        kinds = [
            template([token], []),
            template([token, other], [other]),
            template([], [other]),
            {"type": "BertProcessing", **pairs},
            {"type": "RobertaProcessing", **pairs, "trim_offsets": True, "add_prefix_space": self.chance(0.5)},
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        ]
        sequence = {"type": "Sequence", "processors": [kinds[-1], template([token], [])]}
        return None if self.chance(0.3) else self.one(*kinds, sequence)

    def described_token(self, content):
        return {"content": content, **self.flags()}

    def config(self, described):
        """The other files of the folder of tokenizer.json, by name."""
        files = {}
        config = {"add_bos_token": self.one(True, False), "clean_up_tokenization_spaces": self.chance(0.5)}
        config |= {"add_prefix_space": self.chance(0.5), "legacy": self.chance(0.5), "model_max_length": 8}
        config |= {"add_eos_token": True} if self.chance(0.3) else {}
        config |= {"split_special_tokens": True} if self.chance(0.1) else {}
        present = [one["content"] for one in described["added_tokens"]]
        pool = CONTENTS + present + self.some(sorted(map(str, vocab_of(described))), 2)
        if self.chance(0.6):
            tokens = {one["content"]: one for one in map(self.described_token, self.some(pool, 4))}
            for one in described["added_tokens"]:
                if self.chance(0.7):
                    tokens[one["content"]] = {key: one[key] for key in ("content", *FLAGS)}
            ids = self.random.sample(range(1000), len(tokens))
            config["added_tokens_decoder"] = {str(at): token for at, token in zip(ids, tokens.values())}
        for name in self.some(NAMES, 3):
            value = self.random.choice(pool)
            config[name] = self.one(value, {"__type": "AddedToken", **self.described_token(value)})
        if self.chance(0.3):
            config["image_token"] = self.random.choice(pool)
        if self.chance(0.3):
            key = self.one("additional_special_tokens", "extra_special_tokens")
            config[key] = [
                self.one(text, {"__type": "AddedToken", **self.described_token(text)}) for text in self.some(pool)
            ]
        elif self.chance(0.2):
            config["extra_special_tokens"] = {f"more{at}_token": text for at, text in enumerate(self.some(pool))}
        if self.chance(0.3):
            more = {name: self.one(text, self.described_token(text)) for name, text in zip(NAMES, self.some(pool))}
            if self.chance(0.5):
                more["additional_special_tokens"] = self.some(pool)
            files["special_tokens_map.json"] = more
        if self.chance(0.3):
            files["added_tokens.json"] = {text: at for at, text in enumerate(dict.fromkeys(self.some(pool)), 70)}
        return {"tokenizer_config.json": config, **files}

    def classes(self, kind):
        """(tokenizer_class, model_type of config.json or None)"""
        if self.chance(0.6):
            return self.one("PreTrainedTokenizerFast", "TokenizersBackend"), self.one(None, "llama", "mistral", "qwen3")
        own = {
            "bytes": ["Qwen2Tokenizer", "GPT2Tokenizer", "GPT2TokenizerFast", "LlamaTokenizerFast"],
            "bpe": ["LlamaTokenizer", "GemmaTokenizerFast"],
            "unigram": ["XLMRobertaTokenizer", "XLMRobertaTokenizerFast"],
            "word_piece": ["BertTokenizer", "BertTokenizerFast"],
            "word_level": ["PreTrainedTokenizerFast"],
        }
        return self.random.choice([*own[kind], None]), self.one(None, "llama", "qwen2", "gpt2", "qwen3")

    def folder(self, path):
        """Writes a tokenizer's folder and returns the kind of its model."""
        kind = self.one("bytes", "bytes", "bpe", "unigram", "word_piece", "word_level")
        model = getattr(self, {"bytes": "bpe"}.get(kind, kind))(
            *([kind == "bytes"] if kind in ("bytes", "bpe") else [])
        )
        name, model_type = self.classes(kind)
        agreeing = name not in ("PreTrainedTokenizerFast", "TokenizersBackend") and self.chance(0.8)
        if agreeing:
            add_tokens(model, DEFAULTS)
        described = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "model": model}
        described |= {"normalizer": self.normalizer(), "pre_tokenizer": self.pre_tokenizer(kind == "bytes")}
        described |= {"decoder": self.decoder(kind == "bytes")}
        vocab = vocab_of(described)
        contents = dict.fromkeys(self.some(sorted(vocab), 2) if agreeing else self.some(CONTENTS + sorted(vocab), 5))
        size = len(vocab)
        for content in contents:
            index = vocab.get(content, size)
            size += index == size
            described["added_tokens"].append({"id": index, **self.described_token(content)})
        described["added_tokens"].sort(key=lambda one: one["id"])
        described["post_processor"] = self.post_processor(vocab)
        if self.chance(0.4):
            described["truncation"] = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
        if self.chance(0.4):
            described["padding"] = {
                "strategy": self.one("BatchLongest", {"Fixed": 16}),
                "direction": self.one("Left", "Right"),
                "pad_to_multiple_of": self.one(None, 8),
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "[PAD]",
            }
        path.mkdir(parents=True, exist_ok=True)
        files = self.config(described) if self.chance(0.9) else {}
        if agreeing:
            files = {"tokenizer_config.json": {"add_prefix_space": self.chance(0.5), "eos_token": "</s>"}}
        if name and "tokenizer_config.json" in files:
            files["tokenizer_config.json"]["tokenizer_class"] = name
        if model_type is not None:
            files["config.json"] = {"model_type": model_type}
        for file, value in {"tokenizer.json": described, **files}.items():
            (path / file).write_text(json.dumps(value), encoding="utf-8")
        return kind

    def text(self):
        pool = [*WORDS, *CONTENTS, *LETTERS, UNK]
        parts = []
        for _ in range(self.random.randint(1, 12)):
            parts.append(self.random.choice(pool))
            if self.chance(0.6):
                parts.append(self.random.choice(SPACES) if self.chance(0.4) else " ")
        return "".join(parts)


def vocab_of(described):
    vocab = described["model"]["vocab"]
    return {token: at for at, (token, _) in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)


def add_tokens(model, tokens):
    if isinstance(model["vocab"], list):
        model["vocab"] += [[token, -20.0] for token in tokens if token not in dict(model["vocab"])]
    else:
        first = max(model["vocab"].values()) + 1
        model["vocab"] |= {token: at for at, token in enumerate((t for t in tokens if t not in model["vocab"]), first)}
