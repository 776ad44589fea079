"""
Define the ops of a cross-entropy whose classes may be split.

The pass `decompose-cross-entropy` replaces torch's log-softmax and negative log-likelihood by these ops. They are
definitions in plain arithmetic: the interpreter runs them, and the runtime's functions are tested against them.

Shapes: scores ``[rows, classes]``; all other tensors have one number per row.
"""

from __future__ import annotations

import torch

from .fused_op import FusedOp


def sum_exp(scores: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return the sum over classes of ``exp(scores - shift)``."""
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
    Return the gradient of ``logsumexp(scores) - scores[target]`` with respect to the scores, times `grad` of each row.

    Args:
        target: the class of each row; a target outside all classes is ignored.
        part: (start, stop, all classes) of the shard of classes, or None if the classes are not split.
    """
    start = 0 if part is None else part[0]
    classes = torch.arange(start, start + scores.shape[1], device=scores.device)
    picked = (target.unsqueeze(1) == classes).to(scores.dtype)
    return ((scores - logsumexp.unsqueeze(1)).exp() - picked) * grad.unsqueeze(1)


OPS = (FusedOp(sum_exp), FusedOp(cross_entropy_backward))
