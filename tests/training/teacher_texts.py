"""Documents for which the teacher reads a text of its own, and what training on them comes to in plain PyTorch."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import torch

import reference_training
import tiny

sys.path.append(str(tiny.REPOSITORY / "scripts"))

from token_shards.shard_file import Shard, ShardSpec


def random_document(random, prompt, completion, teacher_prompt, turns=1):
    """(tokens, in_loss, (teacher tokens, teacher in_loss)): `turns` times a prompt that differs, and a completion that
    does not."""
    own, own_marks, its, its_marks = [], [], [], []
    for _ in range(turns):
        answer = random.integers(1, tiny.VOCAB, completion)
        for text, marks, length in ((own, own_marks, prompt), (its, its_marks, teacher_prompt)):
            text += [random.integers(1, tiny.VOCAB, length), answer]
            marks += [np.zeros(length, bool), np.ones(completion, bool)]
    join = np.concatenate
    return join(own), join(own_marks), (join(its), join(its_marks))


def ragged_documents(seed, count):
    """Texts of many lengths, some with two turns, some without a text of the teacher's own."""
    random = np.random.default_rng(seed)
    documents = []
    for index in range(count):
        document = random_document(
            random,
            prompt=int(random.integers(1, 9)),
            completion=int(random.integers(0, 7)) if index % 9 else 0,
            teacher_prompt=int(random.integers(1, 16)),
            turns=1 + index % 2,
        )
        documents.append(document[:2] + (None,) if index % 5 == 2 else document)
    return documents


def write_shard(path, documents):
    shard = Shard(ShardSpec(tiny.VOCAB, bytes(32)))
    for document in documents:
        shard.add(*document)
    shard.write(path)
    return str(path)


def same_texts(documents):
    """The same documents with a text of the teacher's own that is the student's."""
    return [(tokens, in_loss, (tokens, in_loss)) for tokens, in_loss, *_ in documents]


def document_losses(student, teacher, document, loss):
    """Every metric at the completion's tokens that have a predecessor in both texts, by name."""
    tokens, in_loss, own_text = document
    teacher_tokens, marks = (tokens, in_loss) if own_text is None else own_text
    pairs = [(p, q) for p, q in zip(np.flatnonzero(in_loss), np.flatnonzero(marks)) if p > 0 and q > 0]
    targets = torch.full((1, len(tokens)), reference_training.IGNORE)
    for p, _ in pairs:
        targets[0, p - 1] = int(tokens[p])

    def aligned_teacher(_):
        logits = teacher(torch.from_numpy(np.asarray(teacher_tokens, np.int64))[None]).logits
        aligned = torch.zeros(1, len(tokens), logits.shape[-1])
        for p, q in pairs:
            aligned[0, p - 1] = logits[0, q - 1]
        return SimpleNamespace(logits=aligned)

    ids = torch.from_numpy(np.asarray(tokens, np.int64))[None]
    return reference_training.token_losses(student, aligned_teacher, ids, targets, loss)


@torch.no_grad()
def evaluate(student, teacher, documents, loss):
    """Means over all targets of the documents."""
    sums, count = {}, 0
    for document in documents:
        values = document_losses(student, teacher, document, loss)
        count += len(values["loss"])
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + value.double().sum().item()
    return {name: value / count for name, value in sums.items()} | {"valid_tokens": count}


def train(config, batches):
    """As reference_training.train; `batches`: the documents of each step. Returns (one record a step, the student)."""
    loss = config["loss"]
    student, teacher = (reference_training.load(config[role]["path"]) for role in ("student", "teacher"))
    optimizer = reference_training.make_optimizer(student, config["optimizer"])
    max_norm = config["optimizer"].get("max_grad_norm", 1.0)
    records = []
    for step, documents in enumerate(batches):
        values = [document_losses(student, teacher, document, loss) for document in documents]
        valid = sum(len(value["loss"]) for value in values)
        optimizer.zero_grad()
        (sum(value["loss"].sum() for value in values) / valid).backward()
        means = {
            name: sum(value[name].detach().double().sum().item() for value in values) / valid for name in values[0]
        }
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), max_norm if max_norm > 0 else math.inf)
        for group in optimizer.param_groups:
            group["lr"] = reference_training.learning_rate(config, step)
        optimizer.step()
        records.append(means | {"valid_tokens": valid, "grad_norm": norm.item()})
    return records, student
