#!/usr/bin/env python3
"""Distils in a plain transformers training loop, with the loss replaced by distill's fused operators.

The whole change is in `fused_loss`: the models stop at their hidden states, and one operator takes the hidden states
and both lm_heads, so that the logits [tokens, vocabulary] never exist. It replaces `plain_loss`. In a transformers
`Trainer`, the same lines are the body of `compute_loss`.

Without --student and --teacher it trains a tiny random student from a tiny random teacher on random tokens; on a CPU
this takes seconds.

  scripts/example_transformers.py --loss both --steps 5
  scripts/example_transformers.py --teacher models/8b --student models/1b --text corpus.txt --device cuda \\
      --dtype bfloat16
"""

import script_path

import os
import sys

import torch
import transformers

from shared.command_line import argument_parser

IGNORE_INDEX = -100
TINY = dict(vocab_size=512, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256)


def shifted(tokens):
    """Labels [B * S] of inputs [B, S]: the next token, and IGNORE_INDEX for the last one."""
    labels = torch.full_like(tokens, IGNORE_INDEX)
    labels[:, :-1] = tokens[:, 1:]
    return labels.flatten()


def fused_loss(student, teacher, tokens, hard_weight, beta, memory_cap_mb=1024):
    """Mean over the labelled tokens of hard_weight * cross-entropy + (1 - hard_weight) * JSD(beta)."""
    hidden = student.model(tokens).last_hidden_state.flatten(0, 1)  # [B * S, H], the student's body without its head
    with torch.no_grad():
        teacher_hidden = teacher.model(tokens).last_hidden_state.flatten(0, 1)
    loss, rows = torch.ops.distill.linear_jsd(
        hidden,
        student.lm_head.weight,
        teacher_hidden,
        teacher.lm_head.weight,
        shifted(tokens),
        beta=beta,
        hard_weight=hard_weight,
        soft_weight=1 - hard_weight,
        memory_cap_mb=memory_cap_mb,
    )
    # `rows` holds the metrics of each token: row 8 is 1 if both arg maxes agree, and 0 without a label.
    agreement = rows[8].sum() / (shifted(tokens) != IGNORE_INDEX).sum()
    return loss, agreement


def plain_loss(student, teacher, tokens, hard_weight, beta):
    """The same loss in plain PyTorch, on logits [B * S, V]."""
    logits = student(tokens).logits.flatten(0, 1).float()
    with torch.no_grad():
        teacher_logits = teacher(tokens).logits.flatten(0, 1).float()
    labels = shifted(tokens)
    valid = labels != IGNORE_INDEX
    hard = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX)
    q, p = logits[valid].log_softmax(-1), teacher_logits[valid].log_softmax(-1)
    m = (beta * p.exp() + (1 - beta) * q.exp()).log()
    soft = beta * (p.exp() * (p - m)).sum(-1) + (1 - beta) * (q.exp() * (q - m)).sum(-1)
    agreement = (logits.argmax(-1) == teacher_logits.argmax(-1))[valid].float().mean()
    return hard_weight * hard + (1 - hard_weight) * soft.mean(), agreement


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


def train(args, loss_function):
    """The training loop; returns the loss of each step."""
    student = load(args.student, hidden_size=32, layers=1, seed=1, args=args)
    teacher = load(args.teacher, hidden_size=64, layers=2, seed=2, args=args).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=args.lr)
    losses = []
    for step, tokens in zip(range(1, args.steps + 1), batches(args, student.config.vocab_size)):
        loss, agreement = loss_function(student, teacher, tokens.to(args.device), args.hard_weight, args.beta)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(
            f"{loss_function.__name__} step {step}/{args.steps}  loss {losses[-1]:.6f}  agree {agreement.item():.1%}  "
            f"|g| {norm.item():.4f}",
            flush=True,
        )
    return losses


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--library", default="build/release/losses/libdistill_losses.so")
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
    if not os.path.exists(args.library):
        parser.error(f"--library: expected libdistill_losses.so, found nothing at {args.library}; run scripts/build.sh")
    torch.ops.load_library(os.path.abspath(args.library))
    runs = {"fused": [fused_loss], "plain": [plain_loss], "both": [plain_loss, fused_loss]}[args.loss]
    losses = [train(args, function) for function in runs]
    if len(losses) == 2:
        difference = max(abs(a - b) for a, b in zip(*losses))
        print(f"largest difference of the losses over {args.steps} steps: {difference:.2e}")


if __name__ == "__main__":
    main()
