"""The memory that ranks hold while a simulated step runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.ir import Operation

from ..memory import MemoryUse, memory_use
from .results import RankClass, Simulation


@dataclass(frozen=True)
class Held:
    """The bytes that a rank holds from a time on."""

    time: float
    bytes: int


class HeldBytes:
    """The memory of a simulated step over time; liveness is computed once for each stage."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._uses: dict[int | None, MemoryUse] = {}

    def use(self, each: RankClass) -> MemoryUse:
        """Return the memory use of the ranks of a class's stage, op by op."""
        if each.stage not in self._uses:
            cluster = each.place.cluster
            self._uses[each.stage] = memory_use(self.simulation.func, cluster.mesh, each.stage, cluster.blocks)
        return self._uses[each.stage]

    def peak(self, each: RankClass) -> int:
        """Return the most bytes that a rank of a class holds at any time."""
        return int(self.use(each).over_time(each.members[0]).max(initial=0))

    def over_time(self, each: RankClass) -> Iterator[Held]:
        """Yield the bytes that a rank of a class holds, at each change."""
        use = self.use(each)
        held: list[int] = use.over_time(each.members[0]).tolist()
        places: defaultdict[Operation, list[int]] = defaultdict(list)
        for index, op in enumerate(use.run.ops):
            places[op].append(index)
        times: defaultdict[Operation, int] = defaultdict(int)
        last = -1
        for run in self.simulation.ops(each.number):
            if indices := places.get(run.op):
                # The body of a loop over parts is listed once, for all parts.
                index = indices[min(times[run.op], len(indices) - 1)]
                times[run.op] += 1
                if (now := held[index]) != last:
                    yield Held(run.start, now)
                    last = now
