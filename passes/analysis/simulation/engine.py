"""
The events of a step: compute streams and channels that work at rates, which change when others begin or end.

A class of ranks goes through its program. A span keeps its compute stream busy; traffic begins when all who take part
have issued it and its channel is free. While a rank computes and communicates, each takes longer by the cluster's
factor of interference; after a wait it goes on later by the cluster's delay. Traffic that meets at a port shares it. At
every begin and end the work that is left of those concerned is taken at the rate so far, and what remains goes on at
the new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from ....ir.cluster import Interference
from ...errors import fail
from .network import Channel, Network, Traffic, fair_rates
from .programs import Await, End, Issue, Program, Span


@dataclass(eq=False, slots=True)
class SpanRun:
    """A span on the compute stream of a class: `progress` has times, with the undisturbed seconds done by then."""

    number: int
    span: Span
    part: int
    start: float
    end: float = 0.0
    progress: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])


@dataclass(eq=False, slots=True)
class TrafficRun:
    """
    Traffic in one channel.

    Args:
        before: what the channel carried before it.
        issued: by class, when it was issued.
        taken: by class, when its compute stream had waited for it.
    """

    traffic: Traffic
    part: int
    channel: Channel
    before: TrafficRun | None
    issued: dict[int, float] = field(default_factory=dict[int, float])
    taken: dict[int, float] = field(default_factory=dict[int, float])
    start: float = -1.0
    end: float = -1.0
    waiting: list[int] = field(default_factory=list[int])


@dataclass(eq=False, slots=True)
class WaitRun:
    """The compute stream of a class, held up by traffic."""

    number: int
    run: TrafficRun
    start: float
    end: float = 0.0


Entry = SpanRun | WaitRun
"""What a compute stream did for a while."""


@dataclass(frozen=True)
class Execution:
    """A simulated run: by class what its compute stream did, in order, and all traffic, by its begin."""

    entries: tuple[list[Entry], ...]
    traffic: list[TrafficRun]


@dataclass(eq=False, slots=True)
class _Activity:
    """Work under way: `left` undisturbed seconds at the time `since`."""

    what: SpanRun | TrafficRun | WaitRun
    left: float
    since: float
    loads: Mapping[str, float]
    rate: float = 0.0
    share: float = 1.0
    version: int = 0
    later: float = 0.0
    """Of traffic in its latency, the seconds that follow it."""


@dataclass(eq=False, slots=True)
class _Queue:
    """A channel: what was issued, in order, and what is under way."""

    runs: dict[tuple[Traffic, int], TrafficRun] = field(default_factory=dict[tuple[Traffic, int], TrafficRun])
    pending: deque[TrafficRun] = field(default_factory=deque[TrafficRun])
    last: TrafficRun | None = None
    busy: bool = False


class Engine:
    """
    One step; one use.

    Args:
        programs: by class.
        columns: by class, its place among the classes of its program, to which the times of spans belong.
        interference: by class.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        columns: Sequence[int],
        network: Network,
        interference: Sequence[Interference],
    ) -> None:
        self.programs, self.columns, self.network, self.interference = programs, columns, network, interference
        self.now = 0.0
        self.at = [0] * len(programs)
        self.entries: tuple[list[Entry], ...] = tuple([] for _ in programs)
        self.traffic: list[TrafficRun] = []
        self.computed = [0.0] * len(programs)
        """By class, the undisturbed seconds since it last waited."""
        self.computing: list[_Activity | None] = [None] * len(programs)
        self.talking: list[set[_Activity]] = [set() for _ in programs]
        self.flowing: list[_Activity] = []
        self.queues: dict[Channel, _Queue] = {}
        self.events: list[tuple[float, int, int, _Activity]] = []
        self.order = count()

    def run(self) -> Execution:
        """Let every class go through its program."""
        for number in range(len(self.programs)):
            self._go_on(number)
        while self.events:
            time, _, version, activity = heappop(self.events)
            if version == activity.version:
                self.now = time
                self._ended(activity)
        self._check_all_done()
        return Execution(self.entries, self.traffic)

    def _check_all_done(self) -> None:
        for number, program in enumerate(self.programs):
            if self.at[number] < len(program):
                instruction, _ = program[self.at[number]]
                assert isinstance(instruction, Await)
                fail(instruction.traffic.op, "is waited for, but not all who take part begin it; run check-order")

    def _go_on(self, number: int) -> None:
        """Take a class through its program up to the next instruction that takes time."""
        program, column = self.programs[number], self.columns[number]
        while self.at[number] < len(program):
            instruction, part = program[self.at[number]]
            if isinstance(instruction, Span):
                if seconds := instruction.ends[column][-1]:
                    self.at[number] += 1
                    self._compute(SpanRun(number, instruction, part, self.now), seconds)
                    return
            elif isinstance(instruction, Issue):
                self._issue(number, instruction.traffic, part)
            elif isinstance(instruction, End):
                late = self.interference[number].delay(self.computed[number])
                if seconds := instruction.overhead[column] + late:
                    self.at[number] += 1
                    span = Span((instruction.op,), ((seconds,),) * len(instruction.overhead))
                    self._compute(SpanRun(number, span, part, self.now), seconds)
                    return
            else:
                run = self._queue(number, instruction.traffic).runs.get((instruction.traffic, part))
                if run is None or run.end < 0.0:
                    if run is not None:
                        run.waiting.append(number)
                        self.entries[number].append(WaitRun(number, run, self.now))
                    return
                run.taken[number] = self.now
            self.at[number] += 1

    def _compute(self, run: SpanRun, seconds: float) -> None:
        self.entries[run.number].append(run)
        activity = _Activity(run, seconds, self.now, {})
        run.progress.append((self.now, 0.0))
        self.computing[run.number] = activity
        self._retime(activity)
        self._disturb(self.talking[run.number])

    def _queue(self, number: int, traffic: Traffic) -> _Queue:
        flow = self.network.flow(traffic, number)
        if (queue := self.queues.get(flow.channel)) is None:
            queue = self.queues[flow.channel] = _Queue()
        return queue

    def _issue(self, number: int, traffic: Traffic, part: int) -> None:
        queue = self._queue(number, traffic)
        if (run := queue.runs.get((traffic, part))) is None:
            channel = self.network.flow(traffic, number).channel
            run = queue.runs[traffic, part] = TrafficRun(traffic, part, channel, queue.last)
            queue.pending.append(run)
            queue.last = run
        run.issued[number] = self.now
        self._next(queue)

    def _next(self, queue: _Queue) -> None:
        """Begin what is first in a queue, if all have issued it."""
        if queue.busy or not queue.pending:
            return
        run = queue.pending[0]
        if len(run.issued) == len(run.channel.members):
            queue.pending.popleft()
            queue.busy = True
            run.start = self.now
            self.traffic.append(run)
            self._communicate(run)

    def _communicate(self, run: TrafficRun) -> None:
        traffic = run.traffic
        flow = self.network.flow(traffic, run.channel.members[0])
        activity = _Activity(run, traffic.seconds, self.now, flow.loads)
        if flow.loads and traffic.latency:
            activity.left, activity.later = traffic.latency, traffic.seconds - traffic.latency
        for number in run.channel.members:
            self.talking[number].add(activity)
        if flow.loads and not activity.later:
            self._flow(activity, begins=True)
        self._retime(activity)
        self._disturb(filter(None, (self.computing[number] for number in run.channel.members)))

    def _flow(self, activity: _Activity, *, begins: bool) -> None:
        """Share the ports anew when bytes begin to flow, or have."""
        if begins:
            self.flowing.append(activity)
        else:
            self.flowing.remove(activity)
        rates = fair_rates([each.loads for each in self.flowing])
        for each, rate in zip(self.flowing, rates, strict=True):
            if each.share != rate:
                each.share = rate
                self._retime(each)

    def _ended(self, activity: _Activity) -> None:
        what = activity.what
        if isinstance(what, SpanRun):
            what.end = self.now
            seconds = what.span.ends[self.columns[what.number]][-1]
            what.progress.append((self.now, seconds))
            self.computed[what.number] += seconds
            self.computing[what.number] = None
            self._disturb(self.talking[what.number])
            self._go_on(what.number)
        elif isinstance(what, WaitRun):
            self._resume(what)
        elif activity.later:
            activity.left, activity.since, activity.later = activity.later, self.now, 0.0
            activity.rate = 0.0
            self._flow(activity, begins=True)
            self._retime(activity)
        else:
            self._arrived(what, activity)

    def _arrived(self, run: TrafficRun, activity: _Activity) -> None:
        run.end = self.now
        for number in run.channel.members:
            self.talking[number].remove(activity)
        if activity in self.flowing:
            self._flow(activity, begins=False)
        self._disturb(filter(None, (self.computing[number] for number in run.channel.members)))
        queue = self.queues[run.channel]
        queue.busy = False
        self._next(queue)
        for number in run.waiting:
            wait = self.entries[number][-1]
            assert isinstance(wait, WaitRun)
            if delay := self.interference[number].delay(self.computed[number]):
                late = _Activity(wait, delay, self.now, {}, rate=1.0)
                heappush(self.events, (self.now + delay, next(self.order), late.version, late))
            else:
                self._resume(wait)

    def _resume(self, wait: WaitRun) -> None:
        """What was waited for is there, and the compute stream goes on."""
        wait.end, number = self.now, wait.number
        self.computed[number] = 0.0
        if wait.start == self.now:
            self.entries[number].pop()
        self._go_on(number)

    def _disturb(self, activities: Iterable[_Activity]) -> None:
        for activity in activities:
            self._retime(activity)

    def _rate(self, activity: _Activity) -> float:
        """How many undisturbed seconds of an activity are done in a second."""
        what = activity.what
        if isinstance(what, SpanRun):
            return 1.0 / self.interference[what.number].compute if self.talking[what.number] else 1.0
        assert isinstance(what, TrafficRun), "a wait goes on at its own rate"
        disturbed = (m for m in what.channel.members if self.computing[m] is not None)
        return activity.share / max((self.interference[m].communication for m in disturbed), default=1.0)

    def _retime(self, activity: _Activity) -> None:
        """Go on at the rate that now holds."""
        rate = self._rate(activity)
        if rate == activity.rate:
            return
        if activity.rate:
            activity.left -= (self.now - activity.since) * activity.rate
            if isinstance(what := activity.what, SpanRun):
                what.progress.append((self.now, what.span.ends[self.columns[what.number]][-1] - activity.left))
        activity.since, activity.rate = self.now, rate
        activity.version += 1
        heappush(self.events, (self.now + max(activity.left, 0.0) / rate, next(self.order), activity.version, activity))
