"""Whether hidden states were taken before or after the model's final norm, and of the last layer: measured."""

import math

import torch

SLACK = 0.05  # of a unit root mean square
MARGIN = 0.1  # nats by which a cross-entropy must be lower to count
TRAINED = 1.0  # nats below that of equal probabilities: the states predict something


def rms_norm(hidden, norm, eps):
    hidden = hidden.float()
    return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + eps) * norm.float()


def root_mean_squares(hidden, norm):
    """[R], of the states after a division by the norm's weight: 1 if they are after the norm."""
    used = norm.float().abs() > 1e-3
    return (hidden.float()[:, used] / norm.float()[used]).square().mean(-1).sqrt()


def cross_entropy(hidden, lm_head, targets):
    """Mean over the tokens, nats; `targets` [R] really came next."""
    total = 0.0
    for rows, labels in zip(hidden.split(64), targets.split(64), strict=True):
        total += torch.nn.functional.cross_entropy(rows.float() @ lm_head.float().T, labels, reduction="sum").item()
    return total / len(targets)


def is_after_norm(layers, chosen, targets, lm_head, norm, eps, source):
    """True: the states layers[chosen] [R, G] are the lm_head's input; False: they are the final norm's.

    A normalised state has a root mean square of 1 after division by the norm's weight. ValueError: some do and some do
    not; or the same states treated the other way, or another layer's, predict the tokens that came next clearly better.
    """
    sizes = root_mean_squares(layers[chosen], norm)
    fits = (sizes - 1).abs() < SLACK
    share = fits.float().mean().item()
    if 0.1 < share < 0.9:
        raise ValueError(
            f"{source}: cannot tell whether the hidden states are before or after the final norm: divided by its "
            f"weight, {100 * share:.0f}% of them have a root mean square of 1, where all or none are expected"
        )
    after = share >= 0.9
    found = cross_entropy(layers[chosen] if after else rms_norm(layers[chosen], norm, eps), lm_head, targets)
    others = {"treated the other way": rms_norm(layers[chosen], norm, eps) if after else layers[chosen]}
    for index, states in enumerate(layers):
        if index != chosen:
            others[f"of layer {index} of the file"] = rms_norm(states, norm, eps)
    for name, states in others.items():
        loss = cross_entropy(states, lm_head, targets)
        if loss < found - MARGIN and loss < math.log(len(lm_head)) - TRAINED:
            raise ValueError(
                f"{source}: the hidden states that were chosen predict the next tokens with {found:.4g} nats, and "
                f"those {name} with {loss:.4g}; name another --layer, or is it another model's file?"
            )
    return after
