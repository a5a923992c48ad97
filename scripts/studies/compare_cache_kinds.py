#!/usr/bin/env python3
"""What each kind of a teacher's cache costs: bytes a token, the KL that it loses, the error of the student's gradient.

Hidden states of a real teacher and student on real text are computed in fp32 by transformers, what a cache would store
of the teacher is made of them by the operators, and the gradient of all of the student's weights is compared with that
of the online teacher, for forward KL. Then the mean gradient of many draws is compared with it, for `sampled`.

  scripts/studies/compare_cache_kinds.py --teacher work/quickstart/teacher --student work/quickstart/student \\
    --data work/quickstart/data/eval

The folders are those that scripts/quickstart.sh makes. Runs on a CPU in some minutes, with --device cuda in less.
"""

import script_path

import json
import os
import sys
from pathlib import Path

sys.path.append(os.path.join(script_path.FOLDER, "benches", "loss_head"))

import torch
import transformers

from problem import load_operators
from shared.command_line import argument_parser
from teacher_cache.import_topk import id_bytes
from token_shards import shard_file

TOPK, SAMPLES, EXPONENTS = (16, 64, 256), (12, 25, 50), (1.0, 0.5)
DRAWS = (1, 4, 16, 64, 256)
SOFT, FORWARD_KL = 2, 4  # rows of the operators' token metrics (losses/token_metrics.h)


def parse_arguments():
    parser = argument_parser(__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--student", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--data", type=Path, required=True, help="a token shard, or a folder of them")
    parser.add_argument("--seq-len", type=int, default=256, help="tokens of a sequence (default 256)")
    parser.add_argument("--tokens", type=int, default=2048, help="how many are measured (default 2048)")
    parser.add_argument("--draw-tokens", type=int, default=256, help="of the mean over draws (default 256)")
    parser.add_argument("--draws", type=int, default=DRAWS[-1], help="how many are averaged (default 256; 0: none)")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    library = "build/release/losses/libdistill_losses.so"
    parser.add_argument("--library", default=library, help=f"the operators (default {library})")
    parser.add_argument("--out", type=Path, help="JSON file with the numbers")
    return parser.parse_args()


def sequences(path, seq_len, tokens):
    """Stretches of documents, at most seq_len tokens each, until there are enough tokens."""
    found = []
    for shard in sorted(path.glob(f"*{shard_file.EXTENSION}")) if path.is_dir() else [path]:
        for document in shard_file.read(shard)[1]:
            for begin in range(0, len(document) - 1, seq_len):
                found.append(torch.tensor(document[begin : begin + seq_len].astype("int64")))
                if sum(map(len, found)) >= tokens:
                    return found
    return found


def hidden_states(model, texts):
    """[N, H] after the last norm."""
    return torch.cat([model.model(text[None], use_cache=False).last_hidden_state[0] for text in texts])


def rounded(hidden, dtype):
    """Hidden states as they come back from a cache (docs/teacher_cache.md), and the bytes of a row."""
    size = hidden.shape[1]
    if dtype == "bfloat16":
        return hidden.bfloat16().float(), 2 * size
    if dtype == "float8":
        scale = hidden.abs().amax(1, keepdim=True) / 448
        return (hidden / scale).to(torch.float8_e4m3fn).float() * scale, size + 4
    groups = torch.nn.functional.pad(hidden, (0, -size % 64)).view(len(hidden), -1, 64)
    scale = (groups.abs().amax(-1, keepdim=True) * ((1 + 1 / 128) / 127)).bfloat16().float().clamp_min(1e-30)
    back = ((groups / scale).round().clamp(-127, 127) * scale).view(len(hidden), -1)[:, :size]
    return back, size + 2 * (-(-size // 64))


class Problem:
    def __init__(self, operators, student, teacher, hidden, teacher_hidden):
        self.operators, self.student, self.teacher, self.hidden = operators, student, teacher, hidden
        self.weight, self.teacher_weight = student.lm_head.weight, teacher.lm_head.weight.detach()
        self.teacher_hidden = teacher_hidden
        self.columns = min(len(self.weight), len(self.teacher_weight))
        self.keys = torch.arange(len(hidden), device=hidden.device)

    def online(self, teacher_hidden=None):
        return self.operators.linear_jsd(
            self.hidden,
            self.weight,
            self.teacher_hidden if teacher_hidden is None else teacher_hidden,
            self.teacher_weight,
            divergence="forward_kl",
            reduction="mean",
        )

    def topk(self, k, dtype):
        ids, log_probs, tail = self.operators.capture_topk(
            self.teacher_hidden, self.teacher_weight, k, vocab_size=self.columns
        )
        return self.operators.linear_topk(
            self.hidden,
            self.weight,
            ids,
            log_probs.to(dtype),
            tail,
            divergence="forward_kl",
            vocab_size=self.columns,
            reduction="mean",
        )

    def sampled(self, samples, exponent, seed=0):
        ids, weights = self.operators.capture_samples(
            self.teacher_hidden,
            self.teacher_weight,
            self.keys,
            samples,
            seed=seed,
            exponent=exponent,
            vocab_size=self.columns,
        )
        return self.operators.linear_sampled(
            self.hidden, self.weight, ids, weights, vocab_size=self.columns, reduction="mean"
        )

    def gradient(self, loss, of):
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, of, retain_graph=True)]).double()


def error_of(found, expected):
    """(relative error, cosine)"""
    cosine = torch.nn.functional.cosine_similarity(found, expected, dim=0).item()
    return ((found - expected).norm() / expected.norm()).item(), cosine


def compare_kinds(problem):
    """Rows of the table: name, bytes a token, KL that is lost in nats (None: not known), gradient error, cosine."""
    weights = [p for p in problem.student.parameters() if p.requires_grad]
    loss, metrics = problem.online()
    kl, expected = metrics[FORWARD_KL].mean().item(), problem.gradient(loss, weights)
    print(f"KL(teacher || student) {kl:.4f} nats; |gradient| {expected.norm():.4g}", flush=True)
    rows = []

    def add(name, size, lost, loss):
        rows.append([name, size, lost, *error_of(problem.gradient(loss, weights), expected)])
        print(rows[-1], flush=True)

    for dtype in ("bfloat16", "int8", "float8"):
        back, size = rounded(problem.teacher_hidden, dtype)
        _, to_teacher = problem.operators.linear_jsd(
            back, problem.teacher_weight, problem.teacher_hidden, problem.teacher_weight, divergence="forward_kl"
        )
        add(f"hidden, {dtype}", size, to_teacher[FORWARD_KL].mean().item(), problem.online(back)[0])
    ids = id_bytes(problem.columns)
    for k in TOPK:
        for dtype, value in ((torch.float16, 2), (torch.float32, 4)):
            loss, metrics = problem.topk(k, dtype)
            add(f"topk {k}, {str(dtype)[6:]}", k * (ids + value) + 4, kl - metrics[FORWARD_KL].mean().item(), loss)
    for exponent in EXPONENTS:
        for samples in SAMPLES:
            size = samples * (ids + (0 if exponent == 1 else 4))
            add(f"sampled {samples}, exponent {exponent:g}", size, None, problem.sampled(samples, exponent)[0])
    return kl, rows


def mean_of_draws(problem, exponent, samples, draws):
    """(draws, relative error of their mean gradient) of the student's hidden states and lm_head."""
    of = [problem.hidden, problem.weight]
    expected = problem.gradient(problem.online()[0], of)
    total, rows = torch.zeros_like(expected), []
    for seed in range(draws):
        total += problem.gradient(problem.sampled(samples, exponent, seed)[0], of)
        if seed + 1 in DRAWS or seed + 1 == draws:
            rows.append([seed + 1, error_of(total / (seed + 1), expected)[0]])
    return rows


def compare_draws(problem, arguments):
    """What mean_of_draws returns, by exponent."""
    few = arguments.draw_tokens
    hidden = problem.hidden[:few].detach().requires_grad_(True)
    small = Problem(problem.operators, problem.student, problem.teacher, hidden, problem.teacher_hidden[:few])
    small.weight = small.weight.detach().requires_grad_(True)
    means = {f"{exponent:g}": mean_of_draws(small, exponent, SAMPLES[1], arguments.draws) for exponent in EXPONENTS}
    print(f"\nmean gradient of draws of {SAMPLES[1]} over {few} tokens: relative error against the online gradient")
    for exponent, rows in means.items():
        print(f"exponent {exponent}: " + ", ".join(f"{count} draws {error:.4f}" for count, error in rows))
    return means


def table(rows):
    print("| kind | bytes a token | KL that is lost, nats | gradient error | cosine |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, size, lost, error, cosine in rows:
        print(f"| {name} | {size} | {'' if lost is None else f'{lost:.2g}'} | {error:.2g} | {cosine:.4f} |")


def main():
    arguments = parse_arguments()
    load_operators(arguments.library)
    operators = torch.ops.distill
    student, teacher = (
        transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).to(arguments.device)
        for path in (arguments.student, arguments.teacher)
    )
    texts = [text.to(arguments.device) for text in sequences(arguments.data, arguments.seq_len, arguments.tokens)]
    with torch.no_grad():
        teacher_hidden = hidden_states(teacher, texts)
    problem = Problem(operators, student, teacher, hidden_states(student, texts), teacher_hidden)
    print(f"{len(teacher_hidden)} tokens, vocabulary {problem.columns}, hidden size {teacher_hidden.shape[1]}")
    kl, kinds = compare_kinds(problem)
    table(kinds)
    means = compare_draws(problem, arguments) if arguments.draws else {}
    if arguments.out:
        arguments.out.write_text(json.dumps({"forward_kl": kl, "kinds": kinds, "mean_of_draws": means}, indent=1))


if __name__ == "__main__":
    main()
