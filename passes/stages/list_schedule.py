"""
Pipeline orders by list scheduling: whenever a stage is free, it runs the most urgent fragment that can begin.

Gradients that other stages wait for come first, then forwards; or the other way round until enough parts are ahead. No
stage waits for weight gradients, so they fill bubbles, and their delay follows from the bubbles. A stage is bounded by
the number of parts that it may have ahead, and by bytes: a forward allocates bytes, and backward and weight gradients
free them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from ...dialects.pipe import Action, Slot
from .estimate import PartOf, PipelineTimes, chunks_of, last_works
from .schedules import Delivery, FragmentKind, Work


@dataclass(frozen=True)
class Holding:
    """
    Limits on the memory and the parts that stages hold.

    Args:
        taken: by label, the bytes that a fragment allocates for one part; negative if it frees more.
        budgets: the most bytes that each stage may have allocated at any time.
        parts: number of parts in flight, of all chunks together, on a stage with the most chunks; other stages may have
            as many of each chunk.
    """

    taken: Mapping[str, float]
    budgets: Sequence[float]
    parts: float = inf


@dataclass(frozen=True)
class Urgency:
    """
    The order of preference among fragments that can run.

    Args:
        ahead: limit of parts ahead of their backward, as a multiple of the number of stages from this one to the last.
        backward_first: whether gradients come before forwards, even while fewer parts than allowed are ahead.
        patience: how long a stage waits for an urgent fragment, as a fraction of the time of weight gradients.
    """

    ahead: float
    backward_first: bool
    patience: float


AHEAD = (1.0, 1.5, 2.0, 3.0, inf)
URGENCIES = tuple(itertools.starmap(Urgency, itertools.product(AHEAD, (True, False), (0.0, 0.5))))
"""All combinations that are tried."""


@dataclass(frozen=True)
class ListSchedule:
    """
    The order of runs and transfers found by list scheduling.

    Args:
        runs: by stage, the runs of its fragments.
        receive: by transfer and part, the position of the receiver's run that overlaps with the start of sending.
        seconds: seconds from the start of the first run to the end of the last.
    """

    runs: list[list[Slot]]
    receive: Mapping[PartOf, int]
    seconds: float


def list_schedule(times: PipelineTimes, holding: Holding, urgency: Urgency) -> ListSchedule:
    """Return the list schedule for an order of preference."""
    return _Scheduler(times, holding, urgency).run()


@dataclass
class _BusyStage:
    """A stage during scheduling: the end of its last run, its runs, and the number of parts done by each fragment."""

    number: int
    free: float = 0.0
    runs: list[Slot] = field(default_factory=list[Slot])
    begins: list[float] = field(default_factory=list[float])
    done: dict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))


class _Scheduler:
    """A list scheduler; used once."""

    def __init__(self, times: PipelineTimes, holding: Holding, urgency: Urgency) -> None:
        self.times, self.holding, self.urgency = times, holding, urgency
        # A stage has no fragments if its layers do not depend on the batch.
        self.stages = [_BusyStage(number) for number, _ in enumerate(holding.budgets)]
        self.works: list[list[Work]] = [[] for _ in self.stages]
        for work in times.works:
            self.works[work.stage].append(work)
        self.needed: dict[str, list[Delivery]] = defaultdict(list)
        self.makes: dict[str, list[Delivery]] = defaultdict(list)
        self.stage_of = {work.label: work.stage for work in times.works}
        for delivery in times.deliveries:
            self.makes[delivery.source].append(delivery)
            for user in delivery.users:
                self.needed[user].append(delivery)
        self.before = {work.label: {*self._earlier(work), *work.needs} for work in times.works}
        self.waiting = {work.label: set[int]() for work in times.works}
        """The stages that wait for a fragment, by its label."""
        for work in times.works:
            for label in (*self.before[work.label], *(delivery.source for delivery in self.needed[work.label])):
                self.waiting[label].add(work.stage)
        self.chunks = 1 + max(work.chunk for work in times.works)
        counted = {work.label: 1.0 for work in times.works if work.kind is FragmentKind.FORWARD}
        counted |= {work.label: -1.0 for work in last_works(times.works)}
        parts = [holding.parts * chunks_of(times.works, stage.number) / self.chunks for stage in self.stages]
        pairs = zip(holding.budgets, parts, strict=True)
        self.limits = [((holding.taken, budget), (counted, most)) for budget, most in pairs]
        self.ends = dict[PartOf, float]()
        self.sent = dict[PartOf, float]()
        self.arrived = dict[PartOf, float]()
        self.channels: dict[tuple[int, int], float] = defaultdict(float)
        """The end of the last transfer from one stage to another, by pair of stages."""

    def _earlier(self, work: Work) -> Iterator[str]:
        kinds = list(FragmentKind)
        for other in self.works[work.stage]:
            if other.chunk == work.chunk and kinds.index(other.kind) < kinds.index(work.kind):
                yield other.label

    def run(self) -> ListSchedule:
        left = len(self.times.works) * self.times.parts
        next_times = {stage.number: self._next_time(stage) for stage in self.stages}
        while left:
            now, stage = min((time, number) for number, time in next_times.items() if time is not None)
            changed = {stage}
            work = self._chosen(self.stages[stage], now)
            if work is not None:
                self._run(self.stages[stage], work, now)
                changed |= self.waiting[work.label]
                left -= 1
            next_times |= {number: self._next_time(self.stages[number]) for number in changed}
        runs = [stage.runs for stage in self.stages]
        return ListSchedule(runs, dict(self._receptions()), max(self.ends.values(), default=0.0))

    def _ready(self, stage: _BusyStage, work: Work) -> float | None:
        """Return the earliest begin of the next part of a fragment, or None if it is unknown or no part is left."""
        if (part := stage.done[work.label]) == self.times.parts:
            return None
        ready = stage.free
        for label in self.before[work.label]:
            if (label, part) not in self.ends:
                return None
        for delivery in self.needed[work.label]:
            if (arrival := self.arrived.get((delivery.label, part))) is None:
                return None
            ready = max(ready, arrival)
        if work.kind is FragmentKind.FORWARD and not self._has_room(stage, work, part):
            return None
        return ready

    def _has_room(self, stage: _BusyStage, work: Work, part: int) -> bool:
        """Return whether a stage may hold one more part; its oldest unfinished part always may: others wait for it."""
        if part == min(stage.done[other.label] for other in self.works[stage.number]):
            return True
        # Count the parts, summed over chunks, that are ahead of their backward.
        signs = {FragmentKind.FORWARD: 1, FragmentKind.BACKWARD: -1, FragmentKind.WEIGHTS: 0}
        ahead = sum(signs[work.kind] * stage.done[work.label] for work in self.works[stage.number])
        left = len(self.stages) - stage.number + (self.chunks - 1) * len(self.stages)
        if ahead >= max(1.0, self.urgency.ahead * left):
            return False
        return all(self._can_end(stage, work, part, *limit) for limit in self.limits[stage.number])

    def _can_end(self, stage: _BusyStage, work: Work, part: int, taken: Mapping[str, float], budget: float) -> bool:
        """Return whether all parts in flight could still pass their other chunks within the budget, in turn."""
        if budget == inf:
            return True
        works = self.works[stage.number]
        forwards = [other for other in works if other.kind is FragmentKind.FORWARD]

        def held(at: int) -> float:
            """Return the bytes that a part holds, including the run that would begin."""
            done = sum(taken.get(other.label, 0.0) for other in works if stage.done[other.label] > at)
            return done + (taken.get(work.label, 0.0) if at == part else 0.0)

        last = max(part + 1, *(stage.done[other.label] for other in forwards))
        under_way = {at: held(at) for at in range(min(stage.done[other.label] for other in works), last)}
        left = budget - sum(under_way.values())
        if self.chunks == 1:
            return left >= 0
        for at, held_now in under_way.items():
            others = (other for other in forwards if stage.done[other.label] <= at and (other, at) != (work, part))
            if sum(taken.get(other.label, 0.0) for other in others) > left:
                return False
            left += held_now
        return True

    def _next_time(self, stage: _BusyStage) -> float | None:
        ready = (self._ready(stage, work) for work in self.works[stage.number])
        return min((time for time in ready if time is not None), default=None)

    def _chosen(self, stage: _BusyStage, now: float) -> Work | None:
        """Return the fragment that a stage runs now, or None if it waits for a more urgent one."""
        ready = [(time, work) for work in self.works[stage.number] if (time := self._ready(stage, work)) is not None]
        chosen = min((work for time, work in ready if time <= now), key=lambda work: self._rank(stage, work))
        if chosen.kind is FragmentKind.WEIGHTS and self.urgency.patience:
            soon = now + self.urgency.patience * self.times.runs[chosen.label]
            coming = [time for time, work in ready if work.kind is not FragmentKind.WEIGHTS and time <= soon]
            if coming:
                stage.free = min(coming)
                return None
        return chosen

    def _rank(self, stage: _BusyStage, work: Work) -> tuple[int, int, int]:
        forward_first = not self.urgency.backward_first
        order = {
            FragmentKind.FORWARD: 0 if forward_first else 1,
            FragmentKind.BACKWARD: 1 if forward_first else 0,
            FragmentKind.WEIGHTS: 2,
        }
        # The chunk closest to the end of its pass has the fewest chunks that still wait for it.
        late = -work.chunk if work.kind is FragmentKind.FORWARD else work.chunk
        return order[work.kind], late, stage.done[work.label]

    def _run(self, stage: _BusyStage, work: Work, now: float) -> None:
        part = stage.done[work.label]
        stage.done[work.label] += 1
        stage.runs.append(Slot(Action.RUN, work.label, part))
        stage.begins.append(now)
        stage.free = self.ends[work.label, part] = now + self.times.runs[work.label]
        for delivery in self.makes[work.label]:
            channel = stage.number, delivery.stage
            self.sent[delivery.label, part] = begin = max(stage.free, self.channels[channel])
            self.arrived[delivery.label, part] = self.channels[channel] = begin + self.times.transfers[delivery.label]

    def _receptions(self) -> Iterator[tuple[PartOf, int]]:
        stage_of = {delivery.label: delivery.stage for delivery in self.times.deliveries}
        for key, sent in self.sent.items():
            begins = self.stages[stage_of[key[0]]].begins
            yield key, max(sum(begin <= sent for begin in begins) - 1, 0)
