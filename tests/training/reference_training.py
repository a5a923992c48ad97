"""The training step of distill in plain PyTorch and transformers, for comparison step by step.

Nothing here is fast or saves memory: full logits, autograd, one loss formula after the other as the papers have them.
It reads the same config file and the same token shards (data.packing: concat, data.shuffle: false, one shard).

  python tests/training/reference_training.py --config run.yaml     prints one JSON object a step
"""

import argparse
import functools
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

sys.path.insert(0, str(Path(__file__).parent))
from token_shard import read_shard

IGNORE = -100
# Of the numbers of a step, the means over its tokens.
MEANS = ("loss", "hard", "soft", "forward_kl", "reverse_kl", "student_entropy", "teacher_entropy", "teacher_ce")


def concat_rows(shard, seq_len):
    """(tokens, targets) [rows, seq_len]: all documents as one stream, cut; the last row padded."""
    documents = read_shard(shard)
    stream = torch.cat([torch.from_numpy(document.tokens) for document in documents])
    in_loss = torch.cat([torch.from_numpy(document.in_loss) for document in documents])
    labels = torch.where(in_loss, stream, IGNORE)
    count = len(stream) - 1
    rows = -(-count // seq_len)
    tokens = F.pad(stream[:-1], (0, rows * seq_len - count), value=0).view(rows, seq_len)
    targets = F.pad(labels[1:], (0, rows * seq_len - count), value=IGNORE).view(rows, seq_len)
    return tokens, targets


def real_tokens(shard, seq_len):
    """[rows, seq_len]: 1 for the tokens of concat_rows, 0 for padding."""
    count = sum(len(document.tokens) for document in read_shard(shard)) - 1
    rows = -(-count // seq_len)
    return (torch.arange(rows * seq_len) < count).long().view(rows, seq_len)


def document_row(document):
    """(tokens, targets) [1, length] of one document on its own."""
    tokens = torch.from_numpy(document.tokens)
    labels = torch.where(torch.from_numpy(document.in_loss), tokens, IGNORE)
    return tokens[None], F.pad(labels[1:], (0, 1), value=IGNORE)[None]


def kl(p_log, q_log):
    return (p_log.exp() * (p_log - q_log)).sum(-1)


def divergence(p_log, q_log, loss):
    """Per token; p is the teacher, q the student, beta 0 forward KL, 1 reverse KL."""
    name, beta = loss.get("divergence", "jsd"), loss.get("beta", 0.5)
    if name == "forward_kl" or (name == "jsd" and beta == 0):
        return kl(p_log, q_log)
    if name == "reverse_kl" or (name == "jsd" and beta == 1):
        return kl(q_log, p_log)
    if name != "jsd":
        raise ValueError(f"the reference has no divergence {name}")
    m_log = torch.logaddexp(p_log + math.log(beta), q_log + math.log(1 - beta))
    return beta * kl(p_log, m_log) + (1 - beta) * kl(q_log, m_log)


def token_losses(student, teacher, tokens, targets, loss):
    """Every metric at the tokens that have a target, by name: 1-D tensors of equal length."""
    valid = targets != IGNORE
    student_logits = student(tokens).logits[valid].float()
    with torch.no_grad():
        teacher_logits = teacher(tokens).logits[valid].float()
    vocab = min(student_logits.shape[-1], teacher_logits.shape[-1])  # the rest is padding
    student_logits, teacher_logits = student_logits[:, :vocab], teacher_logits[:, :vocab]
    labels, temperature = targets[valid], loss.get("temperature", 1.0)
    q_log, p_log = (logits / temperature for logits in (student_logits, teacher_logits))
    q_log, p_log = q_log.log_softmax(-1), p_log.log_softmax(-1)
    hard = F.cross_entropy(student_logits, labels, reduction="none")
    soft = divergence(p_log, q_log, loss)
    if loss.get("scale_by_temperature_squared", False):
        soft = soft * temperature**2
    return {
        "loss": loss.get("hard_weight", 0.0) * hard + loss.get("soft_weight", 1.0) * soft,
        "hard": hard,
        "soft": soft,
        "forward_kl": kl(p_log, q_log),
        "reverse_kl": kl(q_log, p_log),
        "student_entropy": -(q_log.exp() * q_log).sum(-1),
        "teacher_entropy": -(p_log.exp() * p_log).sum(-1),
        "agreement": (student_logits.argmax(-1) == teacher_logits.argmax(-1)).float(),
        "accuracy": (student_logits.argmax(-1) == labels).float(),
        "teacher_ce": F.cross_entropy(teacher_logits, labels, reduction="none"),
    }


@torch.no_grad()
def evaluate(student, teacher, rows, loss):
    """Means over all valid tokens of `rows`, a list of (tokens, targets)."""
    sums, count = {}, 0
    for tokens, targets in rows:
        for name, values in token_losses(student, teacher, tokens, targets, loss).items():
            sums[name] = sums.get(name, 0.0) + values.double().sum().item()
        count += int((targets != IGNORE).sum())
    return {name: value / count for name, value in sums.items()} | {"valid_tokens": count}


def learning_rate(config, step):
    """Of the 0-based optimizer step: linear warm-up, then cosine that reaches its end after the last step."""
    peak, scheduler, steps = config["optimizer"]["lr"], config["scheduler"], config["train"]["steps"]
    warmup, floor = scheduler.get("warmup_steps", 0), scheduler.get("min_lr_ratio", 0.0)
    if step < warmup:
        return peak * (step + 1) / warmup
    if scheduler["type"] == "constant":
        return peak
    assert scheduler["type"] == "cosine", scheduler
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimizer(model, options):
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim >= 2]
    vectors = [p for p in trained if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": options.get("weight_decay", 0.1)},
        {"params": vectors, "weight_decay": 0.0},
    ]
    betas = (options.get("beta1", 0.9), options.get("beta2", 0.95))
    return torch.optim.AdamW(groups, lr=options["lr"], betas=betas, eps=options.get("eps", 1e-8))


def attention_of(folder):
    """The option with which transformers computes attention whose scores are capped; its default leaves the cap out."""
    capped = json.loads((Path(folder) / "config.json").read_text()).get("attn_logit_softcapping") is not None
    return {"attn_implementation": "eager"} if capped else {}


def load(folder):
    is_multimodal = "text_config" in json.loads((Path(folder) / "config.json").read_text())
    kind = AutoModelForImageTextToText if is_multimodal else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32, **attention_of(folder))


def train(config, adapt=lambda student: student):
    """Runs the whole job. Returns (one record a step, the trained student). `adapt` may give the student adapters."""
    data, options, loss = config["data"], config["train"], config["loss"]
    assert data["packing"] == "concat" and not data["shuffle"] and len(data["train"]) == 1, data
    student, teacher = adapt(load(config["student"]["path"])), load(config["teacher"]["path"])
    tokens, targets = concat_rows(data["train"][0]["path"], data["seq_len"])
    micro, batch = options["micro_batch_size"], options["global_batch_size"]
    max_norm = config["optimizer"].get("max_grad_norm", 1.0)
    optimizer = make_optimizer(student, config["optimizer"])
    real = real_tokens(data["train"][0]["path"], data["seq_len"])
    balance = []  # of a student with experts whose config.json asks for the routers' loss
    student.register_forward_hook(lambda model, inputs, outputs: balance.append(getattr(outputs, "aux_loss", None)))
    records = []
    for step in range(options["steps"]):
        rows = torch.arange(step * batch, (step + 1) * batch) % len(tokens)
        valid = max(1, int((targets[rows] != IGNORE).sum()))
        means = {}
        optimizer.zero_grad()
        for part in rows.split(micro):
            # The routers' loss leaves padding out, of which transformers knows by a mask.
            has_routers = getattr(student.config, "output_router_logits", False)
            reads = functools.partial(student, attention_mask=real[part]) if has_routers else student
            values = token_losses(reads, teacher, tokens[part], targets[part], loss)
            total = values["loss"].sum() / valid
            if (aux_loss := balance.pop()) is not None:
                aux_loss = aux_loss * micro / batch
                total = total + student.config.router_aux_loss_coef * aux_loss
                means["router_aux_loss"] = means.get("router_aux_loss", 0.0) + aux_loss.item()
            total.backward()
            for name, value in values.items():
                means[name] = means.get(name, 0.0) + value.detach().double().sum().item() / valid
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), max_norm if max_norm > 0 else math.inf)
        lr = learning_rate(config, step)
        empty = not bool((targets[rows] != IGNORE).any())
        skipped = not empty and not torch.isfinite(norm)
        if not skipped and not empty:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
        records.append(
            {"step": step + 1, **means, "valid_tokens": valid, "grad_norm": norm.item(), "lr": lr, "skipped": skipped}
        )
    return records, student


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    for record in train(yaml.safe_load(parser.parse_args().config.read_text()))[0]:
        print(json.dumps(record))


if __name__ == "__main__":
    main()
