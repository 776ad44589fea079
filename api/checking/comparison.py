"""
The difference between two runs of a training step.

The error of a tensor is ``|found - expected| / max(|expected|, 1e-3 * |all expected of its kind|)`` in the 2-norm. The
second term is needed because some gradients (such as the gradient of an attention's key bias) are zero except for
noise, and the relative error of noise is never small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

StepValues = Mapping[tuple[str, str], torch.Tensor]
"""The results of one step, by kind (loss, gradient, parameter, buffer, or a state's name) and name."""

FLOOR = 1e-3
"""The least norm of a tensor in the error, relative to the norm of all tensors of its kind together."""


@dataclass(frozen=True)
class Worst:
    """
    The largest error among the tensors of one kind.

    Args:
        error: by the module's measure; infinite for a tensor that is missing, misshapen or not finite.
        name: the tensor with this error.
        step: the step, counted from 1.
    """

    kind: str
    error: float
    name: str
    step: int


Place = tuple[tuple[int, int], ...]
"""The part of a tensor that a rank has: its start and stop in each dim."""


def assemble(expected: torch.Tensor, parts: Sequence[tuple[Place, torch.Tensor]]) -> torch.Tensor | None:
    """
    Return the full tensor, from the parts that the ranks have, or None if the shape of a part does not match its place.

    If a part has several copies, the copy farthest from `expected` is taken, so that diverging copies are detected.
    Elements that no rank has are NaN.
    """
    whole = torch.full(expected.shape, float("nan"), dtype=torch.float64)
    chosen: dict[Place, torch.Tensor] = {}
    for place, part in parts:
        if part.shape != torch.Size(stop - start for start, stop in place):
            return None
        region = tuple(slice(start, stop) for start, stop in place)
        if place in chosen and torch.equal(part, chosen[place]):
            continue
        if place not in chosen or _distance(part, expected[region]) > _distance(whole[region], expected[region]):
            chosen[place] = part
            whole[region] = part
    return whole.to(parts[0][1].dtype)


def measure(found: Mapping[tuple[str, str], torch.Tensor | None], expected: StepValues, step: int) -> dict[str, Worst]:
    """Return the largest error of each kind in `expected` after step number `step`."""
    squares: dict[str, float] = {}
    for (kind, _), value in expected.items():
        squares[kind] = squares.get(kind, 0.0) + _norm(value) ** 2
    errors = (
        Worst(kind, _error(found.get((kind, name)), value, FLOOR * squares[kind] ** 0.5), name, step)
        for (kind, name), value in expected.items()
    )
    return largest(errors)


def largest(errors: Iterable[Worst]) -> dict[str, Worst]:
    """Return the largest error of each kind, the first of equals."""
    worst: dict[str, Worst] = {}
    for each in errors:
        if each.kind not in worst or each.error > worst[each.kind].error:
            worst[each.kind] = each
    return worst


def _error(found: torch.Tensor | None, expected: torch.Tensor, floor: float) -> float:
    if found is None or found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    distance = _distance(found, expected)
    if not distance < float("inf"):
        return float("inf")
    return distance / max(_norm(expected), floor) if distance else 0.0


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return _norm(_wide(found) - _wide(expected))


def _norm(value: torch.Tensor) -> float:
    return torch.linalg.vector_norm(_wide(value)).item()


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)
