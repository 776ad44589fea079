"""
The pieces of a cross-entropy over classes that may be split over devices.

Torch's log-softmax and its gradient need all classes of a row on one device. Here each device has some of the classes:
it sums exponentials, and the sums are added up over devices; the gradient of its scores needs no other data of other
devices. Scores are ``[rows, classes]``; all other tensors have one number per row.

CPUs process a few rows at a time, which stay in the cache from one operation to the next.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

_BLOCK = 1 << 17
"""The number of scores that a CPU processes at a time."""


def _blocks(scores: torch.Tensor) -> Iterator[slice]:
    rows, classes = scores.shape
    step = max(1, _BLOCK // max(1, classes)) if scores.device.type == "cpu" else max(1, rows)
    return (slice(first, first + step) for first in range(0, rows, step))


def sum_exp(scores: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return the sum over classes of ``exp(scores - shift)``."""
    sums = torch.empty_like(shift)
    for rows in _blocks(scores):
        torch.sum(torch.sub(scores[rows], shift[rows].unsqueeze(1)).exp_(), 1, out=sums[rows])
    return sums


def cross_entropy_backward(
    grad: torch.Tensor,
    scores: torch.Tensor,
    logsumexp: torch.Tensor,
    target: torch.Tensor,
    *,
    part: tuple[int, int, int] | None = None,
) -> torch.Tensor:
    """
    Return the gradient with respect to the scores of ``logsumexp(scores) - scores[target]``, times `grad` of each row.

    Args:
        target: the class of each row; an index outside all classes adds nothing.
        part: first class and end of this device's classes, and the number of all classes; all classes if None.
    """
    result = torch.empty_like(scores, memory_format=torch.contiguous_format)
    for rows in _blocks(scores):
        torch.sub(scores[rows], logsumexp[rows].unsqueeze(1), out=result[rows])
        result[rows].exp_().mul_(grad[rows].unsqueeze(1))
    start, stop, _ = (0, scores.shape[1], 0) if part is None else part
    held = (target >= start) & (target < stop)
    picked = torch.where(held, target - start, 0).unsqueeze(1)
    return result.scatter_add_(1, picked, torch.where(held, -grad, 0).unsqueeze(1))
