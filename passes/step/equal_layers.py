"""The longest run of equal layers of a step: layers in a row with the same ops of the same shapes in the same order."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from xdsl.ir import OpResult, SSAValue

from ...dialects.compute import ComputeOp
from .layers import Layers
from .step_view import StepView


@dataclass(frozen=True)
class LayerRun:
    """
    Consecutive equal layers.

    Args:
        first: index of the first layer.
        ops: for each layer, its ops in program order.
    """

    first: int
    ops: tuple[tuple[ComputeOp, ...], ...]

    @property
    def count(self) -> int:
        """Number of layers."""
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


def places(layers: Layers, run: LayerRun) -> Iterator[tuple[ComputeOp | SSAValue, int, Hashable]]:
    """Yield the ops, results and arguments of equal layers, each with the index of its layer and its place in it."""
    for layer, ops in enumerate(run.ops):
        seen: set[SSAValue] = set()
        for at, op in enumerate(ops):
            yield op, layer, at
            for index, result in enumerate(op.results):
                yield result, layer, (at, "result", index)
            for index, value in enumerate(op.operands):
                is_stored_here = not isinstance(value, OpResult) and layers.homes.get(value) == run.first + layer
                if is_stored_here and value not in seen:
                    seen.add(value)
                    yield value, layer, (at, "operand", index)
