"""
Orders of a pipeline by list scheduling: whenever a stage is free, it takes the most urgent fragment that can begin.

Gradients that other stages wait for come first, then forwards, or the other way round until enough parts are ahead.
Gradients of weights, for which nobody waits, fill the time in which a stage would wait otherwise. How long they are
delayed so follows from what there is to hide. What a stage holds is bounded: by the parts that it may have ahead, and
by bytes, of which a forward takes some and backward and the gradients of weights give them back.
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
    What stages may hold.

    Args:
        taken: by label, the bytes that one part of a fragment takes; negative where it gives back.
        budgets: by stage, what it may have taken at any time.
        parts: how many parts, of all chunks together, one with the most chunks may have in flight; of others as many of
            each chunk.
    """

    taken: Mapping[str, float]
    budgets: Sequence[float]
    parts: float = inf


@dataclass(frozen=True)
class Urgency:
    """
    What comes first.

    Args:
        ahead: how many parts may be ahead of their backward, as a factor of the number of stages from here to the last.
        backward_first: whether gradients come before forwards, even where fewer parts than allowed are ahead.
        patience: for which part of the time that gradients of weights take a stage rather waits for something urgent.
    """

    ahead: float
    backward_first: bool
    patience: float


AHEAD = (1.0, 1.5, 2.0, 3.0, inf)
URGENCIES = tuple(itertools.starmap(Urgency, itertools.product(AHEAD, (True, False), (0.0, 0.5))))
"""Those that are tried."""


@dataclass(frozen=True)
class ListSchedule:
    """
    Orders that were found.

    Args:
        runs: by stage, the runs of its fragments.
        receive: by transfer and part, the position of the run of the receiver during which it is sent.
        seconds: from the begin of the first run to the end of the last.
    """

    runs: list[list[Slot]]
    receive: Mapping[PartOf, int]
    seconds: float


def list_schedule(times: PipelineTimes, holding: Holding, urgency: Urgency) -> ListSchedule:
    """The orders that follow from what comes first."""
    return _Scheduler(times, holding, urgency).run()


@dataclass
class _BusyStage:
    """A stage on its way: until when it is busy, and what it has done."""

    number: int
    free: float = 0.0
    runs: list[Slot] = field(default_factory=list[Slot])
    begins: list[float] = field(default_factory=list[float])
    done: dict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))


class _Scheduler:
    """One use."""

    def __init__(self, times: PipelineTimes, holding: Holding, urgency: Urgency) -> None:
        self.times, self.holding, self.urgency = times, holding, urgency
        # A stage whose layers use no part of the batch has no fragment.
        self.stages = [_BusyStage(number) for number, _ in enumerate(holding.budgets)]
        self.works: list[list[Work]] = [[] for _ in self.stages]
        for work in times.works:
            self.works[work.stage].append(work)
        self.needed: dict[str, list[Delivery]] = defaultdict(list)
        self.makes: dict[str, list[Delivery]] = defaultdict(list)
        self.stage_of = {work.label: work.stage for work in times.works}
        for each in times.deliveries:
            self.makes[each.source].append(each)
            for user in each.users:
                self.needed[user].append(each)
        self.before = {work.label: {*self._earlier(work), *work.needs} for work in times.works}
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
        """By stages, when the last transfer from one to the other is over."""

    def _earlier(self, work: Work) -> Iterator[str]:
        """The fragments of the same chunk that come before one."""
        kinds = list(FragmentKind)
        for other in self.works[work.stage]:
            if other.chunk == work.chunk and kinds.index(other.kind) < kinds.index(work.kind):
                yield other.label

    def run(self) -> ListSchedule:
        left = len(self.times.works) * self.times.parts
        while left:
            now, stage = min(
                (found, stage.number) for stage in self.stages if (found := self._next_time(stage)) is not None
            )
            work = self._chosen(self.stages[stage], now)
            if work is not None:
                self._run(self.stages[stage], work, now)
                left -= 1
        runs = [stage.runs for stage in self.stages]
        return ListSchedule(runs, dict(self._receptions()), max(self.ends.values(), default=0.0))

    def _ready(self, stage: _BusyStage, work: Work) -> float | None:
        """When the next part of a fragment can begin, at the earliest; None where that is not known yet, or never."""
        if (part := stage.done[work.label]) == self.times.parts:
            return None
        ready = stage.free
        for label in self.before[work.label]:
            if (label, part) not in self.ends:
                return None
        for each in self.needed[work.label]:
            if (there := self.arrived.get((each.label, part))) is None:
                return None
            ready = max(ready, there)
        if work.kind is FragmentKind.FORWARD and not self._has_room(stage, work, part):
            return None
        return ready

    def _has_room(self, stage: _BusyStage, work: Work, part: int) -> bool:
        """Whether a stage may hold one more part. The part that is last in line always may: others wait for it."""
        unfinished = (stage.done[other.label] for other in self.works[stage.number])
        if part == min(unfinished):
            return True
        if self._ahead(stage) >= self._allowed(stage):
            return False
        return all(self._can_end(stage, work, part, *each) for each in self.limits[stage.number])

    def _can_end(self, stage: _BusyStage, work: Work, part: int, taken: Mapping[str, float], budget: float) -> bool:
        """Whether all parts that have begun, one after the other, could go through their other chunks all the same."""
        if budget == inf:
            return True
        mine = self.works[stage.number]
        forwards = [each for each in mine if each.kind is FragmentKind.FORWARD]

        def held(at: int) -> float:
            """What a part holds, the one that would begin included."""
            done = sum(taken.get(each.label, 0.0) for each in mine if stage.done[each.label] > at)
            return done + (taken.get(work.label, 0.0) if at == part else 0.0)

        last = max(part + 1, *(stage.done[each.label] for each in forwards))
        under_way = {at: held(at) for at in range(min(stage.done[each.label] for each in mine), last)}
        left = budget - sum(under_way.values())
        if self.chunks == 1:
            return left >= 0
        for at, now in under_way.items():
            others = (each for each in forwards if stage.done[each.label] <= at and (each, at) != (work, part))
            more = sum(taken.get(each.label, 0.0) for each in others)
            if more > left:
                return False
            left += now
        return True

    def _ahead(self, stage: _BusyStage) -> int:
        """How many parts, of each chunk, are ahead of their backward."""
        signs = {FragmentKind.FORWARD: 1, FragmentKind.BACKWARD: -1, FragmentKind.WEIGHTS: 0}
        return sum(signs[work.kind] * stage.done[work.label] for work in self.works[stage.number])

    def _allowed(self, stage: _BusyStage) -> float:
        left = len(self.stages) - stage.number + (self.chunks - 1) * len(self.stages)
        return max(1.0, self.urgency.ahead * left)

    def _next_time(self, stage: _BusyStage) -> float | None:
        """When a stage decides next; None while it depends on others."""
        ready = (self._ready(stage, work) for work in self.works[stage.number])
        return min((each for each in ready if each is not None), default=None)

    def _chosen(self, stage: _BusyStage, now: float) -> Work | None:
        """What a stage begins now; None where it rather waits."""
        ready = [(each, work) for work in self.works[stage.number] if (each := self._ready(stage, work)) is not None]
        chosen = min((work for each, work in ready if each <= now), key=lambda work: self._rank(stage, work))
        if chosen.kind is FragmentKind.WEIGHTS and self.urgency.patience:
            soon = now + self.urgency.patience * self.times.runs[chosen.label]
            coming = [each for each, work in ready if work.kind is not FragmentKind.WEIGHTS and each <= soon]
            if coming:
                stage.free = min(coming)
                return None
        return chosen

    def _rank(self, stage: _BusyStage, work: Work) -> tuple[int, int, int]:
        """What is least comes first."""
        forward_first = not self.urgency.backward_first
        order = {
            FragmentKind.FORWARD: 0 if forward_first else 1,
            FragmentKind.BACKWARD: 1 if forward_first else 0,
            FragmentKind.WEIGHTS: 2,
        }
        # The chunk that is farthest on its way has the fewest others to wait for it.
        late = -work.chunk if work.kind is FragmentKind.FORWARD else work.chunk
        return order[work.kind], late, stage.done[work.label]

    def _run(self, stage: _BusyStage, work: Work, now: float) -> None:
        part = stage.done[work.label]
        stage.done[work.label] += 1
        stage.runs.append(Slot(Action.RUN, work.label, part))
        stage.begins.append(now)
        stage.free = self.ends[work.label, part] = now + self.times.runs[work.label]
        for each in self.makes[work.label]:
            channel = stage.number, each.stage
            self.sent[each.label, part] = begin = max(stage.free, self.channels[channel])
            self.arrived[each.label, part] = self.channels[channel] = begin + self.times.transfers[each.label]

    def _receptions(self) -> Iterator[tuple[PartOf, int]]:
        """Where receivers are when what goes to them is sent."""
        stage_of = {each.label: each.stage for each in self.times.deliveries}
        for key, sent in self.sent.items():
            begins = self.stages[stage_of[key[0]]].begins
            yield key, max(sum(begin <= sent for begin in begins) - 1, 0)
