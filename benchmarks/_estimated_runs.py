"""
Estimate how long a pipeline takes with given schedules, if fragments and transfers do not slow one another down.

A stage executes its slots in order. A transfer begins when both ends have started it and all earlier transfers between
the same two stages are over. The simulator uses the same rules, and in addition models contention.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.dialects.pipe import Action, Slot
from shardwright.passes.stages.estimate import PartOf, PipelineTimes


@dataclass(frozen=True)
class EstimatedRuns:
    """Begin and end of each fragment's run, in seconds from the begin of the first; in order within a stage."""

    begins: Mapping[PartOf, float]
    ends: Mapping[PartOf, float]

    @property
    def seconds(self) -> float:
        """Return the end of the last run."""
        return max(self.ends.values(), default=0.0)


@dataclass
class _BusyChannel:
    """A channel between two stages: the end of its last transfer, and the start times of each part, in order."""

    free: float = 0.0
    begun: dict[PartOf, list[float]] = field(default_factory=dict[PartOf, list[float]])
    arrived: dict[PartOf, float] = field(default_factory=dict[PartOf, float])


def estimate(slots: Sequence[Sequence[Slot]], times: PipelineTimes) -> EstimatedRuns:
    """
    Return when each run begins and ends.

    Raises:
        ValueError: stages deadlock.
    """
    return _Estimate(slots, times).run()


class _Estimate:
    """Executes the slots of all stages. An instance runs once."""

    def __init__(self, slots: Sequence[Sequence[Slot]], times: PipelineTimes) -> None:
        self.slots, self.times = slots, times
        stage_of = {work.label: work.stage for work in times.works}
        channels: dict[tuple[int, int], _BusyChannel] = defaultdict(_BusyChannel)
        self.channel_of = {link.label: channels[stage_of[link.source], link.stage] for link in times.deliveries}
        self.begins, self.ends = dict[PartOf, float](), dict[PartOf, float]()

    def run(self) -> EstimatedRuns:
        active = [self._stage(stage) for stage in range(len(self.slots))]
        while active:
            blocked = [stage for stage in active if next(stage, None) is not None]
            if len(blocked) == len(active) and not self._moved:
                raise ValueError("the schedule deadlocks: its stages wait for one another")
            self._moved, active = False, blocked
        return EstimatedRuns(self.begins, self.ends)

    _moved = True

    def _stage(self, stage: int) -> Iterator[int]:
        """Execute slots as far as possible, and yield whenever the stage has to wait."""
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
                    while (arrival := self.channel_of[slot.label].arrived.get(key)) is None:
                        yield stage
                    now = max(now, arrival)
            self._moved = True

    def _start(self, key: PartOf, now: float) -> None:
        """Record a start, and send the parts that both ends have started, in the order of their first starts."""
        channel = self.channel_of[key[0]]
        channel.begun.setdefault(key, []).append(now)
        for part, starts in list(channel.begun.items()):
            if len(starts) < 2:
                return
            channel.free = max(channel.free, *starts) + self.times.transfers[part[0]]
            channel.arrived[part] = channel.free
            del channel.begun[part]
