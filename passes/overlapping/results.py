"""Which reductions of gradients travel together, when they start, and in which order the updates follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, OpResult

from ...dialects.spmd import CollectiveOp
from ...dialects.train import updated_parameter
from .buckets import Bucket, BucketTraffic
from .flow import CollectiveRole


@dataclass(frozen=True)
class ResultPlan:
    """Buckets of what serves results, and the updates in the order in which their operands arrive."""

    buckets: tuple[Bucket, ...]
    updates: tuple[Operation, ...]


def plan_results(traffic: BucketTraffic) -> ResultPlan:
    """
    Bucket reductions in the order in which their operands are ready, each bucket up to the limit.

    Collectives that continue others (over a second axis, or on what an update made) are planned once those are:
    they start when the bucket after those has started, so as not to wait for what has just begun.
    """
    return _ResultPlanner(traffic).run()


class _ResultPlanner:
    """Plans in waves: a wave has the collectives whose predecessors are all planned; one use."""

    def __init__(self, traffic: BucketTraffic) -> None:
        self.traffic, self.flow = traffic, traffic.flow
        self.pending = self.flow.of(CollectiveRole.RESULTS)
        self._updates = {*self.flow.updates}
        self.buckets: list[Bucket] = []
        self.waiting: Sequence[Operation] = self.flow.updates
        self.updates: list[Operation] = []
        self.starts: dict[Operation, int] = {}
        self.over: dict[Operation, int] = {}

    def run(self) -> ResultPlan:
        """Plan what comes before the updates, then these, then what follows them; some updates wait for others."""
        self._waves(len(self.flow.body) - 1)
        while self.waiting:
            self._order_updates()
            self._waves(self.flow.end - 1)
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
            self.buckets.append(self.traffic.bucket(group, start))
            self.starts.update(dict.fromkeys(group, start))
            self.over.update(dict.fromkeys(group, following))

    def _order_updates(self) -> None:
        """
        Put the updates that can be made in the order in which the buckets of their gradients start, after the body.

        The ops of one parameter stay together: what its update makes of states alone would else be kept for all
        parameters at once. What needs a collective that is still to be planned waits for it, with what only that needs.
        """
        arrival = self._arrivals() or dict.fromkeys(self.waiting, self.flow.end)
        of_parameter: dict[str | None, int] = {}
        for op, time in arrival.items():
            name = updated_parameter(op)
            of_parameter[name] = max(time, of_parameter.get(name, time))
        named = {op: name for op in arrival if (name := updated_parameter(op)) is not None}
        times = {op: of_parameter[named[op]] if op in named else time for op, time in arrival.items()}
        ordered = sorted(arrival, key=times.__getitem__)
        first = len(self.flow.body) + len(self.updates)
        self.over.update({op: first + index for index, op in enumerate(ordered)})
        self.updates += ordered
        self.waiting = [op for op in self.waiting if op not in arrival]

    def _arrivals(self) -> dict[Operation, int]:
        """The updates that need not wait, in order, each with the start of the last bucket that it needs."""
        arrival: dict[Operation, int] = {}
        for op in self.waiting:
            before = self._predecessors(op)
            if all(other in arrival or other in self.over for other in before):
                times = (arrival.get(other, self.starts.get(other, -1)) for other in before)
                arrival[op] = max(times, default=-1)
        waiting = set(self.waiting).difference(arrival)
        for op in reversed(list(arrival)):
            users = {use.operation for result in op.results for use in result.uses}
            if users and users <= waiting:
                del arrival[op]
                waiting.add(op)
        return arrival

    def _predecessors(self, op: Operation) -> set[Operation]:
        """The collectives and updates from which `op` has its operands, directly or through views."""
        found: set[Operation] = set()
        for source in (value.op for value in op.operands if isinstance(value, OpResult)):
            if self.flow.roles.get(source) is CollectiveRole.RESULTS or source in self._updates:
                found.add(source)
            elif source in self.flow.floating:
                found |= self._predecessors(source)
        return found
