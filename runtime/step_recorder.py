"""
Measurement of a running step: when this rank computes, and when its messages are in flight.

A rank that does not wait computes. The communicator reports the operations that it starts, and its waits; programs with
ranges by layer (`layer_ranges`) report the phase of the step. The end of asynchronous work is recorded by an extra
waiter, which waits first: a thread per channel on a CPU, and on CUDA an event on a stream per channel. So a recorded
step runs the same calls in the same order. Without a recorder, nothing is recorded.

torch.profiler cannot replace this recorder: on gloo it ends a receive when the program waits for it, and not when the
message arrives, and most collectives on gloo consist of sends and receives (`collectives.Exchange`).
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from ..ir.measured_steps import TRANSFER, MeasuredRank, MeasuredTraffic
from ..ir.overlap import PHASES, Span, merged, without
from .requests import Pending, Request
from .transfers import Arrival, Transfer


@dataclass
class PlaceInProgram:
    """The layer that the main thread computes, as ``backward h.0.mlp.up``; empty if unknown."""

    layer: str = ""


PLACE = PlaceInProgram()


def profiler_on() -> bool:
    """Whether torch's profiler watches this process."""
    return torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateImportUsage]


def named_range(what: str, over: str) -> AbstractContextManager[object]:
    """
    Return a profiler range for communication, as ``all_gather over gpu, forward h.0.mlp.up``; empty without a profiler.

    Args:
        what: the kind of collective, or the action on it.
        over: axes of the collective, or label of a transfer.
    """
    if not profiler_on():
        return _NO_RANGE
    at = f", {PLACE.layer}" if PLACE.layer else ""
    return torch.profiler.record_function(f"{what} over {over}{at}")


_NO_RANGE = nullcontext()


_Instant: TypeAlias = "float | torch.cuda.Event"
_Wait: TypeAlias = Callable[[], Any]

_FOR_THREADS = 5.0
"""How long to wait at the end for the threads that follow work, in seconds."""


@dataclass
class _UnderWay:
    """A collective or transfer in flight."""

    kind: str
    channel: str
    key: str
    where: str
    phase: str
    bytes: int
    start: _Instant
    end: _Instant | None = None


_Followed: TypeAlias = tuple[_UnderWay, _Wait, "Future[Any]"]
"""A wait that the thread of a channel does for the main thread, and its result."""


class _Instants(ABC):
    """A source of instants of this rank, and of the ends of asynchronous work."""

    def begin(self) -> None:
        """Begin a step."""

    @abstractmethod
    def now(self) -> Any:
        """Return the instant when the device reaches this point of the program."""

    @abstractmethod
    def follow(self, call: _UnderWay, wait: _Wait) -> _Wait:
        """Record the end of `wait`, a wait for asynchronous work; return the function to call in its place."""

    @abstractmethod
    def seconds(self) -> Callable[[Any], float]:
        """End a step; return a function from its instants to seconds of the host's clock."""

    def close(self) -> None:
        """End the threads that follow work."""


class CpuClock(_Instants):
    """A source of instants in seconds of the clock that all processes of a host share."""

    def __init__(self) -> None:
        self._queues: dict[str, queue.SimpleQueue[_Followed | None]] = {}
        self._threads: list[threading.Thread] = []

    def now(self) -> float:
        return time.perf_counter()

    def follow(self, call: _UnderWay, wait: _Wait) -> _Wait:
        # The thread of the channel waits, in the order of the starts.
        if call.channel not in self._queues:
            self._queues[call.channel] = queue.SimpleQueue()
            name = f"shardwright recorder of {call.channel}"
            thread = threading.Thread(target=_follow, args=(self._queues[call.channel],), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        result = Future[Any]()
        self._queues[call.channel].put((call, wait, result))
        return result.result

    def seconds(self) -> Callable[[Any], float]:
        return float

    def close(self) -> None:
        # A thread that still runs when the process ends would abort it.
        for waits in self._queues.values():
            waits.put(None)
        self._queues.clear()
        # A thread outlives the limit only if it waits for a lost rank, an error that the main thread also sees.
        until = time.perf_counter() + _FOR_THREADS
        for thread in self._threads:
            thread.join(max(0.0, until - time.perf_counter()))
        self._threads.clear()


def _follow(given: queue.SimpleQueue[_Followed | None]) -> None:
    with torch.no_grad():
        while (followed := given.get()) is not None:
            call, wait, result = followed
            try:
                waited, error = wait(), None
            except BaseException as raised:
                waited, error = None, raised
            call.end = time.perf_counter()
            if error is None:
                result.set_result(waited)
            else:
                result.set_exception(error)


class CudaClock(_Instants):
    """A source of events as instants; the host waits for the device before and after each step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._first = self._event()
        self._began = 0.0

    def _event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def begin(self) -> None:
        torch.cuda.synchronize(self._device)
        self._began, self._first = time.perf_counter(), self._event()
        self._first.record(torch.cuda.current_stream(self._device))

    def now(self) -> torch.cuda.Event:
        event = self._event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def follow(self, call: _UnderWay, wait: _Wait) -> _Wait:
        # A separate stream of the channel waits as well, without blocking other streams.
        if call.channel not in self._streams:
            self._streams[call.channel] = torch.cuda.Stream(self._device)
        stream = self._streams[call.channel]
        with torch.cuda.stream(stream):
            wait()
            call.end = self._event()
            call.end.record(stream)
        return wait

    def seconds(self) -> Callable[[Any], float]:
        torch.cuda.synchronize(self._device)
        return lambda event: self._began + self._first.elapsed_time(event) / 1e3


@dataclass
class _StepNotes:
    """The notes on a step while it runs."""

    start: _Instant
    calls: list[_UnderWay] = field(default_factory=list[_UnderWay])
    phases: list[tuple[str, _Instant]] = field(default_factory=list[tuple[str, _Instant]])
    waits: list[tuple[_Instant, _Instant]] = field(default_factory=list[tuple[_Instant, _Instant]])
    counts: Counter[str] = field(default_factory=Counter[str])


class StepRecorder:
    """
    Records the steps of one rank while it is on (`recording`).

    Args:
        stages: ranks of each stage, in order.
        first: phase at the start of a step; ``all`` if the program does not report its phases.
    """

    def __init__(
        self, device: torch.device, rank: int, stages: Sequence[Sequence[int]], first: str = PHASES[0]
    ) -> None:
        self._clock = CudaClock(device) if device.type == "cuda" else CpuClock()
        self._rank = rank
        self._stages = {tuple(ranks): number for number, ranks in enumerate(stages)}
        mine = next(number for ranks, number in self._stages.items() if rank in ranks)
        self._stage = mine if len(stages) > 1 else None
        self._first = first
        self._now: _StepNotes | None = None
        self.steps: list[MeasuredRank] = []

    @contextmanager
    def recording(self) -> Generator[None, None, None]:
        """Record the steps of this process inside the context."""
        before, RECORDING.recorder = RECORDING.recorder, self
        try:
            yield
        finally:
            RECORDING.recorder = before
            self._clock.close()

    @contextmanager
    def step(self) -> Generator[None, None, None]:
        """Record a step inside the context, unless it fails."""
        self._clock.begin()
        start = self._clock.now()
        self._now = _StepNotes(start, phases=[(self._first, start)])
        try:
            yield
            self.steps.append(self._measured(self._now, self._clock.now()))
        finally:
            self._now = None

    def enter(self, phase: str) -> None:
        """Record that the program enters another phase of the step."""
        if self._now is not None and self._now.phases[-1][0] != phase:
            self._now.phases.append((phase, self._clock.now()))

    def collective(self, request: Request, ranks: Sequence[int], begin: Callable[[], Pending], now: bool) -> Pending:
        """
        Begin a collective, and record it.

        Args:
            ranks: ranks of the job that take part.
            begin: function that begins the collective.
            now: whether the caller waits for it at once.
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
            # The phases of such a collective wait for one another, so it runs during its `finish`.
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
        return Arrival(self._waited(self._clock.follow(self._crossing(transfer, part, 0), arrival.wait)))

    def waiting(self, wait: _Wait) -> Any:
        """Run a function that waits for other ranks, and record the wait."""
        return self._waited(wait)()

    def _crossing(self, transfer: Transfer, part: int, size: int) -> _UnderWay:
        ends = (self._stages.get(holders.ranks, holders.ranks) for holders in (transfer.source, transfer.target))
        channel = "stage {} to {}".format(*ends)
        return self._begun(TRANSFER, channel, f"{transfer.label} {part}", transfer.label, size)

    def _begun(self, kind: str, channel: str, key: str, where: str, size: int) -> _UnderWay:
        assert self._now is not None
        phase = self._now.phases[-1][0]
        self._now.calls.append(_UnderWay(kind, channel, key, where, phase, size, self._clock.now()))
        return self._now.calls[-1]

    def _waited(self, wait: _Wait, call: _UnderWay | None = None) -> _Wait:
        """Wrap a wait so that it is recorded; its end is also the end of `call`, if given."""

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
        ends = [None if call.end is None else seconds(call.end) for call in step.calls]
        traffic = tuple(
            MeasuredTraffic(**{**vars(call), "start": seconds(call.start), "end": end})
            for call, end in zip(step.calls, ends, strict=True)
        )
        waits = [(seconds(start), seconds(stop)) for start, stop in step.waits]
        phases = [(phase, seconds(start)) for phase, start in step.phases]
        start, stop = seconds(step.start), seconds(end)
        return MeasuredRank(self._rank, self._stage, start, stop, computed(phases, stop, waits), traffic)


@dataclass
class _RecorderOfSteps:
    """The recorder of this process's steps, or None while recording is off."""

    recorder: StepRecorder | None = None


RECORDING = _RecorderOfSteps()


def computed(phases: Sequence[tuple[str, float]], end: float, waits: Sequence[Span]) -> Mapping[str, tuple[Span, ...]]:
    """
    Return the spans when a rank computes, outside its waits, by phase.

    Args:
        phases: phases of the step, each with its start.
        waits: spans when the rank waits.
    """
    spans_by_phase: defaultdict[str, list[Span]] = defaultdict(list)
    ends = [start for _, start in phases[1:]] + [end]
    for (phase, start), stop in zip(phases, ends, strict=True):
        spans_by_phase[phase] += without(merged([(start, stop)]), merged(waits))
    return {phase: tuple(spans) for phase, spans in spans_by_phase.items()}


@dataclass(frozen=True)
class _NotedWork:
    """A handle like torch's for asynchronous work."""

    wait: _Wait
