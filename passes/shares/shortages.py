"""Memory as limits on shares, found by looking: where a rank holds too much, and which values these are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from ...dialects.step import sharding_of
from ...ir.mesh import Mesh
from ...ir.ratios import Ratios
from ..analysis.memory import memory_use, value_of
from ..analysis.memory_events import Staging
from ..step.step_view import StepView
from .phases import held_bytes, segments_of, shares_of
from .ratios import MemoryLimit


@dataclass(frozen=True)
class Shortage:
    """
    A rank that holds more than it may.

    Args:
        point: the index of the op during which it does.
        excess: bytes, by the sizes as they were rounded.
        budget: bytes that it may hold of these values.
        held: the values that are alive together, each with its segment.
    """

    rank: int
    point: int
    excess: float
    budget: float
    held: tuple[tuple[SSAValue, int], ...]

    def limit(self, mesh: Mesh, axis: str, ratios: Mapping[int, Ratios]) -> MemoryLimit:
        """What it may hold, by its share of `axis` in each segment, with the shares of the other axes in `ratios`."""
        place, terms, budget = mesh.coordinates(self.rank), dict[tuple[int, int], float](), self.budget
        for value, segment in self.held:
            sharding = sharding_of(value)
            others = {a.name: shares_of(ratios[segment], a.name, mesh)[place[a.name]] for a in mesh.spatial}
            size = held_bytes(value, sharding, {**others, axis: 1.0})
            if axis in sharding.split_axes:
                key = (segment, place[axis])
                terms[key] = terms.get(key, 0.0) + size
            else:
                budget -= size
        return MemoryLimit(terms, budget)


def shortages(view: StepView, limits: Sequence[float], blocks: Sequence[float] = ()) -> list[Shortage]:
    """Where ranks hold more than their `limits` (bytes), once changes of sharding are ops; one point of each rank."""
    use, segments = memory_use(view.func, view.mesh, view.stage, blocks), segments_of(view)
    found: list[Shortage] = []
    for rank, budget in enumerate(limits):
        held = use.over_time(rank)
        point = int(np.argmax(held))
        if (excess := float(held[point]) - budget) > 0:
            alive = use.alive(point, rank)
            values = [value_of(held) for held, _ in alive if not isinstance(held, Staging)]
            staged = sum(size for held, size in alive if isinstance(held, Staging))
            listed = tuple((value, segments.get(value, 0)) for value in values)
            found.append(Shortage(rank, point, excess, budget - staged, listed))
    return found
