"""
The equal layers of a step, in a row.

Layers are equal if they have the same ops, of the same shapes, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...dialects.compute import ComputeOp
from .layers import Layers
from .step_view import StepView


@dataclass(frozen=True)
class LayerRun:
    """
    Equal layers in a row.

    Args:
        first: the number of the first.
        ops: by layer, its ops in program order.
    """

    first: int
    ops: tuple[tuple[ComputeOp, ...], ...]

    @property
    def count(self) -> int:
        """Return how many layers there are."""
        return len(self.ops)


def longest_run(view: StepView, layers: Layers) -> LayerRun | None:
    """Return the longest run of equal layers, or None if all neighbours differ."""
    ops: list[list[ComputeOp]] = [[] for _ in layers.names]
    for op in view.ops:
        if op in layers.of:
            ops[layers.of[op]].append(op)
    keys = [tuple(op.use_key() for op in listed) for listed in ops]
    best: tuple[int, int] = (0, 0)
    start = 0
    for at in range(1, len(keys) + 1):
        if at == len(keys) or keys[at] != keys[start] or not keys[start]:
            best = max(best, (at - start, -start))
            start = at
    count, first = best[0], -best[1]
    return LayerRun(first, tuple(map(tuple, ops[first : first + count]))) if count > 1 else None
