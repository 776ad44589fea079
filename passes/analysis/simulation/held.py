"""The memory that ranks hold while a simulated step runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.ir import Operation

from ..liveness import Buffer, bytes_over_time
from ..memory import MemoryUse, memory_use, role_of
from ..memory_roles import MemoryRole, Roles
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
        held: list[int] = self.use(each).over_time(each.members[0]).tolist()
        last = -1
        for time, index in self._moments(each):
            if (now := held[index]) != last:
                yield Held(time, now)
                last = now

    def by_role(self, each: RankClass) -> tuple[list[float], dict[MemoryRole, list[int]]]:
        """Return the times of all ops of a class, and the bytes that one of its ranks holds then in each role."""
        use, roles = self.use(each), Roles(self.simulation.func)
        buffers: defaultdict[MemoryRole, list[Buffer]] = defaultdict(list)
        for buffer in use.buffers:
            buffers[role_of(buffer.value, roles)].append(buffer)
        moments = list(self._moments(each))
        column = use.columns[each.members[0]]
        events = [index for _, index in moments]
        held: dict[MemoryRole, list[int]] = {}
        for role in MemoryRole:
            if role in buffers:
                over_time = bytes_over_time(buffers[role], len(use.run.ops), use.held.shape[1], use.size)
                held[role] = over_time[events, column].tolist()
        return [time for time, _ in moments], held

    def _moments(self, each: RankClass) -> Iterator[tuple[float, int]]:
        """Yield the begin of each op of a class that the memory analysis knows, with the index of its event."""
        places: defaultdict[Operation, list[int]] = defaultdict(list)
        for index, op in enumerate(self.use(each).run.ops):
            places[op].append(index)
        times: defaultdict[Operation, int] = defaultdict(int)
        for run in self.simulation.ops(each.number):
            if indices := places.get(run.op):
                # The body of a loop over parts is listed once, for all parts.
                yield run.start, indices[min(times[run.op], len(indices) - 1)]
                times[run.op] += 1
