"""Two byte-level BPE tokenizers of one text, models for them, and the loss between such models in plain PyTorch."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import reference_training
import tiny

sys.path.append(str(tiny.REPOSITORY / "scripts"))

from token_shards import shard_file

CHAT = (
    "{{% for m in messages %}}{{{{ {begin} + m['role'] + '\\n' }}}}"
    "{{% if m['role'] == 'assistant' %}}{{% generation %}}{{{{ m['content'] + {end} }}}}{{% endgeneration %}}"
    "{{% else %}}{{{{ m['content'] + {end} }}}}{{% endif %}}{{% endfor %}}"
)


def make_tokenizer(folder, texts, vocab, special, chat=None):
    """A tokenizer folder. `special`: special tokens, the first of which ends a text; `chat`: those around a turn."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": special[0], "tokenizer_class": "PreTrainedTokenizerFast"}
    if chat:
        begin, end = map(repr, chat)
        config["chat_template"] = CHAT.format(begin=begin, end=end)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def copy_of(tokenizer, folder):
    """Another folder with the tokenizer of one."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(tokenizer) / name, folder)
    return folder


def with_model(folder, family, seed, **shape):
    """Puts a random model beside a tokenizer."""
    vocab = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size() + 5  # padding
    tiny.make_model(folder, family, seed=seed, tied=False, vocab=vocab, **shape)
    return str(folder)


PAIRS = {"<|im_end|>": "end of turn", "<|eot|>": "end of turn"}  # for Vocabulary


def make_pair(folder):
    """(student, teacher): folders of models with tokenizers of their own."""
    texts = [(tiny.REPOSITORY / "docs" / name).read_text() for name in ("data.md", "models.md", "memory.md")]
    own = make_tokenizer(
        folder / "student", texts[:2], 330, ["<|end|>", "<|im_start|>", "<|im_end|>"], ("<|im_start|>", "<|im_end|>")
    )
    its = make_tokenizer(
        folder / "teacher", texts[1:], 460, ["<|end|>", "<|start|>", "<|eot|>"], ("<|start|>", "<|eot|>")
    )
    return with_model(own, "llama", 1), with_model(its, "qwen3", 2, hidden=64, layers=3)


def tokenize(student, teacher, records, output, *options):
    """(the token data of records, what was printed); `teacher`: None where it has no tokenizer of its own"""
    source = output.with_suffix(".jsonl")
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = [sys.executable, tiny.REPOSITORY / "scripts/tokenize.py", "--tokenizer", student]
    command += ["--teacher-tokenizer", teacher] if teacher else []
    command += ["--output", output, "--workers", "1", "--overwrite", "--quiet", *options, source]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(output), done.stdout


def documents_of(folder):
    """[(tokens, in_loss, the teacher's tokens, the teacher's in_loss)]"""
    found = []
    for path in sorted(Path(folder).glob("*.dtok")):
        _, tokens, masks = shard_file.read(path)
        found += [(t, m, *its) for t, m, its in zip(tokens, masks, shard_file.read_teacher(path), strict=True)]
    return found


class Vocabulary:
    """The bytes of each token; of special tokens `pairs` says which are the same."""

    def __init__(self, folder, names):
        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        byte_of = {character: i for i, character in enumerate(_byte_characters())}
        special = {t["content"] for t in json.loads(tokenizer.to_str())["added_tokens"]}
        self.keys = {}  # id: bytes, or the name of a special token
        for token, index in tokenizer.get_vocab().items():
            special_name = names.get(token, token)
            self.keys[index] = special_name if token in special else bytes(byte_of[c] for c in token)


def _byte_characters():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(256 + others.index(b)) for b in range(256)]


def pieces_of(document, own, its):
    """[(begin, end, its begin, its end)]: positions in the two texts, by the ends of the tokens' bytes."""
    tokens, in_loss, its_tokens, its_in_loss = document
    shared = {key for key in own.keys.values() if isinstance(key, str)} & {
        key for key in its.keys.values() if isinstance(key, str)
    }

    def symbols(tokens, in_loss, vocabulary):
        """[(position, symbols)] of the tokens of the completion that have some"""
        out = []
        for at in range(len(tokens)):
            key = vocabulary.keys[int(tokens[at])]
            key = ([key] if key in shared else []) if isinstance(key, str) else list(key)
            if in_loss[at] and key:
                out.append((at, key))
        return out

    a, b = symbols(tokens, in_loss, own), symbols(its_tokens, its_in_loss, its)
    assert sum((key for _, key in a), []) == sum((key for _, key in b), [])
    pieces, i, j = [], 0, 0
    while i < len(a):
        first, its_first = i, j
        length, its_length = len(a[i][1]), len(b[j][1])
        while length != its_length:
            if length < its_length:
                i += 1
                length += len(a[i][1])
            else:
                j += 1
                its_length += len(b[j][1])
        pieces.append((a[first][0], a[i][0] + 1, b[its_first][0], b[j][0] + 1))
        i, j = i + 1, j + 1
    return pieces


def ambiguous_keys(own, its):
    """The tokens with which the longer ones begin that one vocabulary alone has, as the other one writes them."""
    found = set()
    for one, other in ((own, its), (its, own)):
        keys = {key for key in other.keys.values() if isinstance(key, bytes)}
        for key in one.keys.values():
            if isinstance(key, bytes) and key not in keys:
                found.add(next((key[:n] for n in range(len(key) - 1, 0, -1) if key[:n] in keys), None))
    return found


def bernoulli(p_log, q_log, loss, temperature):
    p, q = (torch.stack([(x / temperature).exp(), -torch.expm1(x / temperature)], -1).log() for x in (p_log, q_log))
    return temperature * reference_training.divergence(p, q, loss)


def document_losses(student, teacher, document, own, its, loss):
    """Sums of one document: the loss and its parts, in the dtype of the models."""
    tokens, in_loss, its_tokens, its_in_loss = (torch.as_tensor(part.astype("int64")) for part in document)
    logits = student(tokens[None]).logits[0]
    with torch.no_grad():
        its_logits = teacher(its_tokens[None]).logits[0]
    targets = [i for i in range(1, len(tokens)) if in_loss[i]]
    q, p = logits.log_softmax(-1), its_logits[:, : max(its.keys) + 1].log_softmax(-1)
    hard = F.cross_entropy(logits[[i - 1 for i in targets]], tokens[targets], reduction="sum")
    by_key = {key: index for index, key in its.keys.items()}
    columns = [index for index in sorted(own.keys) if own.keys[index] in by_key]
    columns = [index for index in columns if own.keys[index] not in ambiguous_keys(own, its)]
    its_columns = [by_key[own.keys[index]] for index in columns]
    sums = dict.fromkeys(("forward_kl", "reverse_kl", "agreement", "soft", "span", "teacher_ce", "dropped"), 0.0)
    counts = {"tokens": len(targets), "pieces": 0, "compared": 0, "spans": 0, "span_tokens": 0}
    temperature = loss.get("temperature", 1.0)
    for begin, end, its_begin, its_end in pieces_of(document, own, its):
        if begin == 0 or its_begin == 0:
            continue
        is_span = end - begin != 1 or its_end - its_begin != 1
        if not is_span or loss.get("span_starts", False):
            counts["compared"] += 1
            row, its_row = logits[begin - 1, columns], its_logits[its_begin - 1, its_columns]
            q_log, p_log = ((one / temperature).log_softmax(-1) for one in (row, its_row))
            sums["soft"] += reference_training.divergence(p_log, q_log, loss)
            sums["forward_kl"] += reference_training.kl(p_log, q_log)
            sums["reverse_kl"] += reference_training.kl(q_log, p_log)
            sums["agreement"] += float(row.argmax() == its_row.argmax())
            sums["dropped"] += 1 - p[its_begin - 1, its_columns].exp().sum()
        its_log = sum(p[i - 1, its_tokens[i]] for i in range(its_begin, its_end))
        sums["teacher_ce"] -= its_log
        counts["pieces"] += 1
        if is_span:
            own_log = sum(q[i - 1, tokens[i]] for i in range(begin, end))
            sums["span"] += bernoulli(its_log, own_log, loss, loss.get("span_temperature", 100.0))
            counts["spans"] += 1
            counts["span_tokens"] += end - begin
    soft = sums["soft"] + loss.get("span_weight", 1.0) * sums["span"]
    total = loss.get("hard_weight", 0.0) * hard + loss.get("soft_weight", 1.0) * soft
    return sums | counts | {"soft": soft, "hard": hard, "loss": total}


MEANS = ("loss", "hard", "soft", "teacher_ce")  # over tokens
COMPARED = ("forward_kl", "reverse_kl", "agreement")  # where distributions are compared


def means_of(sums):
    means = {name: float(sums[name]) / sums["tokens"] for name in MEANS}
    means |= {name: float(sums[name]) / sums["compared"] for name in COMPARED}
    means["teacher_dropped_mass"] = float(sums["dropped"]) / sums["compared"]
    means["boundary_share"] = sums["pieces"] / sums["tokens"]
    means["span_share"] = sums["span_tokens"] / sums["tokens"]
    means["span_loss"] = float(sums["span"]) / sums["spans"] if sums["spans"] else math.nan
    return means


def added(all_sums):
    return {name: sum(one[name] for one in all_sums) for name in all_sums[0]}


def train(config, batches, own, its):
    """(means of each step, the trained student): each batch is a list of documents."""
    student, teacher = (reference_training.load(config[name]["path"]) for name in ("student", "teacher"))
    optimizer = reference_training.make_optimizer(student, config["optimizer"])
    records = []
    for step, documents in enumerate(batches):
        optimizer.zero_grad()
        sums = added([document_losses(student, teacher, one, own, its, config["loss"]) for one in documents])
        (sums["loss"] / sums["tokens"]).backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), config["optimizer"].get("max_grad_norm", 1.0))
        for group in optimizer.param_groups:
            group["lr"] = reference_training.learning_rate(config, step)
        optimizer.step()
        records.append(means_of(sums) | {"grad_norm": norm.item(), "valid_tokens": sums["tokens"]})
    return records, student
