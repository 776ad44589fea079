"""Which rank is at fault, by the latest reports of all ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from .faults import DEVICE, FaultBounds, Patience, Phase

_FRESH_BEATS = 4
"""A rank whose last report is older than this many beats counts as silent."""

_SECONDS_TO_CONNECT = 1.0
"""How long a rank waits for a rank that has left, whose last messages may still arrive."""

_SILENT_FRACTION = 0.75
"""Fraction of the bound on silence after which a rank counts as silent, since other ranks started to wait later."""

_NOTICED_SECONDS = 0.01
"""The least excess per step of a slow rank; processes that share cores vary by less."""


@dataclass(frozen=True)
class Report:
    """
    The report of a rank.

    Args:
        beat: the number of this rank's reports.
        step: the latest training step that the rank began.
        calls: the number of the rank's waits.
        what: the present wait; empty if the rank does not wait.
        patient: bound of the present wait, if it may take long.
        line: the present line of the user's code.
        busy: seconds of a step without waits; 0 if unknown.
        lost: whether a collective failed because of another rank.
        work: CPU seconds of the process before its first step is complete; -1 from then on.
    """

    beat: int = 0
    phase: Phase = "script"
    step: int = 0
    calls: int = 0
    what: str = ""
    patient: Patience = ""
    line: str = ""
    busy: float = 0.0
    lost: bool = False
    work: float = -1.0

    def text(self) -> str:
        """Return the report as text for `parsed`."""
        return json.dumps(asdict(self))

    @staticmethod
    def parsed(text: str | bytes) -> Report:
        """Return the report of a text."""
        return Report(**json.loads(text))

    @property
    def progress(self) -> tuple[object, ...]:
        """A value that changes as long as the main thread makes progress."""
        return self.phase, self.step, self.calls, bool(self.what)

    def __str__(self) -> str:
        place = f"the script's code after step {self.step}" if self.step else "the script's code before the first step"
        if self.step and (self.phase == "step" or self.what):
            place = f"step {self.step}"
        if self.what:
            return f"{place}, in {self.what}"
        return f"{place}{f', {self.line}' if self.line else ''}"


@dataclass(frozen=True)
class Verdict:
    """
    The reason for the end of a job.

    Args:
        ranks: ranks at fault that may not end by themselves.
    """

    ranks: tuple[int, ...]
    text: str


@dataclass
class Judge:
    """
    Decides which rank is at fault, by the reports of all ranks.

    Args:
        stages: ranks of each stage, which should compute for equally long.
    """

    bounds: FaultBounds
    hosts: Sequence[str]
    stages: Sequence[Sequence[int]] = ()
    warned: bool = field(default=False, init=False)
    _reports: list[Report] = field(default_factory=list[Report], init=False)
    _heard: list[float] = field(default_factory=list[float], init=False)
    _moved: list[float] = field(default_factory=list[float], init=False)
    _worked: list[float] = field(default_factory=list[float], init=False)

    def see(self, reports: Sequence[Report], now: float, states: Mapping[int, str] = {}) -> Verdict | None:
        """
        Process the latest reports, and return a verdict if a rank is at fault.

        Args:
            now: seconds of a clock that stands still while this process is stopped.
            states: known states of the processes of some ranks, such as ``stopped``.
        """
        if not self._reports:
            self._heard, self._moved, self._worked = ([now] * len(reports) for _ in range(3))
        for rank, (old, new) in enumerate(zip(self._reports, reports)):
            if old.beat != new.beat:
                self._heard[rank] = now
            if old.progress != new.progress:
                self._moved[rank] = now
            if (old.progress, old.work) != (new.progress, new.work):
                self._worked[rank] = now
        self._reports = list(reports)
        return self._left(now) or self._lost(now) or self._silent(now, states)

    def _waiting(self, now: float) -> list[int]:
        """Return the ranks with recent reports that wait for others."""
        heard = [rank for rank, at in enumerate(self._heard) if now - at <= _FRESH_BEATS * self.bounds.beat]
        return [rank for rank in heard if self._reports[rank].what and self._reports[rank].phase in ("step", "script")]

    def _left(self, now: float) -> Verdict | None:
        """Find a rank whose script ended while others wait, or after a different number of steps."""
        left = [rank for rank, report in enumerate(self._reports) if report.phase == "left"]
        steps = {self._reports[rank].step for rank in left}
        if len(left) == len(self._reports) and len(steps) > 1:
            details = ", ".join(f"{report.step} on {self.named(rank)}" for rank, report in enumerate(self._reports))
            return Verdict(
                (), f"the ranks ran different numbers of training steps: {details}; give all ranks the same batches"
            )
        for rank in self._waiting(now) if left else ():
            mine, first = self._reports[rank], min(left, key=lambda other: self._reports[other].step)
            # The last reports of ranks that leave together may be a beat apart.
            waited = now - max(self._moved[rank], self._moved[first])
            if mine.lost or waited >= min(_SECONDS_TO_CONNECT, self.bounds.gone / 4):
                text = (
                    f"{self.named(first)} left early: its script ended after step {self._reports[first].step}, and "
                    f"{self.named(rank)} waits for it in {mine}; give all ranks the same number of steps, and end the "
                    "script on all at once"
                )
                return Verdict((), text)
        return None

    def _lost(self, now: float) -> Verdict | None:
        """Find a rank without recent reports that another rank has lost the connection to."""
        lost = [rank for rank, report in enumerate(self._reports) if report.lost]
        for rank, heard in enumerate(self._heard) if lost else ():
            if now - heard >= self.bounds.gone * 0.6 and self._reports[rank].phase in ("script", "step"):
                return Verdict((rank,), self.gone(rank, lost[0]))
        return None

    def gone(self, rank: int, seen_by: int, how: str = "") -> str:
        """
        Return the message about a dead rank.

        Args:
            seen_by: another rank, whose report tells where the job was.
            how: the signal that killed the rank, if known.
        """
        by = f" by {how}" if how else ""
        return (
            f"{self.named(rank)} is gone: it was killed{by} (the kernel kills processes when it runs out of memory: "
            f"see dmesg), crashed, or its machine failed; its last report was from {self._reports[rank]}, and "
            f"{self.named(seen_by)} is in {self._reports[seen_by]}; this ends the job"
        )

    def _silent(self, now: float, states: Mapping[int, str]) -> Verdict | None:
        """Find a rank that others have waited for longer than the bound."""
        waiting = [rank for rank in self._waiting(now) if rank not in states]
        long = [rank for rank in waiting if now - self._moved[rank] >= self.bounds.silent]
        if not long:
            return None
        begins, patience = self._begin(long, now, states), _SILENT_FRACTION * self.bounds.silent
        deaf = [rank for rank, at in enumerate(self._heard) if now - at >= patience and rank not in begins]
        over = [rank for rank in long if now - self._moved[rank] >= getattr(self.bounds, self._bound(rank))]
        if not deaf and not over:
            return None
        others = [rank for rank, report in enumerate(self._reports) if rank not in waiting and report.phase != "left"]
        still = [rank for rank in others if now - self._moved[rank] >= patience and rank not in begins]
        if not deaf and not still and (others or begins or any(self._reports[rank].what == DEVICE for rank in waiting)):
            return None
        if not (culprits := deaf or still):
            # All ranks wait: the ranks that are the furthest behind are to blame.
            least = min(self._reports[rank].step for rank in waiting)
            culprits = [rank for rank in waiting if self._reports[rank].step == least]
        bound = self._bound(over[0]) if over else "silent"
        return Verdict(tuple(culprits), self._silence(culprits, (over or long)[0], bound, now, states))

    def _begin(self, long: Sequence[int], now: float, states: Mapping[int, str]) -> set[int]:
        """Return the ranks before their first step that compute, or stopped reporting because their host is busy."""
        if any(now - self._moved[rank] >= self.bounds.start for rank in long):
            return set()
        before, ages = now - _SILENT_FRACTION * self.bounds.silent, enumerate(zip(self._heard, self._worked))
        alive = {rank for rank, (heard, worked) in ages if heard <= before or worked > before}
        return {rank for rank in alive if self._reports[rank].work >= 0 and rank not in states}

    def _bound(self, rank: int) -> str:
        """Return the name of the bound on a rank's wait for ranks that still report; other ranks have `silent`."""
        report = self._reports[rank]
        return report.patient or ("silent" if report.step else "start")

    def _silence(self, culprits: Sequence[int], waits: int, bound: str, now: float, states: Mapping[int, str]) -> str:
        first, seconds = culprits[0], now - self._moved[waits]
        names = self.named(first) + (f" and {len(culprits) - 1} more" if len(culprits) > 1 else "")
        state = f", {states[first]}" if first in states else ""
        where = f"{self._reports[first]}{state}"
        if waits in culprits:
            return (
                f"{names} got stuck for {seconds:.0f} s in {where}: all ranks wait for each other; look for a "
                "collective, or a call of the step, that not all ranks make"
            )
        return (
            f"{names} does not answer in {where}: {self.named(waits)} has waited {seconds:.0f} s in "
            f"{self._reports[waits]}; check what it is doing there, or raise {bound} of FaultBounds if that may take "
            "so long"
        )

    def slow(self) -> str:
        """Return a warning, once, about a rank that computes much longer than the others of its stage; else empty."""
        if self.warned or not self.bounds.slow:
            return ""
        for stage in self.stages or [range(len(self._reports))]:
            busy = {rank: self._reports[rank].busy for rank in stage}
            if len(busy) < 2 or not all(busy.values()):
                continue
            slowest = max(busy, key=lambda rank: busy[rank])
            usual = median(seconds for rank, seconds in busy.items() if rank != slowest)
            if busy[slowest] > self.bounds.slow * usual and busy[slowest] > usual + _NOTICED_SECONDS:
                self.warned = True
                return (
                    f"{self.named(slowest)} is slow: it computes for {busy[slowest]:.3g} s per step, the others for "
                    f"{usual:.3g} s, and they wait for it (step {self._reports[slowest].step}); free its machine, or "
                    "measure the ranks again (cluster='auto', or shardwright profile) to plan for it as it is"
                )
        return ""

    def named(self, rank: int) -> str:
        """Return the name of a rank with its host, for messages."""
        return f"rank {rank} ({self.hosts[rank]})"
