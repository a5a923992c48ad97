"""Random inputs of a loss head: hidden states and lm_head weights of a student and, with a teacher, of the teacher."""

import os
from dataclasses import dataclass, replace

import torch


@dataclass
class Problem:
    """N tokens, V vocabulary, H and G hidden sizes. Without a teacher the loss is cross-entropy on `targets`."""

    hidden: torch.Tensor  # [N, H]
    weight: torch.Tensor  # [V, H]
    targets: torch.Tensor  # [N]
    teacher_hidden: torch.Tensor | None = None  # [N, G]
    teacher_weight: torch.Tensor | None = None  # [V, G]
    beta: float = 0.5
    softcap: float = 0.0  # of both sides' logits; 0: none

    @property
    def tokens(self):
        return self.hidden.shape[0]

    @property
    def vocab(self):
        return self.weight.shape[0]

    @property
    def kind(self):
        """The name of the loss: ce, or by beta jsd, forward_kl or reverse_kl."""
        if self.teacher_hidden is None:
            return "ce"
        return {0: "forward_kl", 1: "reverse_kl"}.get(self.beta, "jsd")

    def loss_arguments(self):
        """Of distill::linear_head_into."""
        caps = {"student_softcap": self.softcap, "teacher_softcap": self.softcap}
        if self.teacher_hidden is None:
            return {"divergence": "none", "hard_weight": 1.0, "soft_weight": 0.0, **caps}
        return {"divergence": self.kind, "beta": self.beta, **caps}

    def first(self, tokens):
        """The same problem on its first tokens."""
        rows = slice(0, min(tokens, self.tokens))
        teacher = None if self.teacher_hidden is None else self.teacher_hidden[rows]
        return replace(self, hidden=self.hidden[rows], targets=self.targets[rows], teacher_hidden=teacher)


def random_problem(
    tokens, vocab, hidden, teacher_hidden, device, dtype=torch.bfloat16, logit_scale=1.0, seed=0, softcap=0.0, beta=0.5
):
    """Logits of standard deviation `logit_scale`; `teacher_hidden` 0: no teacher."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape, scale=1.0):
        return (torch.randn(*shape, device=device, dtype=torch.float32, generator=generator) * scale).to(dtype)

    problem = Problem(
        normal(tokens, hidden),
        normal(vocab, hidden, scale=logit_scale * hidden**-0.5),
        torch.randint(0, vocab, (tokens,), device=device, generator=generator),
        softcap=softcap,
        beta=beta,
    )
    if teacher_hidden:
        problem.teacher_hidden = normal(tokens, teacher_hidden)
        problem.teacher_weight = normal(vocab, teacher_hidden, scale=logit_scale * teacher_hidden**-0.5)
    return problem


def load_operators(library):
    """Registers torch.ops.distill from libdistill_losses.so, whose folder or build it may stand in."""
    path = os.path.abspath(library)
    if not os.path.exists(path):
        raise SystemExit(f"--library: expected libdistill_losses.so, found nothing at {path}; run scripts/build.sh")
    torch.ops.load_library(path)
