"""Whether hidden states were taken before or after the model's final norm: measured in two ways that must agree."""

import torch

SAMPLE = 512  # tokens
SLACK = 0.05  # of a unit root mean square


def rms_norm(hidden, norm, eps):
    hidden = hidden.float()
    return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + eps) * norm.float()


def _cross_entropy(hidden, lm_head, targets):
    total = 0.0
    for rows, labels in zip(hidden.split(64), targets.split(64), strict=True):
        total += torch.nn.functional.cross_entropy(rows.float() @ lm_head.float().T, labels, reduction="sum").item()
    return total / len(targets)


def is_after_norm(hidden, targets, lm_head, norm, eps, source):
    """True: the states [R, G] are the lm_head's input. `targets`: [R] the tokens that really came next. ValueError: the
    two measurements disagree, or neither fits."""
    hidden, targets = hidden[:SAMPLE], targets[:SAMPLE]
    used = norm.float().abs() > 1e-3
    ratios = (hidden.float()[:, used] / norm.float()[used]).square().mean(-1).sqrt()
    by_size = bool((ratios - 1).abs().median() < SLACK)
    after = _cross_entropy(hidden, lm_head, targets)
    before = _cross_entropy(rms_norm(hidden, norm, eps), lm_head, targets)
    by_loss = after <= before
    if by_size and not by_loss and before - after > -0.01 * after:
        by_loss = True  # normalising twice changes little
    if by_size != by_loss:
        raise ValueError(
            f"{source}: cannot tell whether the hidden states are before or after the final norm: divided by its "
            f"weight their root mean square is {ratios.median():.4g} (1: after), but the cross-entropy of the next "
            f"tokens is {after:.4g} as they are and {before:.4g} with the norm; are they those of another layer, or "
            f"another model?"
        )
    return by_size
