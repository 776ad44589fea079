"""
A profile on one rank: all tasks in turn, round after round, until the time is up.

Every rank receives the measurements of all ranks and holds the same journal. So all ranks choose the same tasks in the
same order without further communication. A slow moment of the machine affects one round of some tasks, and not all
rounds of one task.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import torch
import torch.distributed as dist

from ...ir.mesh import Mesh
from ..communicator import Communicator
from ..faults import is_lost_peer
from ..host_memory import keep_freed_memory
from ..rank_devices import backend_of
from .clock import Clock
from .devices import HostLoadMonitor, device_name, memory_bytes
from .interference import Delays, InterferenceMeter
from .journal import Journal, ProfileError, middle_seconds
from .rehearsal import Rehearsal, RehearsalError, Rehearsing
from .samples import REFUSALS, OpSample
from .tasks import (
    LEAST_BYTES,
    MOST_BYTES,
    ProfileTask,
    exchange_task,
    exchanges,
    groups_of,
    op_tasks,
    overhead_task,
    sizes_between,
)

QUICK_SECONDS = 30.0
"""The time below which only every other size is measured."""

_LEAST_ROUNDS = 3
_WINDOW = (0.004, 0.025)
"""The bounds on the seconds of one measurement, if single calls are short."""

_LEAST_CALLS, _LONG_WINDOW = 16, 0.1
"""The least number of calls, unless they exceed these seconds: calls vary by milliseconds if processes share cores."""

_SLOWEST_SHARE = 1 / 300
"""Upper bound on the time of a single call, relative to the time of the profile."""

_FAIR = 2.0
"""A task that has taken this many times the mean of all tasks is not repeated, which leaves time for the others."""

_REHEARSED = 0.3
"""The share of the time for rehearsals if the network is measured too."""

_INTERFERENCE_ROUNDS = 8
_DELAY_ROUNDS = 5
_SAVE_SECONDS = 2.0

_WATCH_SECONDS = 0.25
"""Seconds between two readings of the load by other processes; the system's counters are too imprecise for fewer."""


@dataclass(frozen=True)
class ProfileRequest:
    """
    A request for measurements.

    Args:
        rehearsals: plans with these ops. On CPUs, ops are timed inside their plans, and only the remaining ops
            are timed in loops.
        network: whether to measure collectives, transfers, interference and the overhead of a step too, and to
            skip slow tasks. Otherwise every sample is required, and rehearsals get all the time.
        progress: file for the measurements so far, or None to write no file.
        resume: whether to resume from this file.
    """

    mesh: Mesh
    samples: tuple[OpSample, ...]
    seconds: float
    network: bool = True
    progress: Path | None = None
    resume: bool = False
    rehearsals: tuple[Rehearsal, ...] = ()


class Observer(Protocol):
    """Receives the progress of a profile on rank 0."""

    def at(self, done: float, what: str) -> None:
        """Receive the fraction of the work that is done, and the name of the next task."""
        ...

    def saved(self, journal: Journal) -> None:
        """Receive the journal whenever it is saved, and at the end, also after an error."""
        ...


def profile_rank(request: ProfileRequest, device: torch.device, observe: Observer | None = None) -> Journal:
    """
    Measure as one rank of a job; every rank must call this with the same request.

    Args:
        observe: called with the progress, on rank 0.

    Raises:
        ProfileError: the mesh and the job differ in their numbers of ranks, or there is nothing to resume from.
        RuntimeError: another rank was lost; the measurements so far are in the file of progress.
    """
    if (world := dist.get_world_size()) != request.mesh.device_count:
        text = f"mesh {request.mesh} has {request.mesh.device_count} ranks, this job has {world}; give another --mesh"
        raise ProfileError(text)
    if device.type == "cpu":
        keep_freed_memory()
    clock = Clock(device)
    journal = _begun(request, clock)
    session = _Session(request, clock, journal, observe)
    try:
        session.run()
    except BaseException as error:
        journal.trouble = reason(error)
        raise
    finally:
        session.save()
    return journal


def reason(error: BaseException) -> str:
    """Return the reason why the measurement ended, in a line."""
    if is_lost_peer(error):
        return "another rank was lost"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def profile_here(request: ProfileRequest, observe: Observer | None = None) -> Journal:
    """Measure as one of the processes that `run_ranks` started on this machine."""
    os.environ["LOCAL_WORLD_SIZE"] = str(dist.get_world_size())
    return profile_rank(request, torch.device("cpu"), observe)


def _begun(request: ProfileRequest, clock: Clock) -> Journal:
    """Return the journal to resume from, or a new journal."""
    devices = clock.everyone((device_name(clock.device), memory_bytes(clock.device)))
    about = {
        "mesh": [[axis.name, axis.size] for axis in request.mesh.spatial],
        "backend": backend_of(clock.device),
        "devices": [list(device) for device in devices],  # pyright: ignore[reportArgumentType]
    }
    resumed: Journal | ProfileError | None = None
    if request.resume and clock.rank == 0:
        resumed = _resumed(request, about)
    resumed = clock.share(resumed)
    if isinstance(resumed, ProfileError):
        raise resumed
    return replace(resumed, trouble="") if isinstance(resumed, Journal) else Journal(about)


def _resumed(request: ProfileRequest, about: dict[str, object]) -> Journal | ProfileError:
    if request.progress is None:
        return ProfileError("cannot resume: the output is not a file")
    try:
        journal = Journal.load(request.progress)
    except ProfileError as error:
        return error
    for what, value in about.items():
        # The free memory of a machine may change even if nothing else does.
        if what != "devices" and journal.about.get(what) != value:
            was = journal.about.get(what)
            return ProfileError(f"{request.progress} is of another job: {what} was {was}, is {value} here")
    return journal


class _Session:
    def __init__(self, request: ProfileRequest, clock: Clock, journal: Journal, observe: Observer | None) -> None:
        self._request, self._clock, self._journal, self._observe = request, clock, journal, observe
        self._saved, self._began = 0.0, time.perf_counter()
        self._too_slow, self._spent = set[str](), defaultdict[str, float](float)
        self._last_two: dict[str, tuple[float, float]] = {}
        self._others, self._watched, self._looked = HostLoadMonitor(clock), list[str](), 0.0
        self._comm = Communicator(request.mesh, groups_of(request.mesh), clock.device)
        self._tasks = sorted(self._planned(), key=lambda task: not task.needed)
        low, high = _WINDOW
        self._window = min(max(request.seconds / (2 * _LEAST_ROUNDS * max(len(self._tasks), 1)), low), high)

    def _planned(self) -> Iterator[ProfileTask]:
        request, device = self._request, self._clock.device
        if request.network:
            factor = 4 if request.seconds >= QUICK_SECONDS else 16
            sizes = sizes_between(LEAST_BYTES, MOST_BYTES, factor)
            every = exchanges(request.mesh, backend_of(device), sizes)
            yield from (exchange_task(task, self._comm) for task in every)
            yield overhead_task(request.mesh, device)
        yield from op_tasks(request.samples, device)

    def run(self) -> None:
        """Run all rehearsals, all rounds, and the measurement of interference."""
        rounds, rehearsed = 0, self._rehearse()
        self._tasks = [task for task in self._tasks if task.name not in rehearsed]
        while self._tasks and (rounds < 1 or self._elapsed() < self._request.seconds):
            self._round(rounds)
            self._look_around(self._elapsed())
            rounds += 1
        if self._request.network and self._request.mesh.device_count > 1:
            self._interfere()

    def _rehearse(self) -> set[str]:
        """Run each rehearsal in its share of the time; return the names of the timed ops."""
        rehearsals, done = self._request.rehearsals, set[str]()
        available = self._request.seconds * (_REHEARSED if self._request.network else 1.0)
        if self._clock.device.type != "cpu":
            # On other devices ops take as long in a loop as in a program.
            return done
        for number, rehearsal in enumerate(rehearsals):
            self._tell(number / len(rehearsals), f"rehearsal of {rehearsal.name}")
            try:
                rehearsing = Rehearsing(rehearsal, self._clock)
            except RehearsalError as error:
                self._journal.left_out[f"rehearsal of {rehearsal.name}"] = f"it fails on made up numbers: {error}"
                continue
            turns, until = 0, available * (number + 1) / len(rehearsals)
            while turns < _LEAST_ROUNDS or self._elapsed() < until:
                for key, by_rank in rehearsing.turn().items():
                    self._journal.seconds.setdefault(key, []).append(by_rank)
                    self._watched.append(key)
                done.update(self._watched)
                self._look_around(self._elapsed())
                turns += 1
        return done

    def _round(self, number: int) -> None:
        for index, task in enumerate(self._tasks):
            done = len(self._journal.seconds.get(task.name, ()))
            if task.name in self._journal.left_out or done > number or (not done and task.series in self._too_slow):
                continue
            now = self._elapsed()
            if now - self._looked > _WATCH_SECONDS:
                self._look_around(now)
            if number and now > self._request.seconds:
                return
            if number and self._spent[task.name] > _FAIR * now / len(self._tasks):
                continue
            self._tell(self._share(number, index), task.name)
            self._measure(task)

    def _measure(self, task: ProfileTask) -> None:
        """Measure a task once, unless it takes too much of the available time."""
        clock, journal = self._clock, self._journal
        before, most = journal.seconds.get(task.name), self._request.seconds * _SLOWEST_SHARE
        shorter, last = self._last_two.get(task.series, (0.0, 0.0))
        # The time of a call grows with the size, and the next size is four times as large.
        if before is None and task.together and last > most / 2 and last > 2 * shorter > 0:
            self._leave_out(task, f"one call of the size before takes {last:.2g} s", most)
            return
        if (run := self._made(task, warm=before is None)) is None:
            return
        expected = middle_seconds(before) if before is not None and not task.timed else self._first_look(run)
        if before is None and self._request.network and expected > most and last:
            self._leave_out(task, f"one call takes {expected:.2g} s", most)
            return
        if before is None:
            self._last_two[task.series] = (last, expected)
        least = min(_LEAST_CALLS, int(_LONG_WINDOW / expected)) if task.together else 1
        count = max(round(self._window / expected), least, 1)
        clock.wait_for_all()
        if task.timed:
            spent = statistics.fmean(cast("float", run()) for _ in range(count))
        elif task.together:
            spent = clock.calls(run, count)
        else:
            spent = clock.window(run, self._window, max(count // 8, 1))
        journal.seconds.setdefault(task.name, []).append(clock.by_rank(spent))
        self._spent[task.name] += count * expected
        self._watched.append(task.name)

    def _leave_out(self, task: ProfileTask, found: str, most: float) -> None:
        """Leave out a task, and all larger tasks of its series."""
        self._journal.left_out[task.name] = f"{found}, but the limit is {most:.2g} s"
        self._too_slow.add(task.series)

    def _look_around(self, now: float) -> None:
        """Record the load by other processes during the last tasks."""
        self._looked, share = now, self._others.share()
        for name in self._watched:
            self._journal.others.setdefault(name, []).append(share)
        self._watched.clear()

    def _made(self, task: ProfileTask, *, warm: bool) -> Callable[[], object] | None:
        """Return a function that runs the task once, warmed up if `warm`, or None if torch rejects it on some rank."""
        run: Callable[[], object] | None = None
        refusal = ""
        try:
            run = task.make()
            if warm and not task.together:
                run()
        except REFUSALS as error:
            if task.together:
                raise
            refusal = str(error).splitlines()[0]
        if warm and self._clock.slowest(float(run is None or bool(refusal))):
            self._journal.left_out[task.name] = f"torch refuses it: {refusal or 'on another rank'}"
            return None
        return run

    def _first_look(self, run: Callable[[], object]) -> float:
        """Return the approximate seconds of one call on the slowest rank."""
        self._clock.wait_for_all()
        once = self._clock.slowest(self._clock.calls(run, 1))
        # The first calls connect ranks and touch new memory.
        return once if once > self._window / 4 else self._clock.slowest(self._clock.calls(run, 3))

    def _interfere(self) -> None:
        measuring = InterferenceMeter(self._comm, self._clock)
        while len(self._journal.interference) < _INTERFERENCE_ROUNDS:
            self._journal.interference.append(list(measuring.measure()))
        if self._clock.device.type != "cpu":
            return
        delays = Delays(self._comm, self._clock)
        while len(self._journal.delays) < _DELAY_ROUNDS:
            self._journal.delays.append(delays.measure())

    def _elapsed(self) -> float:
        """Return for how long rank 0 has measured, the same number on all ranks."""
        return self._clock.by_rank(time.perf_counter() - self._began)[0]

    def _share(self, number: int, index: int) -> float:
        """Return the fraction of the work that is done when a task of a round begins."""
        if number == 0:
            return index / len(self._tasks) / _LEAST_ROUNDS
        return max((time.perf_counter() - self._began) / self._request.seconds, 1 / _LEAST_ROUNDS)

    def _tell(self, done: float, what: str) -> None:
        if self._clock.rank or self._observe is None:
            return
        if time.perf_counter() - self._saved > _SAVE_SECONDS:
            self.save()
        self._observe.at(min(done, 1.0), what)

    def save(self) -> None:
        """Save the measurements so far, on rank 0."""
        self._saved = time.perf_counter()
        if self._clock.rank:
            return
        if self._request.progress is not None:
            self._journal.save(self._request.progress)
        if self._observe is not None:
            self._observe.saved(self._journal)
