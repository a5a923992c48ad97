"""What a run reads: cleaned texts as token shards, model folders without weights, and BLiMP's pairs."""

import json
import lzma
import subprocess
import sys
from pathlib import Path

from shared.command_line import fail

from .cleaning import CLEAN
from .corpus import DOMAINS, PUBLISHED, Clone

SCRIPTS = Path(__file__).resolve().parents[2]
SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}


def cleaned(corpus, part):
    """{domain: text} of the files corpus/PART/DOMAIN.PART."""
    paths = {domain: corpus / part / f"{domain}.{part}" for domain in DOMAINS}
    missing = [str(path) for path in paths.values() if not path.exists()]
    if missing:
        fail(f"expected the ten files of a corpus, found nothing at {', '.join(missing)}")
    return {domain: CLEAN[domain](path.read_text(encoding="utf-8")) for domain, path in paths.items()}


def train_tokenizer(texts, vocabulary):
    """A byte-level BPE tokenizer as Timiryasov and Tastet train theirs."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, min_frequency=2, special_tokens=list(SPECIAL.values()), show_progress=False
    )
    lines = (line for text in texts for line in text.splitlines(keepends=True))
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer.to_str()


def make_tokens(corpus, output, tokenizer, vocabulary):
    """Writes output/tokenizer and the token shards output/train, output/dev-published and output/dev-others.

    tokenizer: a tokenizer.json to use; None: one is trained on the cleaned training texts. A text is a document without
    any special token, as in the published code.
    """
    texts = {part: cleaned(corpus, part) for part in ("train", "dev")}
    folder = output / "tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    made = Path(tokenizer).read_text() if tokenizer else train_tokenizer(texts["train"].values(), vocabulary)
    (folder / "tokenizer.json").write_text(made)
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIAL))
    others = [domain for domain in DOMAINS if domain not in PUBLISHED]
    sets = {"train": ("train", DOMAINS), "dev-published": ("dev", PUBLISHED), "dev-others": ("dev", others)}
    for name, (part, domains) in sets.items():
        plain = output / "clean" / name
        plain.mkdir(parents=True, exist_ok=True)
        for domain in domains:
            (plain / f"{domain}.txt").write_text(texts[part][domain], encoding="utf-8")
        command = [sys.executable, SCRIPTS / "tokenize.py", "--tokenizer", folder, "--output", output / name]
        options = ["--bos", "never", "--no-eos", "--overwrite", "--format", "text"]
        done = subprocess.run([str(one) for one in [*command, *options, plain]], capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"scripts/tokenize.py: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def make_pairs(clones, output):
    """Writes output/pairs.jsonl.xz: BLiMP's 67000 pairs, and which of them the challenge of 2023 kept (`kept`).

    It kept the pairs whose words all occur in the corpus.
    """
    blimp, filtered = Clone(clones, "alexwarstadt/blimp"), Clone(clones, "Farnaz-BNF/BabyLM_GED")
    kept = set()
    for name in filtered.names("fine_tune/data/blimp_filtered"):
        if name.endswith(".json") and not name.endswith("preposition.json"):  # not BLiMP's
            for line in filtered.text(name).splitlines():
                pair = json.loads(line)
                kept.add((pair["UID"], pair["sentence_good"], pair["sentence_bad"]))
    pairs = []
    for name in blimp.names("data"):
        for line in blimp.text(name).splitlines() if name.endswith(".jsonl") else ():
            pair = json.loads(line)
            key = pair["UID"], pair["sentence_good"], pair["sentence_bad"]
            term = pair["linguistics_term"]
            field = "argument_structure" if term == "s-selection" else term  # as the challenge counts
            one = {"uid": pair["UID"], "field": field, "good": key[1], "bad": key[2]}
            pairs.append(one | {"kept": key in kept})
    write_pairs(output / "pairs.jsonl.xz", pairs)
    return pairs


def write_pairs(path, pairs):
    with lzma.open(path, "wt", preset=6) as file:
        file.write("".join(json.dumps(pair) + "\n" for pair in pairs))


def read_pairs(path):
    with lzma.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def make_model(folder, tokenizer, shape, seq_len):
    """A folder of a Llama model that has no weights: its config.json, and the tokenizer's files.

    What `shape` does not name are the defaults of transformers' LlamaConfig, as in the published code.
    """
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocabulary),
        "max_position_embeddings": 2 * seq_len,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **shape,
        "num_key_value_heads": shape["num_attention_heads"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    for path in tokenizer.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
