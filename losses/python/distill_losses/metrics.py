"""Every loss can return these numbers for each token, in addition to the loss itself."""

from typing import NamedTuple

import torch


class TokenMetrics(NamedTuple):
    """Numbers for each token, in nats where they are losses, divergences or entropies; 0 at ignored tokens.

    Every tensor has the shape of the labels (without labels, of the hidden states without their last dimension) and
    the dtype of the loss, and takes no part in autograd. p is the teacher's distribution and q the student's, both at
    the loss's temperature. Where there is no teacher, what needs one is 0.
    """

    loss: torch.Tensor
    """The token's loss with its weight, which is then reduced."""
    hard: torch.Tensor
    """Cross-entropy on the label, with label smoothing."""
    soft: torch.Tensor
    """The divergence."""
    z_loss: torch.Tensor
    """The square of the student's log-sum-exp."""
    forward_kl: torch.Tensor
    """KL(p || q)."""
    reverse_kl: torch.Tensor
    """KL(q || p)."""
    student_entropy: torch.Tensor
    teacher_entropy: torch.Tensor
    agreement: torch.Tensor
    """1 where both have the same most probable token."""
    accuracy: torch.Tensor
    """1 where the student's most probable token is the label."""
    student_lse: torch.Tensor
    """Log-sum-exp of the student's logits at temperature 1."""
    teacher_lse: torch.Tensor
    teacher_ce: torch.Tensor
    """Cross-entropy of the teacher on the label, at temperature 1."""


class LossWithMetrics(NamedTuple):
    """A loss returns this with return_metrics=True."""

    loss: torch.Tensor
    metrics: TokenMetrics
