#!/usr/bin/env python3
"""Distils in a plain transformers training loop, with the loss computed by distill-losses.

The whole change is one line: `patch_causal_lm` makes the student's forward compute the loss from hidden states and both
lm_heads, so that the logits [tokens, vocabulary] never exist. The loop is as before, and so is a transformers Trainer.

Without --student and --teacher it trains a tiny random student from a tiny random teacher on random tokens; on a CPU
this takes seconds.

  losses/python/examples/transformers_loop.py --loss both --steps 5
  losses/python/examples/transformers_loop.py --teacher models/8b --student models/1b --text corpus.txt \\
      --device cuda --dtype bfloat16
"""

import argparse
import sys

import torch
import torch.nn.functional as F
import transformers

from distill_losses import LinearJSD
from distill_losses.transformers import patch_causal_lm

IGNORE_INDEX = -100
TINY = dict(vocab_size=512, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)


def plain_loss(student, teacher, tokens, hard_weight, beta):
    """What patch_causal_lm replaces: the same loss in plain PyTorch, on logits [B * S, V]."""
    logits = student(tokens).logits.flatten(0, 1).float()
    with torch.no_grad():
        teacher_logits = teacher(tokens).logits.flatten(0, 1).float()
    labels = F.pad(tokens[:, 1:], (0, 1), value=IGNORE_INDEX).flatten()
    valid = labels != IGNORE_INDEX
    hard = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX)
    q, p = logits[valid].log_softmax(-1), teacher_logits[valid].log_softmax(-1)
    m = (beta * p.exp() + (1 - beta) * q.exp()).log()
    soft = beta * (p.exp() * (p - m)).sum(-1) + (1 - beta) * (q.exp() * (q - m)).sum(-1)
    return hard_weight * hard + (1 - hard_weight) * soft.mean()


def tiny_model(hidden_size, layers, seed):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=hidden_size, intermediate_size=2 * hidden_size, num_hidden_layers=layers, **TINY
        )
    )


def batches(args, vocab):
    """Yields tokens [batch, length] without end: the text in order, or random tokens."""
    generator = torch.Generator().manual_seed(0)
    if args.text is None:
        while True:
            yield torch.randint(0, vocab, (args.batch, args.length), generator=generator)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.student)
    with open(args.text) as file:
        tokens = torch.tensor(tokenizer(file.read())["input_ids"])
    size = args.batch * args.length
    if len(tokens) < size:
        sys.exit(f"--text: expected at least {size} tokens for one batch, found {len(tokens)} in {args.text}")
    while True:
        for start in range(0, len(tokens) - size + 1, size):
            yield tokens[start : start + size].view(args.batch, args.length)


def load(path, hidden_size, layers, seed, args):
    dtype = getattr(torch, args.dtype)
    if path is None:
        return tiny_model(hidden_size, layers, seed).to(args.device, dtype)
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(args.device)


def train(args, name):
    """The training loop; returns the loss of each step."""
    student = load(args.student, hidden_size=32, layers=1, seed=1, args=args)
    teacher = load(args.teacher, hidden_size=64, layers=2, seed=2, args=args).eval().requires_grad_(False)
    if name == "fused":
        loss_function = LinearJSD(
            beta=args.beta, weight_hard_loss=args.hard_weight, weight_soft_loss=1 - args.hard_weight
        )
        patch_causal_lm(student, loss_function, teacher)
    optimizer = torch.optim.AdamW(student.parameters(), lr=args.lr)
    losses = []
    for step, batch in zip(range(1, args.steps + 1), batches(args, student.config.vocab_size)):
        tokens = batch.to(args.device)
        if name == "fused":
            loss = student(tokens, labels=tokens).loss
        else:
            loss = plain_loss(student, teacher, tokens, args.hard_weight, args.beta)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(f"{name} step {step}/{args.steps}  loss {losses[-1]:.6f}  |g| {norm.item():.4f}", flush=True)
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", help="Hugging Face folder; none: a tiny random model")
    parser.add_argument("--teacher", help="Hugging Face folder; none: a tiny random model")
    parser.add_argument("--text", help="text to train on; none: random tokens")
    parser.add_argument(
        "--loss", choices=["fused", "plain", "both"], default="fused", help="both: one run after the other"
    )
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--hard-weight", type=float, default=0.2)
    parser.add_argument("--beta", type=float, default=0.5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args()
    if args.text is not None and args.student is None:
        parser.error("--text: expected together with --student, whose tokenizer reads it")
    runs = [train(args, name) for name in (["plain", "fused"] if args.loss == "both" else [args.loss])]
    if len(runs) == 2:
        difference = max(abs(a - b) for a, b in zip(*runs))
        print(f"largest difference of the losses over {args.steps} steps: {difference:.2e}")


if __name__ == "__main__":
    main()
