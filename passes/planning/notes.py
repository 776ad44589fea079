"""The records that a search over plans keeps of its candidates, and the limits of the search."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from xdsl.dialects.builtin import ModuleOp

from ..verification import first_fault
from .candidates import Candidate

LOG = logging.getLogger("shardwright.plan")

REPORT_SECONDS = 5.0
"""The least seconds between two reports of a search at level INFO."""

FAULT = "fault: "
"""The prefix of the reason for a candidate whose passes crash, or whose program does not verify."""


class Refused(ValueError):
    """An infeasible candidate; the message says why."""


@contextmanager
def dropped_if_faulty(candidate: Candidate) -> Generator[None]:
    """Log a crash in the block and refuse the candidate, so that the search continues with the others."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        LOG.warning("candidate %s is dropped, please report it", candidate.name, exc_info=True)
        raise Refused(f"{FAULT}{type(error).__name__}: {error}") from error


def verify(module: ModuleOp, candidate: Candidate) -> None:
    """Log and refuse a candidate whose program does not verify."""
    if (fault := first_fault(module)) is not None:
        LOG.warning("candidate %s is dropped, please report it: %s", candidate.name, fault.message)
        raise Refused(f"{FAULT}{fault.message}")


@dataclass(frozen=True)
class Note:
    """
    The outcome of a candidate.

    Args:
        seconds: seconds of its step, simulated, or an estimate of the least if it has no program.
        why: why it was not chosen; empty if it was the best when it was tried.
        exposed: the part of `seconds` while the stage that computes longest is idle, or None if it has no program.
        peak_bytes: peak of the rank that comes closest to its memory, or None if nobody computed it.
        memory_bytes: memory of that rank.
        lasting_bytes: the part of `peak_bytes` that parameters and optimizer states take.
        same_as: the first candidate with the same strategy, if it is another one.
    """

    candidate: Candidate
    seconds: float | None
    why: str
    exposed: float | None = None
    peak_bytes: int | None = None
    memory_bytes: float = 0.0
    lasting_bytes: int = 0
    same_as: Candidate | None = None

    @property
    def fits(self) -> bool:
        """Return whether every rank is known to have the memory that it needs."""
        return self.peak_bytes is not None and self.peak_bytes <= self.memory_bytes


@dataclass
class Allowance:
    """The limits of the search: work, counted in ops, and seconds if the user limits them."""

    work: float
    seconds: float | None = None
    began: float = field(default_factory=perf_counter)
    spent: float = 0.0
    reported: float = field(default_factory=perf_counter)
    """The time of the last report of progress."""

    @property
    def is_late(self) -> bool:
        """Return whether the user's time limit has passed."""
        return self.seconds is not None and perf_counter() - self.began > self.seconds

    def next_report_level(self) -> int:
        """
        Return the level of the next message about progress: INFO at most once in `REPORT_SECONDS`, DEBUG otherwise.

        A message at the level INFO begins a new interval.
        """
        if (now := perf_counter()) - self.reported < REPORT_SECONDS:
            return logging.DEBUG
        self.reported = now
        return logging.INFO

    def is_over(self, effort: float) -> bool:
        """Return whether the time limit or `effort` times the usual work is spent, so that nothing new may begin."""
        return self.is_late or self.spent >= effort * self.work
