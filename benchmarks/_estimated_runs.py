"""
How long a pipeline takes with given orders, if every fragment and transfer takes the time that it takes by itself.

A stage goes through its slots in order. A transfer begins when both ends have started it and those before it
between the same two stages are over, as in the simulator, which knows besides what disturbs what.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.dialects.pipe import Action, Slot
from shardwright.passes.stages.estimate import PartOf, PipelineTimes


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
    """A channel between two stages: the time until which it is busy, and the parts that were started, in order."""

    free: float = 0.0
    begun: dict[PartOf, list[float]] = field(default_factory=dict[PartOf, list[float]])
    arrived: dict[PartOf, float] = field(default_factory=dict[PartOf, float])


def estimate(slots: Sequence[Sequence[Slot]], times: PipelineTimes) -> EstimatedRuns:
    """
    When each run begins and ends.

    Raises:
        ValueError: two stages wait for each other.
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
        """Send a part that both ends have started, after those whose first start was earlier."""
        channel = self.channel_of[key[0]]
        channel.begun.setdefault(key, []).append(now)
        for each, both in list(channel.begun.items()):
            if len(both) < 2:
                return
            channel.free = max(channel.free, *both) + self.times.transfers[each[0]]
            channel.arrived[each] = channel.free
            del channel.begun[each]
