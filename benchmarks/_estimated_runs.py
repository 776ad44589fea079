"""
Run the slots of pipelines for given seconds, if fragments and transfers do not slow one another down.

A stage executes its slots in order. A transfer begins when both ends have started it and all earlier transfers between
the same two stages are over. The simulator uses the same rules, and in addition models contention.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.dialects.pipe import Action, Slot
from shardwright.passes.stages.estimate import PartOf, PipelineTimes

Ends = tuple[int, int]
"""The stages at both ends of a transfer."""


@dataclass(frozen=True)
class EstimatedRuns:
    """The times of runs in seconds from the begin of the first fragment, and the ends of stages."""

    begins: Mapping[PartOf, float]
    ends: Mapping[PartOf, float]
    stages: Sequence[float]

    @property
    def seconds(self) -> float:
        """Return the end of the last run."""
        return max(self.ends.values(), default=0.0)


def estimate(slots: Sequence[Sequence[Slot]], times: PipelineTimes) -> EstimatedRuns:
    """Return when each run begins and ends. Raises ValueError if stages deadlock."""
    stage_of = {work.label: work.stage for work in times.works}
    ends_of = {link.label: (stage_of[link.source], link.stage) for link in times.deliveries}
    return SlotRun(slots, times.runs, times.transfers, ends_of).run()


@dataclass
class _BusyChannel:
    """A channel between two stages: the end of its last transfer, and the start times of each part, in order."""

    free: float = 0.0
    begun: dict[PartOf, list[float]] = field(default_factory=dict[PartOf, list[float]])
    arrived: dict[PartOf, float] = field(default_factory=dict[PartOf, float])


class SlotRun:
    """
    Executes the slots of all stages, once, by the seconds of fragments and transfers and the stages at both ends of a
    transfer, all by label.
    """

    def __init__(
        self,
        slots: Sequence[Sequence[Slot]],
        runs: Mapping[str, float],
        transfers: Mapping[str, float],
        ends_of: Mapping[str, Ends],
    ) -> None:
        self._slots, self._runs, self._transfers = slots, runs, transfers
        channels: dict[Ends, _BusyChannel] = defaultdict(_BusyChannel)
        self._channel_of = {label: channels[ends] for label, ends in ends_of.items()}
        self._begins, self._ends = dict[PartOf, float](), dict[PartOf, float]()
        self._now, self._moved = [0.0] * len(slots), True

    def run(self) -> EstimatedRuns:
        """Return the times. Raises ValueError if the stages wait for one another."""
        active = [self._stage(stage) for stage in range(len(self._slots))]
        while active:
            blocked = [stage for stage in active if next(stage, None) is not None]
            if len(blocked) == len(active) and not self._moved:
                raise ValueError("the schedule deadlocks: its stages wait for one another")
            self._moved, active = False, blocked
        return EstimatedRuns(self._begins, self._ends, self._now)

    def _stage(self, stage: int) -> Iterator[int]:
        """Execute slots as far as possible, and yield whenever the stage has to wait."""
        now = 0.0
        for slot in self._slots[stage]:
            key = slot.label, slot.part
            match slot.action:
                case Action.RUN:
                    self._begins[key] = now
                    now = self._ends[key] = now + self._runs[slot.label]
                case Action.START:
                    self._start(key, now)
                case Action.WAIT:
                    while (arrival := self._channel_of[slot.label].arrived.get(key)) is None:
                        yield stage
                    now = max(now, arrival)
            self._moved, self._now[stage] = True, now

    def _start(self, key: PartOf, now: float) -> None:
        """Record a start, and send the parts that both ends have started, in the order of their first starts."""
        channel = self._channel_of[key[0]]
        channel.begun.setdefault(key, []).append(now)
        for part, starts in list(channel.begun.items()):
            if len(starts) < 2:
                return
            channel.free = max(channel.free, *starts) + self._transfers[part[0]]
            channel.arrived[part] = channel.free
            del channel.begun[part]
