"""The inputs of the conformance study: small random batches, and their exact loss.

Shape suffixes: B sequences, S tokens of each, H and G the hidden sizes of student and teacher, V vocabulary.
"""

import math
from dataclasses import dataclass, field

import torch

IGNORED = -100  # the label of tokens without a target
NEAR = 0.2  # standard deviation of the noise that makes the student's hidden states from the teacher's
SEQUENCES, TOKENS, VOCAB, HIDDEN, TEACHER_HIDDEN = 4, 24, 211, 32, 48


@dataclass
class Case:
    """A loss, and the labels of its micro-batches. The step's loss is the mean over the targets of all of them."""

    name: str
    divergence: str = "jsd"  # jsd, forward_kl, reverse_kl
    beta: float = 0.5  # of jsd: the weight of the teacher in the mixture
    temperature: float = 1.0
    softcap: float = 0.0  # 0: none
    scale: float = 1.0  # standard deviation of the logits
    labels: str = "all"  # which tokens have a target, see labels_of
    micro_batches: int = 1
    dtype: torch.dtype = torch.float32
    near_teacher: bool = False
    meaning: str = ""


CASES = [
    Case("JSD 0.5", meaning="beta KL(p, m) + (1 - beta) KL(q, m) with m = beta p + (1 - beta) q; p is the teacher"),
    Case("JSD 0.1", beta=0.1, meaning="the weight of the teacher in the mixture is 0.1"),
    Case("JSD 0.9", beta=0.9),
    Case("forward KL", "forward_kl", meaning="KL(p, q)"),
    Case("reverse KL", "reverse_kl", meaning="KL(q, p)"),
    Case("forward KL, T 2", "forward_kl", temperature=2.0, meaning="logits divided by 2, the loss not multiplied by 4"),
    Case("JSD 0.5, T 2", temperature=2.0),
    Case("JSD 0.5, softcap 5", softcap=5.0, meaning="logits = 5 tanh(logits / 5) on both sides"),
    Case(
        "forward KL, logits of 30", "forward_kl", scale=30.0, meaning="standard deviation 30: probabilities underflow"
    ),
    Case("forward KL, prompts masked", "forward_kl", labels="prompts", meaning="half of each sequence has no target"),
    Case("forward KL, ragged", "forward_kl", labels="ragged", meaning="sequences of 24, 13, 5 and 1 tokens, padded"),
    Case("forward KL, a row without targets", "forward_kl", labels="empty row", meaning="one of four sequences"),
    Case("forward KL, no targets", "forward_kl", labels="none", meaning="the right loss is 0, its gradient too"),
    Case(
        "forward KL, ragged micro-batches",
        "forward_kl",
        labels="ragged",
        micro_batches=2,
        meaning="43 and 48 targets in two micro-batches of a step, whose gradients are added",
    ),
    Case("JSD 0.5, ragged micro-batches", labels="ragged", micro_batches=2),
    Case(
        "JSD 0.5 in bf16, near the teacher",
        dtype=torch.bfloat16,
        near_teacher=True,
        meaning="bf16 hidden states and lm_head, the student 0.02 nats from the teacher, as at the end of a training; "
        "fp64 starts from the same bf16 inputs, and the error is that of the gradient",
    ),
]


@dataclass
class Batch:
    """What an implementation gets for one micro-batch, in the case's dtype."""

    hidden_BSH: torch.Tensor
    teacher_hidden_BSG: torch.Tensor
    labels_BS: torch.Tensor


@dataclass
class Problem:
    """A case with its inputs; the weights are those of all micro-batches."""

    case: Case
    weight_VH: torch.Tensor
    teacher_weight_VG: torch.Tensor
    batches: list[Batch] = field(default_factory=list)

    @property
    def targets(self):
        """Tokens with a target in the whole step."""
        return sum(int((batch.labels_BS != IGNORED).sum()) for batch in self.batches)


def labels_of(kind, generator, micro_batch):
    """labels_BS; `ragged` has lengths of its own in each micro-batch."""
    labels_BS = torch.randint(VOCAB, (SEQUENCES, TOKENS), generator=generator)
    if kind == "prompts":
        labels_BS[:, : TOKENS // 2] = IGNORED
    elif kind == "ragged":
        for row, length in enumerate(((24, 13, 5, 1), (24, 24, 0, 0))[micro_batch]):
            labels_BS[row, length:] = IGNORED
    elif kind == "empty row":
        labels_BS[2] = IGNORED
    elif kind == "none":
        labels_BS[:] = IGNORED
    return labels_BS


def problem_of(case):
    generator = torch.Generator().manual_seed(1)

    def normal(*shape, scale=1.0):
        return torch.randn(*shape, generator=generator) * scale

    width = TEACHER_HIDDEN if case.near_teacher else HIDDEN
    teacher_weight = normal(VOCAB, TEACHER_HIDDEN, scale=case.scale * TEACHER_HIDDEN**-0.5).to(case.dtype)
    weight = normal(VOCAB, width, scale=case.scale * width**-0.5).to(case.dtype)
    problem = Problem(case, teacher_weight if case.near_teacher else weight, teacher_weight)
    for index in range(case.micro_batches):
        teacher = normal(SEQUENCES, TOKENS, TEACHER_HIDDEN)
        hidden = normal(SEQUENCES, TOKENS, width)
        hidden = teacher + NEAR * hidden if case.near_teacher else hidden
        labels_BS = labels_of(case.labels, generator, index)
        problem.batches.append(Batch(hidden.to(case.dtype), teacher.to(case.dtype), labels_BS))
    return problem


def logits_of(hidden, weight, softcap):
    logits = hidden @ weight.t()
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def divergence_of(case, student, teacher):
    """The divergence of each row of logits [..., V], in their dtype, as the formula has it."""
    q, p = (torch.log_softmax(logits / case.temperature, -1) for logits in (student, teacher))

    def kl(a, b):
        return (a.exp() * (a - b)).sum(-1)

    if case.divergence == "forward_kl":
        return kl(p, q)
    if case.divergence == "reverse_kl":
        return kl(q, p)
    m = torch.logaddexp(p + math.log(case.beta), q + math.log(1 - case.beta))
    return case.beta * kl(p, m) + (1 - case.beta) * kl(q, m)


def exact_loss(problem, index, weight, hidden):
    """Micro-batch `index`'s part of the step's loss in fp64: its sum over targets divided by the step's targets."""
    case, batch = problem.case, problem.batches[index]
    teacher = logits_of(batch.teacher_hidden_BSG.double(), problem.teacher_weight_VG.double(), case.softcap)
    rows = divergence_of(case, logits_of(hidden, weight, case.softcap), teacher)
    return rows[batch.labels_BS != IGNORED].sum() / max(problem.targets, 1)
