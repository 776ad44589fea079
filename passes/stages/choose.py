"""
The fastest order of a pipeline whose fragments are there: of the fixed ones and of those that list scheduling finds.

All are estimated with the seconds that fragments and transfers take by themselves. The fixed ones, and the best few of
the others, are simulated; the fastest that fits in memory is chosen. So it is never slower, as simulated, than a fixed
order that fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from xdsl.dialects.builtin import ArrayAttr
from xdsl.dialects.func import FuncOp

from ...dialects.pipe import SCHEDULE, Slot, SlotAttr
from ...ir.cluster import Cluster
from ..analysis.simulation.alone import seconds_alone
from ..analysis.simulation.simulate import Simulator, places_of
from ..analysis.tightest import TightestRank, tightest_rank
from ..step.step_view import StepView
from .estimate import PipelineTimes, chunks_of, in_flight
from .kept_by_parts import most_taken, taken_by_parts
from .list_schedule import URGENCIES, Holding, ListSchedule, list_schedule
from .schedules import Delivery, PipelineShape, Work, policies, schedule, with_transfers

SIMULATED = 3
"""How many of the orders that list scheduling finds are simulated."""

SURE = 0.5
"""Of the room that parts have in a stage's memory, which part they can take for sure."""

Slots = list[list[Slot]]


@dataclass(frozen=True)
class MemoryBudget:
    """
    What stages may hold.

    Args:
        bytes: on each rank; None is the memory of its device.
        parts: how many parts a stage may have between forward and their last gradient.
    """

    bytes: float | None = None
    parts: int | None = None


def choose_schedule(
    func: FuncOp,
    works: Sequence[Work],
    deliveries: Sequence[Delivery],
    shape: PipelineShape,
    clusters: Sequence[Cluster],
    whole: Cluster,
    budget: MemoryBudget,
) -> Slots:
    """
    The slots of all stages.

    Args:
        func: with the fragments, in a module.
        clusters: of the stages.
        whole: of all ranks of the job.

    Raises:
        OpFailure: an op without a signature, or a resharding without a collective.
    """
    return _ScheduleChoice(func, works, deliveries, shape, clusters, whole, budget).best()


def set_schedule(func: FuncOp, slots: Sequence[Sequence[Slot]]) -> None:
    """Write a schedule into a function."""
    func.attributes[SCHEDULE] = ArrayAttr([ArrayAttr([SlotAttr(slot) for slot in mine]) for mine in slots])


class _ScheduleChoice:
    """The orders that are tried, and what they come to; one use."""

    def __init__(
        self,
        func: FuncOp,
        works: Sequence[Work],
        deliveries: Sequence[Delivery],
        shape: PipelineShape,
        clusters: Sequence[Cluster],
        whole: Cluster,
        budget: MemoryBudget,
    ) -> None:
        self.func, self.works, self.deliveries, self.shape = func, works, deliveries, shape
        self.clusters, self.budget = clusters, budget
        self.simulator = Simulator(func, places_of(func, clusters, whole))
        runs, crossing = seconds_alone(self.simulator)
        self.times = PipelineTimes(tuple(works), tuple(deliveries), shape.parts, runs, crossing)
        meshes = [cluster.mesh for cluster in clusters]
        self.taken, self.least_taken = taken_by_parts(func, meshes), taken_by_parts(func, meshes, least=True)

    def best(self) -> Slots:
        """Return the fastest schedule that fits, or a schedule with about the least excess if none fits."""
        fixed = [schedule(self.works, self.deliveries, self.shape, policy) for policy in policies(self.shape)]
        alone = [[slot for slot in mine if slot.part == 0] for mine in fixed[0]]
        tightest = list(self._tightest(alone, range(len(alone))))
        room = [most_taken(mine, self.taken) - each.excess for mine, each in zip(alone, tightest, strict=True)]
        free = [each.limit - each.lasting for each in tightest]
        most = tuple(free)
        orders = sorted((*fixed, *self._listed(room)), key=self._seconds)
        for slots in orders:
            if self._surely_fits(slots, room):
                return slots
            # A fixed order is looked at unless it cannot fit, so that none that fits is faster than the chosen one.
            if self._may_fit(slots, most if slots in fixed else free) and self._fits(slots, room, free):
                return slots
        # The memory of all orders is not looked at again: what single ops need is about the same in each.
        return min(orders, key=lambda slots: max(self._beyond(slots, room)))

    def _beyond(self, slots: Slots, room: Sequence[float]) -> Iterator[float]:
        """Yield by stage the bytes that parts take beyond the room that there is for them."""
        for stage, (mine, left) in enumerate(zip(slots, room, strict=True)):
            yield most_taken(mine, self.taken) - left if self._has_few(stage, mine) else inf

    def _may_fit(self, slots: Slots, free: Sequence[float]) -> bool:
        """Return whether parameters, states and the least size of all parts fit together."""
        return all(most_taken(mine, self.least_taken) <= left for mine, left in zip(slots, free, strict=True))

    def _surely_fits(self, slots: Slots, room: Sequence[float]) -> bool:
        """Whether so little of the room is taken that what single ops need does not matter."""
        taken = (most_taken(mine, self.taken) <= SURE * left for mine, left in zip(slots, room, strict=True))
        return all(taken) and all(self._has_few(stage, mine) for stage, mine in enumerate(slots))

    def _has_few(self, stage: int, slots: Sequence[Slot]) -> bool:
        """Whether a stage has no more parts in flight than it may."""
        if self.budget.parts is None:
            return True
        return in_flight(slots, self.works) <= self.budget.parts * chunks_of(self.works, stage)

    def _listed(self, room: Sequence[float]) -> Iterator[Slots]:
        """
        The best few orders by list scheduling.

        Args:
            room: by stage, the bytes that parts may take.
        """
        found: dict[str, ListSchedule] = {}
        for urgency in URGENCIES:
            listed = list_schedule(self.times, Holding(self.taken, room, self._parts), urgency)
            # Of those that take as long, the first has the fewest parts ahead.
            found.setdefault(f"{listed.seconds:.6g}", listed)
        for each in sorted(found.values(), key=lambda each: each.seconds)[:SIMULATED]:
            yield with_transfers(each.runs, self.deliveries, each.receive)

    @property
    def _parts(self) -> float:
        """How many parts, of all chunks together, a stage with the most of them may have in flight."""
        return inf if self.budget.parts is None else self.budget.parts * self.shape.chunks

    def _fits(self, slots: Slots, room: Sequence[float], free: list[float]) -> bool:
        """
        Return whether every rank has the memory that a schedule needs.

        Args:
            free: by stage, the bytes that parts may take at most. The bytes of a stage that does not fit replace its
                entry, and orders of list scheduling that take more are skipped.
        """
        if not all(self._has_few(stage, mine) for stage, mine in enumerate(slots)):
            return False
        beyond = list(self._beyond(slots, room))
        likeliest = sorted(range(len(slots)), key=lambda stage: -beyond[stage])
        for stage, each in zip(likeliest, self._tightest(slots, likeliest), strict=True):
            if each.excess > 0:
                free[stage] = min(free[stage], most_taken(slots[stage], self.least_taken))
                return False
        return True

    def _tightest(self, slots: Slots, stages: Iterable[int]) -> Iterator[TightestRank]:
        """Yield for some stages the rank that comes closest to the budget under a schedule."""
        set_schedule(self.func, slots)
        for stage in stages:
            cluster = self.clusters[stage]
            yield tightest_rank(StepView(self.func, cluster.mesh, stage), cluster, self.budget.bytes)

    def _seconds(self, slots: Slots) -> float:
        set_schedule(self.func, slots)
        return self.simulator.run().seconds
