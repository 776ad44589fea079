"""Memory as limits on shares: find ranks that hold too much, and the values that they hold then."""

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
    A rank that holds more than its limit.

    Args:
        point: index of the op during which it does.
        excess: bytes above the limit, with sizes as rounded.
        budget: bytes available for the values in `held`.
        held: the values that are alive together, each with its segment.
    """

    rank: int
    point: int
    excess: float
    budget: float
    held: tuple[tuple[SSAValue, int], ...]

    def limit(self, mesh: Mesh, axis: str, ratios: Mapping[int, Ratios]) -> MemoryLimit:
        """Return the limit on the shares of `axis` by segment, with the shares of the other axes from `ratios`."""
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
    """Return one shortage, at its peak, for each rank that exceeds its limit (bytes); resharding must be explicit."""
    use, segments = memory_use(view.func, view.mesh, view.stage, blocks), segments_of(view)
    result: list[Shortage] = []
    for rank, budget in enumerate(limits):
        held = use.over_time(rank)
        point = int(np.argmax(held))
        if (excess := float(held[point]) - budget) > 0:
            alive = use.alive(point, rank)
            values = [value_of(held) for held, _ in alive if not isinstance(held, Staging)]
            staged = sum(size for held, size in alive if isinstance(held, Staging))
            listed = tuple((value, segments.get(value, 0)) for value in values)
            result.append(Shortage(rank, point, excess, budget - staged, listed))
    return result
