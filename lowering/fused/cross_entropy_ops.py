"""
The pieces of a cross-entropy over classes that may be split, as functions that stand for the runtime's.

They are what `decompose-cross-entropy` makes of torch's log-softmax and negative log-likelihood: definitions in plain
arithmetic, which an interpreter runs and the runtime's are tested against.

Shapes: scores ``[rows, classes]``; everything else is one number per row.
"""

from __future__ import annotations

import torch

from .fused_op import FusedOp


def sum_exp(scores: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """The sum over classes of ``exp(scores - shift)``."""
    return (scores - shift.unsqueeze(1)).exp().sum(1)


def cross_entropy_backward(
    grad: torch.Tensor,
    scores: torch.Tensor,
    logsumexp: torch.Tensor,
    target: torch.Tensor,
    *,
    part: tuple[int, int, int] | None = None,
) -> torch.Tensor:
    """
    The gradient with respect to the scores of ``logsumexp(scores) - scores[target]``, times `grad` of each row.

    Args:
        target: the class of each row; one that is none of all classes counts as none.
        part: where these classes start and stop among how many; None where they are all.
    """
    start = 0 if part is None else part[0]
    classes = torch.arange(start, start + scores.shape[1], device=scores.device)
    picked = (target.unsqueeze(1) == classes).to(scores.dtype)
    return ((scores - logsumexp.unsqueeze(1)).exp() - picked) * grad.unsqueeze(1)


OPS = (FusedOp(sum_exp), FusedOp(cross_entropy_backward))
