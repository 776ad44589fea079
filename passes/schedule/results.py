"""Which reductions of gradients travel together, when they start, and in which order the updates follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xdsl.ir import Operation, OpResult

from ...dialects.spmd import CollectiveOp
from ...dialects.train import TrainOp
from .buckets import Bucket, Traffic
from .flow import Role


@dataclass(frozen=True)
class ResultPlan:
    """Buckets of what serves results, and the updates in the order in which their operands arrive."""

    buckets: tuple[Bucket, ...]
    updates: tuple[Operation, ...]


def plan_results(traffic: Traffic) -> ResultPlan:
    """
    Bucket reductions in the order in which their operands are ready, each bucket up to the limit.

    Collectives that continue others (over a second axis, or on what an update made) are planned once those are:
    they start when the bucket after those has started, so as not to wait for what has just begun.
    """
    return _Planner(traffic).run()


class _Planner:
    """Plans in waves: a wave has the collectives whose predecessors are all planned; one use."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic, self.flow = traffic, traffic.flow
        self.pending = self.flow.of(Role.RESULTS)
        self.buckets: list[Bucket] = []
        self.updates = self.flow.updates
        self.starts: dict[Operation, int] = {}
        self.over: dict[Operation, int] = {}

    def run(self) -> ResultPlan:
        """Plan what comes before the updates, then these, then what follows them."""
        self._waves(len(self.flow.body) - 1)
        self._order_updates()
        self._waves(self.flow.end - 1)
        return ResultPlan(tuple(self.buckets), tuple(self.updates))

    def _waves(self, last: int) -> None:
        """Plan all that can be planned; the last bucket of a wave is over at the position `last`."""
        before = {op: self._predecessors(op) for op in self.pending}
        while wave := [op for op in self.pending if before[op] <= self.over.keys()]:
            self._wave({op: self._ready(op, before[op]) for op in wave}, last)
            self.pending = [op for op in self.pending if op not in self.over]

    def _ready(self, op: CollectiveOp, before: set[Operation]) -> int:
        return max((self.over[other] for other in before), default=self.flow.ready(op))

    def _wave(self, ready: Mapping[CollectiveOp, int], last: int) -> None:
        groups = self.traffic.grouped(sorted(ready, key=ready.__getitem__), self.traffic.fits)
        groups.sort(key=lambda group: ready[group[-1]])
        starts = [ready[group[-1]] for group in groups]
        for group, start, following in zip(groups, starts, [*starts[1:], last], strict=True):
            self.buckets.append(Bucket(tuple(group), start))
            self.starts.update(dict.fromkeys(group, start))
            self.over.update(dict.fromkeys(group, following))

    def _order_updates(self) -> None:
        """Put the updates in the order in which the buckets of their gradients start; they follow the body."""
        arrival = {
            op: max((self.starts.get(other, self.flow.end) for other in self._predecessors(op)), default=-1)
            for op in self.updates
        }
        self.updates = sorted(self.updates, key=arrival.__getitem__)
        self.over.update({op: len(self.flow.body) + index for index, op in enumerate(self.updates)})

    def _predecessors(self, op: Operation) -> set[Operation]:
        """The collectives and updates from which `op` has its operands, directly or through views."""
        found: set[Operation] = set()
        for source in (value.op for value in op.operands if isinstance(value, OpResult)):
            if self.flow.roles.get(source) is Role.RESULTS or isinstance(source, TrainOp):
                found.add(source)
            elif source in self.flow.floating:
                found |= self._predecessors(source)
        return found
