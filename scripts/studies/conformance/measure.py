"""What an implementation's loss and gradients are, compared with the exact ones and with known other conventions."""

import math
from dataclasses import dataclass

import torch

from .cases import SEQUENCES, TOKENS, VOCAB, divergence_of, exact_loss, logits_of, problem_of
from .implementations import IMPLEMENTATIONS

ROUNDING = 2e-5  # a relative error below this is that of fp32


@dataclass
class Step:
    """The loss of a step and its gradients for the weight and all hidden states, in one vector of fp64."""

    loss: float
    gradient: torch.Tensor


def step_of(problem, loss_of, dtype, mean_of_micro_batches=False):
    """Adds up the micro-batches' losses, or takes their mean; None where the implementation has no such loss."""
    weight = problem.weight_VH.to(dtype, copy=True).requires_grad_()
    hidden = [batch.hidden_BSH.to(dtype, copy=True).requires_grad_() for batch in problem.batches]
    losses = [loss_of(problem, index, weight, states) for index, states in enumerate(hidden)]
    if any(loss is None for loss in losses):
        return None
    total = sum(losses) / (len(losses) if mean_of_micro_batches else 1)
    if total.requires_grad:
        total.backward()
    leaves = [weight, *hidden]
    zeros = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return Step(total.item(), torch.cat([grad.double().flatten() for grad in zeros]))


def mean_of_means(problem, index, weight, hidden):
    """The micro-batch's own mean over its targets."""
    own = int((problem.batches[index].labels_BS >= 0).sum())
    return exact_loss(problem, index, weight, hidden) * max(problem.targets, 1) / max(own, 1)


def of_all_tokens(problem, index, weight, hidden):
    """Every token counts, whatever its label: divided by the tokens of the step."""
    case, batch = problem.case, problem.batches[index]
    teacher = logits_of(batch.teacher_hidden_BSG.double(), problem.teacher_weight_VG.double(), case.softcap)
    rows = divergence_of(case, logits_of(hidden, weight, case.softcap), teacher)
    return rows.sum() / (len(problem.batches) * SEQUENCES * TOKENS)


def conventions(problem):
    """(words, Step) of the exact loss and of other conventions, the likeliest first."""
    temperature, tokens = problem.case.temperature, len(problem.batches) * SEQUENCES * TOKENS
    steps = [
        ("", step_of(problem, exact_loss, torch.float64)),
        ("mean of the micro-batches' means", step_of(problem, mean_of_means, torch.float64, True)),
        ("tokens without a target count", step_of(problem, of_all_tokens, torch.float64)),
    ]
    factors = [("", 1.0), ("divided by all tokens", problem.targets / tokens)]
    factors += [("divided by all logits", problem.targets / tokens / VOCAB), ("divided by all logits", 1 / VOCAB)]
    for words, step in steps:
        for divisor, factor in factors:
            for squared in (1.0, temperature**2):
                text = ", ".join(part for part in (words, divisor, "times T squared" if squared != 1 else "") if part)
                yield text, Step(step.loss * factor * squared, step.gradient * factor * squared)


def distance(found, expected):
    """Relative errors of loss and gradient; absolute ones where the exact one is 0."""
    norm, size = expected.gradient.norm().item(), abs(expected.loss)
    return (
        abs(found.loss - expected.loss) / (size or 1.0),
        (found.gradient - expected.gradient).norm().item() / (norm or 1.0),
    )


def verdict(problem, found):
    """{text, loss_error, gradient_error, loss} of an implementation's step."""
    result = {"loss": found.loss if math.isfinite(found.loss) else None}
    if not math.isfinite(found.loss) or not bool(found.gradient.isfinite().all()):
        return result | {"text": "not finite"}
    if problem.case.dtype != torch.float32:
        errors = distance(found, step_of(problem, exact_loss, torch.float64))
        return result | {"text": "error", "loss_error": errors[0], "gradient_error": errors[1]}
    first = None
    for text, expected in conventions(problem):
        errors = distance(found, expected)
        first = first or errors
        if max(errors) < ROUNDING:
            return result | {"text": text or "exact", "loss_error": errors[0], "gradient_error": errors[1]}
    return result | {"text": "differs", "loss_error": first[0], "gradient_error": first[1]}


def measure(cases, names):
    """{name: {version, cases: {case: verdict}}} of the implementations that are installed; the others have no cases."""
    results = {}
    for implementation in IMPLEMENTATIONS:
        if implementation.name not in names:
            continue
        version = implementation.version()
        entry = results[implementation.name] = {"version": version, "cases": {}}
        if version is None and implementation.name != "distill":
            continue
        loss_of = implementation.make()
        for case in cases:
            problem = problem_of(case)
            try:
                step = step_of(problem, loss_of, case.dtype, implementation.mean_of_micro_batches)
            except Exception as error:  # a library's refusal is a result
                entry["cases"][case.name] = {"text": f"error: {str(error).splitlines()[0][:80]}"}
                continue
            entry["cases"][case.name] = {"text": "-"} if step is None else verdict(problem, step)
    return results
