"""
Measuring a step where it runs: when this rank computes, and when what it sends is under way.

A rank that does not wait computes. The communicator says what it starts, and where it waits; programs with ranges by
layer (`layer_ranges`) say which phase of the step they are in. When asynchronous work is over is noted by whoever waits
for it first: on a CPU that is a thread for each channel, on CUDA a stream for each channel, on which an event is
recorded. So a recorded step runs the same calls in the same order, and nothing is recorded unless a recorder is on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch

from ..ir.measured_steps import TRANSFER, MeasuredRank, MeasuredTraffic
from ..ir.overlap import PHASES, Span, merged, without
from .place import PLACE
from .requests import Pending, Request
from .transfers import Arrival, Transfer

_Instant: TypeAlias = "float | torch.cuda.Event"
_Wait: TypeAlias = Callable[[], Any]

_FOR_THREADS = 5.0
"""Seconds for which threads that follow work are waited for at the end."""


@dataclass
class _UnderWay:
    """A collective or transfer while it is under way."""

    kind: str
    channel: str
    key: str
    where: str
    phase: str
    bytes: int
    start: _Instant
    end: _Instant | None = None


class _Instants(Protocol):
    """Instants of this rank, and when others' work is over."""

    def begin(self) -> None:
        """A step begins."""
        ...

    def now(self) -> _Instant:
        """When the device has come to here."""
        ...

    def follow(self, call: _UnderWay, wait: _Wait) -> _Wait:
        """Note when `wait`, which waits for work under way, is over; what to call instead of it."""
        ...

    def seconds(self) -> Callable[[_Instant], float]:
        """What turns the instants of the step that ends now into seconds of the host's clock."""
        ...

    def close(self) -> None:
        """End what follows."""
        ...


class _Followed:
    """One wait that the thread of a channel does for the main thread."""

    def __init__(self, call: _UnderWay, wait: _Wait) -> None:
        self._call, self._run = call, wait
        self._result: Any = None
        self._error: BaseException | None = None
        self._over = threading.Lock()
        self._over.acquire()

    def run(self) -> None:
        """In the thread."""
        try:
            self._result = self._run()
        except BaseException as error:
            self._error = error
        self._call.end = time.perf_counter()
        self._over.release()

    def wait(self) -> Any:
        """In the main thread."""
        with self._over:
            pass
        if self._error is not None:
            raise self._error
        return self._result


class CpuClock:
    """Instants are seconds of the clock that all processes of a host share."""

    def __init__(self) -> None:
        self._queues: dict[str, queue.SimpleQueue[_Followed | None]] = {}
        self._threads: list[threading.Thread] = []

    def begin(self) -> None:
        """Nothing is to be done."""

    def now(self) -> float:
        """The time."""
        return time.perf_counter()

    def follow(self, call: _UnderWay, wait: _Wait) -> _Wait:
        """Have the thread of the channel wait, in the order in which work was started."""
        if call.channel not in self._queues:
            self._queues[call.channel] = queue.SimpleQueue()
            name = f"shardwright recorder of {call.channel}"
            thread = threading.Thread(target=_follow, args=(self._queues[call.channel],), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        followed = _Followed(call, wait)
        self._queues[call.channel].put(followed)
        return followed.wait

    def seconds(self) -> Callable[[Any], float]:
        """They are."""
        return float

    def close(self) -> None:
        """End the threads; one that still ran when the process ends would abort it."""
        for each in self._queues.values():
            each.put(None)
        self._queues.clear()
        # Without end only where what a thread waits for was lost, which the main thread has been told.
        until = time.perf_counter() + _FOR_THREADS
        for thread in self._threads:
            thread.join(max(0.0, until - time.perf_counter()))
        self._threads.clear()


def _follow(given: queue.SimpleQueue[_Followed | None]) -> None:
    with torch.no_grad():
        while (followed := given.get()) is not None:
            followed.run()


class CudaClock:
    """Instants are events; before the first and after the last one of a step the host waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._first = self._event()
        self._began = 0.0

    def _event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def begin(self) -> None:
        """The first event, when the device has nothing left to do."""
        torch.cuda.synchronize(self._device)
        self._began, self._first = time.perf_counter(), self._event()
        self._first.record(torch.cuda.current_stream(self._device))

    def now(self) -> torch.cuda.Event:
        """An event on the current stream."""
        event = self._event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def follow(self, call: _UnderWay, wait: _Wait) -> _Wait:
        """Have a stream of the channel wait too, which blocks nobody else."""
        if call.channel not in self._streams:
            self._streams[call.channel] = torch.cuda.Stream(self._device)
        stream = self._streams[call.channel]
        with torch.cuda.stream(stream):
            wait()
            call.end = self._event()
            call.end.record(stream)
        return wait

    def seconds(self) -> Callable[[Any], float]:
        """By the times between events."""
        torch.cuda.synchronize(self._device)
        return lambda event: self._began + self._first.elapsed_time(event) / 1e3

    def close(self) -> None:
        """Nothing is to be done."""


@dataclass
class _StepNotes:
    """What is noted of a step while it runs."""

    start: _Instant
    calls: list[_UnderWay] = field(default_factory=list[_UnderWay])
    phases: list[tuple[str, _Instant]] = field(default_factory=list[tuple[str, _Instant]])
    waits: list[tuple[_Instant, _Instant]] = field(default_factory=list[tuple[_Instant, _Instant]])
    counts: Counter[str] = field(default_factory=Counter[str])


class StepRecorder:
    """
    Records the steps of one rank while it is on (`recording`).

    Args:
        device: where tensors are.
        rank: of the job.
        stages: the ranks of each stage, in order.
        first: the phase in which a step begins; ``all`` where the program does not say when others begin.
    """

    def __init__(
        self, device: torch.device, rank: int, stages: Sequence[Sequence[int]], first: str = PHASES[0]
    ) -> None:
        self._clock: _Instants = CudaClock(device) if device.type == "cuda" else CpuClock()
        self._rank = rank
        self._stages = {tuple(ranks): number for number, ranks in enumerate(stages)}
        mine = next(number for ranks, number in self._stages.items() if rank in ranks)
        self._stage = mine if len(stages) > 1 else None
        self._first = first
        self._now: _StepNotes | None = None
        self.steps: list[MeasuredRank] = []

    @contextmanager
    def recording(self) -> Generator[None, None, None]:
        """Inside, the steps of this process are recorded."""
        before, RECORDING.recorder = RECORDING.recorder, self
        try:
            yield
        finally:
            RECORDING.recorder = before
            self._clock.close()

    @contextmanager
    def step(self) -> Generator[None, None, None]:
        """Around a step; one that fails is not recorded."""
        self._clock.begin()
        start = self._clock.now()
        self._now = _StepNotes(start, phases=[(self._first, start)])
        try:
            yield
            end = self._clock.now()
            self.steps.append(self._measured(self._now, end))
        finally:
            self._now = None

    def enter(self, phase: str) -> None:
        """The program goes on with another phase of the step."""
        if self._now is not None and self._now.phases[-1][0] != phase:
            self._now.phases.append((phase, self._clock.now()))

    def collective(self, request: Request, ranks: Sequence[int], begin: Callable[[], Pending], now: bool) -> Pending:
        """
        Begin a collective, and record it.

        Args:
            ranks: of the job, that take part.
            begin: begins it.
            now: whether it is waited for at once.
        """
        if self._now is None:
            return begin()
        members = ",".join(map(str, sorted(ranks)))
        channel = " ".join(request.axes)
        number = self._now.counts[f"{channel} {members}"]
        self._now.counts[f"{channel} {members}"] += 1
        sent = sum(tensor.nbytes for tensor in request.tensors)
        call = self._begun(request.kind, channel, f"{channel} {members} {number}", PLACE.layer, sent)
        pending = begin()
        if not pending.works:
            # Its phases wait for one another, so it proceeds while it is waited for.
            return Pending([], self._waited(pending.finish, call))

        def arrive() -> None:
            for work in pending.works:
                if work is not None:
                    work.wait()

        wait = self._waited(arrive, call) if now else self._waited(self._clock.follow(call, arrive))
        return Pending([_NotedWork(wait)], pending.finish)

    def sent(self, transfer: Transfer, part: int, size: int) -> None:
        """Record that this rank begins to send its part of a transfer."""
        if self._now is not None:
            self._crossing(transfer, part, size)

    def received(self, transfer: Transfer, part: int, arrival: Arrival) -> Arrival:
        """Record that this rank has begun to receive its part of a transfer."""
        if self._now is None:
            return arrival
        call = self._crossing(transfer, part, 0)
        return Arrival(self._waited(self._clock.follow(call, arrival.wait)))

    def waiting(self, wait: _Wait) -> Any:
        """Do something that waits for other ranks."""
        return self._waited(wait)()

    def _crossing(self, transfer: Transfer, part: int, size: int) -> _UnderWay:
        ends = (self._stages.get(each.ranks, each.ranks) for each in (transfer.source, transfer.target))
        channel = "stage {} to {}".format(*ends)
        return self._begun(TRANSFER, channel, f"{transfer.label} {part}", transfer.label, size)

    def _begun(self, kind: str, channel: str, key: str, where: str, size: int) -> _UnderWay:
        assert self._now is not None
        phase = self._now.phases[-1][0]
        self._now.calls.append(_UnderWay(kind, channel, key, where, phase, size, self._clock.now()))
        return self._now.calls[-1]

    def _waited(self, wait: _Wait, call: _UnderWay | None = None) -> _Wait:
        """A wait that is noted, and with a call as the end of that."""

        def noted() -> Any:
            start = self._clock.now()
            result = wait()
            end = self._clock.now()
            if self._now is not None:
                self._now.waits.append((start, end))
            if call is not None:
                call.end = end
            return result

        return noted

    def _measured(self, step: _StepNotes, end: _Instant) -> MeasuredRank:
        seconds = self._clock.seconds()
        traffic = tuple(
            MeasuredTraffic(
                each.kind,
                each.channel,
                each.key,
                each.where,
                each.phase,
                each.bytes,
                seconds(each.start),
                None if each.end is None else seconds(each.end),
            )
            for each in step.calls
        )
        waits = [(seconds(start), seconds(stop)) for start, stop in step.waits]
        phases = [(phase, seconds(start)) for phase, start in step.phases]
        start, stop = seconds(step.start), seconds(end)
        return MeasuredRank(self._rank, self._stage, start, stop, computed(phases, stop, waits), traffic)


@dataclass
class _RecorderOfSteps:
    """What records the steps of this process; None for nothing."""

    recorder: StepRecorder | None = None


RECORDING = _RecorderOfSteps()


def computed(phases: Sequence[tuple[str, float]], end: float, waits: Sequence[Span]) -> Mapping[str, tuple[Span, ...]]:
    """
    When a rank computes, by phase: when it does not wait.

    Args:
        phases: the step's, each with its begin.
        end: of the step.
        waits: when it waits.
    """
    found: defaultdict[str, list[Span]] = defaultdict(list)
    ends = [start for _, start in phases[1:]] + [end]
    for (phase, start), stop in zip(phases, ends, strict=True):
        found[phase] += without(merged([(start, stop)]), merged(waits))
    return {phase: tuple(spans) for phase, spans in found.items()}


@dataclass(frozen=True)
class _NotedWork:
    """A handle as torch's: something to wait for."""

    wait: _Wait
