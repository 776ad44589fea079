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
    """From when on a rank holds how many bytes."""

    time: float
    bytes: int


class HeldBytes:
    """The memory of a simulated step over time; liveness is found once for each place."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._uses: dict[int | None, MemoryUse] = {}

    def use(self, each: RankClass) -> MemoryUse:
        """What the ranks of the place of a class hold, op by op."""
        if each.stage not in self._uses:
            cluster = each.place.cluster
            self._uses[each.stage] = memory_use(self.simulation.func, cluster.mesh, each.stage, cluster.blocks)
        return self._uses[each.stage]

    def peak(self, each: RankClass) -> int:
        """The most bytes that a rank of a class holds at any time."""
        return int(self.use(each).over_time(each.members[0]).max(initial=0))

    def over_time(self, each: RankClass) -> Iterator[Held]:
        """What a rank of a class holds, whenever that changes."""
        use = self.use(each)
        held: list[int] = use.over_time(each.members[0]).tolist()
        places: defaultdict[Operation, list[int]] = defaultdict(list)
        for index, op in enumerate(use.run.ops):
            places[op].append(index)
        times: defaultdict[Operation, int] = defaultdict(int)
        last = -1
        for run in self.simulation.ops(each.number):
            if indices := places.get(run.op):
                # The body of a loop over parts is in one place, for all of them.
                index = indices[min(times[run.op], len(indices) - 1)]
                times[run.op] += 1
                if (now := held[index]) != last:
                    yield Held(run.start, now)
                    last = now
