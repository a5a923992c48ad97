"""A plain PyTorch training loop with transformers' models: the loss from whole logits, or Liger's fused JSD.

scripts/studies/quality.py plain --config job.yaml --head liger
"""

import math
import time
from pathlib import Path

from shared.command_line import fail

HEADS = ("plain", "liger")


def add_arguments(parser):
    parser.add_argument("--config", type=Path, required=True, help="of a distill run, data.packing concat, in order")
    parser.add_argument("--head", choices=HEADS, default="plain", help="liger: its fused linear JSD (Triton)")


def jsd(student_logits, teacher_logits, beta):
    """Mean over tokens of beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q; p the teacher."""
    import torch

    q, p = student_logits.float().log_softmax(-1), teacher_logits.float().log_softmax(-1)
    m = torch.logaddexp(p + math.log(beta), q + math.log(1 - beta))
    kl = [(one.exp() * (one - m)).sum(-1) for one in (p, q)]
    return (beta * kl[0] + (1 - beta) * kl[1]).mean()


class Loss:
    """The divergence of two models on rows of tokens."""

    def __init__(self, job, head):
        self.beta, self.head = job["loss"]["beta"], head
        if head == "liger":
            from liger_kernel.transformers import LigerFusedLinearJSD

            self.fused = LigerFusedLinearJSD(jsd_beta=self.beta)

    def __call__(self, student, teacher, tokens):
        import torch

        with torch.no_grad():
            teacher_hidden = teacher.model(tokens, use_cache=False).last_hidden_state
        hidden = student.model(tokens, use_cache=False).last_hidden_state
        if self.head == "plain":
            return jsd(student.lm_head(hidden), teacher.lm_head(teacher_hidden), self.beta)
        # Autocast leaves the final norm's output in fp32, and does not see into Liger's function.
        dtype = teacher.lm_head.weight.dtype
        own, other = (states.flatten(0, 1).to(dtype) for states in (hidden, teacher_hidden))
        return self.fused(own, student.lm_head.weight.to(dtype), other, teacher.lm_head.weight, None)


def train(job, head):
    """Runs the job. Returns (one record a step, the trained student, {"seconds": ...})."""
    import torch

    from . import peer_job

    student, teacher = peer_job.load_models(job)
    optimizer, loss_function = peer_job.make_optimizer(job, student), Loss(job, head)
    device, dtype = job["train"]["device"], getattr(torch, job["train"]["dtype"])
    max_norm = job["optimizer"]["max_grad_norm"]
    losses, times, records = [], [], []
    for step, rows in enumerate(peer_job.batches(job)):
        for group in optimizer.param_groups:
            group["lr"] = job["optimizer"]["lr"] * peer_job.rate_factor(job, step)
        tokens = rows[:, :-1].to(device)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            loss = loss_function(student, teacher, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.monotonic())
    for step, loss in enumerate(losses):
        records.append({"step": step + 1, "loss": float(loss), "seconds": times[step] - times[max(0, step - 1)]})
    return records, student, {}


def main(args):
    from . import peer_job

    try:
        job = peer_job.read_job(args.config)
    except (ValueError, KeyError, OSError) as error:
        fail(error)
    records, student, totals = train(job, args.head)
    peer_job.save(job, student, records, totals)
    print(f"{len(records)} steps, last loss {records[-1]['loss']:.6f}")
