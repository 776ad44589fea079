"""
The events of a step: compute streams and channels that work at rates, which change when other work begins or ends.

A class of ranks executes its program. A span keeps its compute stream busy; traffic begins when all participants have
issued it and its channel is free. While a rank computes and communicates, both take longer by the cluster's factor of
interference; after a wait the rank resumes later by the cluster's delay. Traffic through the same port shares it. At
every begin and end, the work done so far by each affected activity is subtracted at its old rate, and the remaining
work continues at its new rate.
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
    """A span on the compute stream of a class; `progress` lists times with the undisturbed seconds done by then."""

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
        before: the previous traffic in the channel.
        issued: for each class, the time when it issued the traffic.
        taken: for each class, the time when its compute stream had waited for the traffic.
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
    """A wait of the compute stream of a class for traffic."""

    number: int
    run: TrafficRun
    start: float
    end: float = 0.0


Entry = SpanRun | WaitRun
"""A period of a compute stream."""


@dataclass(frozen=True)
class Execution:
    """A simulated run: the periods of each class's compute stream in order, and all traffic in the order of begins."""

    entries: tuple[list[Entry], ...]
    traffic: list[TrafficRun]


@dataclass(eq=False, slots=True)
class _Activity:
    """Work in progress: `left` undisturbed seconds at the time `since`."""

    what: SpanRun | TrafficRun | WaitRun
    left: float
    since: float
    loads: Mapping[str, float]
    rate: float = 0.0
    share: float = 1.0
    version: int = 0
    later: float = 0.0
    """While traffic is in its latency, the seconds of its bytes, which follow."""


@dataclass(eq=False, slots=True)
class _Queue:
    """A channel: the traffic issued, in order, and whether some is in progress."""

    runs: dict[tuple[Traffic, int], TrafficRun] = field(default_factory=dict[tuple[Traffic, int], TrafficRun])
    pending: deque[TrafficRun] = field(default_factory=deque[TrafficRun])
    last: TrafficRun | None = None
    busy: bool = False


class Engine:
    """
    Simulates one step; an instance is used once.

    Args:
        programs: the program of each class.
        columns: for each class, its index among the classes of its program, which selects the times of spans.
        interference: the interference of each class.
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
        """Undisturbed seconds of each class since it last waited."""
        self.computing: list[_Activity | None] = [None] * len(programs)
        self.talking: list[set[_Activity]] = [set() for _ in programs]
        self.flowing: list[_Activity] = []
        self.queues: dict[Channel, _Queue] = {}
        self.events: list[tuple[float, int, int, _Activity]] = []
        self.order = count()

    def run(self) -> Execution:
        """Execute the programs of all classes."""
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
        """Execute the program of a class up to the next instruction that takes time."""
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
        """Begin the first traffic of a queue, if all members have issued it."""
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
        """Share the ports again when the bytes of an activity begin or end to flow."""
        if begins:
            self.flowing.append(activity)
        else:
            self.flowing.remove(activity)
        rates = fair_rates([flowing.loads for flowing in self.flowing])
        for flowing, rate in zip(self.flowing, rates, strict=True):
            if flowing.share != rate:
                flowing.share = rate
                self._retime(flowing)

    def _ended(self, activity: _Activity) -> None:
        work = activity.what
        if isinstance(work, SpanRun):
            work.end = self.now
            seconds = work.span.ends[self.columns[work.number]][-1]
            work.progress.append((self.now, seconds))
            self.computed[work.number] += seconds
            self.computing[work.number] = None
            self._disturb(self.talking[work.number])
            self._go_on(work.number)
        elif isinstance(work, WaitRun):
            self._resume(work)
        elif activity.later:
            activity.left, activity.since, activity.later = activity.later, self.now, 0.0
            activity.rate = 0.0
            self._flow(activity, begins=True)
            self._retime(activity)
        else:
            self._arrived(work, activity)

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
        """Let the compute stream resume after the traffic it waited for has ended."""
        wait.end, number = self.now, wait.number
        self.computed[number] = 0.0
        if wait.start == self.now:
            self.entries[number].pop()
        self._go_on(number)

    def _disturb(self, activities: Iterable[_Activity]) -> None:
        for activity in activities:
            self._retime(activity)

    def _rate(self, activity: _Activity) -> float:
        """Return the undisturbed seconds of an activity that are done in one second."""
        work = activity.what
        if isinstance(work, SpanRun):
            return 1.0 / self.interference[work.number].compute if self.talking[work.number] else 1.0
        assert isinstance(work, TrafficRun), "a wait goes on at its own rate"
        disturbed = (m for m in work.channel.members if self.computing[m] is not None)
        return activity.share / max((self.interference[m].communication for m in disturbed), default=1.0)

    def _retime(self, activity: _Activity) -> None:
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
