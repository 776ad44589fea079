"""
How long a pipeline takes with given orders, if every fragment and transfer takes the time that it takes by itself.

A stage goes through its slots one after the other. A transfer begins when both ends have started it and those before it
between the same two stages are over, as in the simulator, which knows besides what disturbs what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...dialects.pipe import Action, Slot
from .schedules import Delivery, FragmentKind, Work

PartOf = tuple[str, int]
"""A fragment or transfer by its label, and the part."""


@dataclass(frozen=True)
class PipelineTimes:
    """
    What a pipeline runs, and for how long.

    Args:
        runs: by label, the seconds of a fragment for one part.
        transfers: by label, those of a transfer.
    """

    works: tuple[Work, ...]
    deliveries: tuple[Delivery, ...]
    parts: int
    runs: Mapping[str, float]
    transfers: Mapping[str, float]


@dataclass(frozen=True)
class EstimatedRuns:
    """When fragments begin and end, in seconds from the begin of the first; by stage in order."""

    begins: Mapping[PartOf, float]
    ends: Mapping[PartOf, float]

    @property
    def seconds(self) -> float:
        """Until the last fragment has ended."""
        return max(self.ends.values(), default=0.0)


@dataclass
class _BusyChannel:
    """From one stage to another: until when it is busy, and what was started, in order."""

    free: float = 0.0
    begun: dict[PartOf, list[float]] = field(default_factory=dict[PartOf, list[float]])
    arrived: dict[PartOf, float] = field(default_factory=dict[PartOf, float])


def estimate(slots: Sequence[Sequence[Slot]], times: PipelineTimes) -> EstimatedRuns:
    """
    When each run begins and ends.

    Raises:
        ValueError: stages wait for one another, so none goes on.
    """
    return _Estimate(slots, times).run()


class _Estimate:
    """Takes stages through their slots; one use."""

    def __init__(self, slots: Sequence[Sequence[Slot]], times: PipelineTimes) -> None:
        self.slots, self.times = slots, times
        stage_of = {work.label: work.stage for work in times.works}
        channels: dict[tuple[int, int], _BusyChannel] = defaultdict(_BusyChannel)
        self.channel_of = {each.label: channels[stage_of[each.source], each.stage] for each in times.deliveries}
        self.begins, self.ends = dict[PartOf, float](), dict[PartOf, float]()

    def run(self) -> EstimatedRuns:
        going = [self._stage(stage) for stage in range(len(self.slots))]
        while going:
            left = [stage for stage in going if next(stage, None) is not None]
            if len(left) == len(going) and not self._moved:
                raise ValueError("the stages of this schedule wait for one another")
            self._moved, going = False, left
        return EstimatedRuns(self.begins, self.ends)

    _moved = True

    def _stage(self, stage: int) -> Iterator[int]:
        """Go on as far as can be; a turn for each time that something has to be waited for."""
        now = 0.0
        for slot in self.slots[stage]:
            key = slot.label, slot.part
            match slot.action:
                case Action.RUN:
                    self.begins[key] = now
                    now = self.ends[key] = now + self.times.runs[slot.label]
                case Action.START:
                    self._start(key, now)
                case Action.WAIT:
                    while (there := self.channel_of[slot.label].arrived.get(key)) is None:
                        yield stage
                    now = max(now, there)
            self._moved = True

    def _start(self, key: PartOf, now: float) -> None:
        """What both ends have started goes through its channel in the order in which it was started first."""
        channel = self.channel_of[key[0]]
        channel.begun.setdefault(key, []).append(now)
        for each, both in list(channel.begun.items()):
            if len(both) < 2:
                return
            channel.free = max(channel.free, *both) + self.times.transfers[each[0]]
            channel.arrived[each] = channel.free
            del channel.begun[each]


def last_works(works: Sequence[Work]) -> frozenset[Work]:
    """Of each chunk of each stage the fragment with which a part is done."""
    kinds = list(FragmentKind)
    in_order = sorted(works, key=lambda work: kinds.index(work.kind))
    return frozenset({(work.stage, work.chunk): work for work in in_order}.values())


def chunks_of(works: Iterable[Work], stage: int) -> int:
    """How many chunks of the model a stage has."""
    return len({work.chunk for work in works if work.stage == stage})


def in_flight(slots: Sequence[Slot], works: Sequence[Work]) -> int:
    """The most parts, of each chunk of a stage, between the begin of forward and the last gradient at any time."""
    last = {work.label for work in last_works(works)}
    forward = {work.label for work in works if work.kind is FragmentKind.FORWARD}
    most = held = 0
    for slot in (slot for slot in slots if slot.action is Action.RUN):
        held += slot.label in forward
        most = max(most, held)
        held -= slot.label in last
    return most
