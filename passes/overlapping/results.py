"""Which reductions of gradients share a bucket, when the buckets start, and the order of the updates after them."""

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
    """The buckets of collectives that serve results, and the updates in the order that their operands arrive."""

    buckets: tuple[Bucket, ...]
    updates: tuple[Operation, ...]


def plan_results(traffic: BucketTraffic) -> ResultPlan:
    """
    Bucket reductions in the order that their operands are ready, each bucket up to the limit.

    Collectives that continue others (over a second axis, or on the result of an update) are planned after them: they
    start when the following bucket has started, so that they do not wait for a collective that has just started.
    """
    return _ResultPlanner(traffic).run()


class _ResultPlanner:
    """A planner in waves of collectives whose predecessors are all planned; used once."""

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
        """Plan the collectives before the updates, the updates that can run, and then the collectives after them."""
        self._waves(len(self.flow.body) - 1)
        while self.waiting:
            self._order_updates()
            self._waves(self.flow.end - 1)
        self._waves(self.flow.end - 1)
        return ResultPlan(tuple(self.buckets), tuple(self.updates))

    def _waves(self, last: int) -> None:
        """Plan all collectives that can be planned; the last bucket of a wave is complete at the position `last`."""
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
        Order the updates that can run by the starts of their gradients' buckets, after the body.

        The ops of one parameter stay together: otherwise the values that its update computes from states alone would be
        alive for all parameters at once. Ops that need a collective that is not planned yet wait for it, with the ops
        that only they need.
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
        """Return the updates that can run now, in order, each with the start of the last bucket that it needs."""
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
        predecessors: set[Operation] = set()
        for source in (value.op for value in op.operands if isinstance(value, OpResult)):
            if self.flow.roles.get(source) is CollectiveRole.RESULTS or source in self._updates:
                predecessors.add(source)
            elif source in self.flow.floating:
                predecessors |= self._predecessors(source)
        return predecessors
