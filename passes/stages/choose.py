"""
The choice of the fastest schedule of a pipeline with given fragments, among fixed schedules and list schedules.

All schedules are estimated with the seconds of fragments and transfers that run alone. The fixed schedules and the best
few list schedules are simulated; the fastest that fits in memory is chosen. It is never slower, as simulated, than a
fixed schedule that fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from xdsl.dialects.builtin import ArrayAttr
from xdsl.dialects.func import FuncOp

from ...dialects.pipe import SCHEDULE, Slot, SlotAttr
from ...ir.cluster import Cluster
from ..analysis.memory_roles import Roles
from ..analysis.simulation.alone import seconds_alone
from ..analysis.simulation.simulate import Simulator, places_of
from ..analysis.tightest import TightestRank, tightest_rank
from ..step.step_view import StepView
from .estimate import PipelineTimes, chunks_of, in_flight
from .kept_by_parts import most_taken, taken_by_parts
from .list_schedule import URGENCIES, Holding, ListSchedule, list_schedule
from .schedules import Delivery, PipelineShape, Work, policies, schedule, with_transfers

SIMULATED = 3
"""Number of list schedules that are simulated."""

SURE = 0.5
"""Fraction of the memory budget of parts that parts can use without a check of single ops."""

Slots = list[list[Slot]]


@dataclass(frozen=True)
class MemoryBudget:
    """
    The memory and the parts that a stage may hold.

    Args:
        bytes: bytes on each rank, by default the memory of its device.
        parts: number of parts that a stage may have between forward and their last gradient.
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
    Return the slots of all stages.

    Args:
        func: the function with the fragments, in a module.
        clusters: the clusters of the stages.
        whole: the cluster of all ranks of the job.

    Raises:
        OpFailure: at an op that lacks a signature, or a resharding that lacks a collective.
    """
    return _ScheduleChoice(func, works, deliveries, shape, clusters, whole, budget).best()


def set_schedule(func: FuncOp, slots: Sequence[Sequence[Slot]]) -> None:
    """Write a schedule into a function."""
    func.attributes[SCHEDULE] = ArrayAttr([ArrayAttr([SlotAttr(slot) for slot in row]) for row in slots])


class _ScheduleChoice:
    """The candidate schedules and their simulation; used once."""

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
        self.clusters, self.budget, self.roles = clusters, budget, Roles(func)
        self.simulator = Simulator(func, places_of(func, clusters, whole))
        runs, crossing = seconds_alone(self.simulator)
        self.times = PipelineTimes(tuple(works), tuple(deliveries), shape.parts, runs, crossing)
        meshes = [cluster.mesh for cluster in clusters]
        self.taken, self.least_taken = taken_by_parts(func, meshes), taken_by_parts(func, meshes, least=True)

    def best(self) -> Slots:
        """Return the fastest schedule that fits, or a schedule with about the least excess if none fits."""
        fixed = [schedule(self.works, self.deliveries, self.shape, policy) for policy in policies(self.shape)]
        alone = [[slot for slot in row if slot.part == 0] for row in fixed[0]]
        tightest = list(self._tightest(alone, range(len(alone))))
        room = [most_taken(row, self.taken) - tight.excess for row, tight in zip(alone, tightest, strict=True)]
        free = [tight.limit - tight.lasting for tight in tightest]
        most = tuple(free)
        orders = sorted((*fixed, *self._listed(room)), key=self._seconds)
        for slots in orders:
            # The memory of single ops does not matter to parts that use so little of their budget.
            taken = (most_taken(row, self.taken) <= SURE * left for row, left in zip(slots, room, strict=True))
            if all(taken) and all(self._has_few(stage, row) for stage, row in enumerate(slots)):
                return slots
            # A fixed order is checked unless it cannot fit, so that no faster fixed order that fits is passed over.
            if self._may_fit(slots, most if slots in fixed else free) and self._fits(slots, room, free):
                return slots
        # This ignores the memory of single ops, which is about the same in each order.
        return min(orders, key=lambda slots: max(self._beyond(slots, room)))

    def _beyond(self, slots: Slots, room: Sequence[float]) -> Iterator[float]:
        """Yield for each stage the bytes that parts use beyond their memory budget."""
        for stage, (row, left) in enumerate(zip(slots, room, strict=True)):
            yield most_taken(row, self.taken) - left if self._has_few(stage, row) else inf

    def _may_fit(self, slots: Slots, free: Sequence[float]) -> bool:
        """Return whether parameters, states and the smallest size of all parts fit together."""
        return all(most_taken(row, self.least_taken) <= left for row, left in zip(slots, free, strict=True))

    def _has_few(self, stage: int, slots: Sequence[Slot]) -> bool:
        if self.budget.parts is None:
            return True
        return in_flight(slots, self.works) <= self.budget.parts * chunks_of(self.works, stage)

    def _listed(self, room: Sequence[float]) -> Iterator[Slots]:
        """
        Yield the best few list schedules.

        Args:
            room: bytes that parts may use, by stage.
        """
        found: dict[str, ListSchedule] = {}
        for urgency in URGENCIES:
            candidate = list_schedule(self.times, Holding(self.taken, room, self._parts), urgency)
            # Among equally fast schedules, the first has the fewest parts ahead.
            found.setdefault(f"{candidate.seconds:.6g}", candidate)
        for each in sorted(found.values(), key=lambda each: each.seconds)[:SIMULATED]:
            yield with_transfers(each.runs, self.deliveries, each.receive)

    @property
    def _parts(self) -> float:
        """Number of parts, of all chunks together, that a stage with the most chunks may have in flight."""
        return inf if self.budget.parts is None else self.budget.parts * self.shape.chunks

    def _fits(self, slots: Slots, room: Sequence[float], free: list[float]) -> bool:
        """
        Return whether every rank has the memory that a schedule needs.

        Args:
            free: upper bound, by stage, of the bytes that parts may use. If a stage does not fit, its bytes replace its
                entry, and later list schedules that use more are skipped.
        """
        if not all(self._has_few(stage, row) for stage, row in enumerate(slots)):
            return False
        beyond = list(self._beyond(slots, room))
        likeliest = sorted(range(len(slots)), key=lambda stage: -beyond[stage])
        for stage, rank in zip(likeliest, self._tightest(slots, likeliest), strict=True):
            if rank.excess > 0:
                free[stage] = min(free[stage], most_taken(slots[stage], self.least_taken))
                return False
        return True

    def _tightest(self, slots: Slots, stages: Iterable[int]) -> Iterator[TightestRank]:
        """Yield for each of some stages the rank that comes closest to the budget under a schedule."""
        set_schedule(self.func, slots)
        for stage in stages:
            cluster = self.clusters[stage]
            view = StepView(self.func, cluster.mesh, stage)
            yield tightest_rank(view, cluster, self.budget.bytes, self.roles)

    def _seconds(self, slots: Slots) -> float:
        set_schedule(self.func, slots)
        return self.simulator.run().seconds
