"""What a search over plans keeps of each candidate, and what it may spend."""

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

FAULT = "fault: "
"""The prefix of the reason for a candidate whose passes crash, or whose program does not verify."""


class Refused(ValueError):
    """An infeasible candidate; the message says why."""


@contextmanager
def dropped_if_faulty(candidate: Candidate) -> Generator[None]:
    """Log a crash inside and refuse the candidate; the search continues with the others."""
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
    What became of a candidate.

    Args:
        seconds: of its step: simulated, or, where it was not finished, at the least by an estimate.
        why: it was not chosen; empty for those that were the best when they were tried.
        exposed: of these, how many the stage that computes longest does not; None where it was not finished.
        peak_bytes: of the rank that comes closest to its memory; None where nobody looked.
        memory_bytes: what that rank has.
        lasting_bytes: the part of `peak_bytes` that parameters and optimizer states take.
    """

    candidate: Candidate
    seconds: float | None
    why: str
    exposed: float | None = None
    peak_bytes: int | None = None
    memory_bytes: float = 0.0
    lasting_bytes: int = 0

    @property
    def fits(self) -> bool:
        """Whether it is known that every rank has the memory that it needs."""
        return self.peak_bytes is not None and self.peak_bytes <= self.memory_bytes


@dataclass
class Allowance:
    """What the search may spend: ops gone through, and seconds where the user limits them."""

    work: float
    seconds: float | None = None
    began: float = field(default_factory=perf_counter)
    spent: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the user's time is over."""
        return self.seconds is not None and perf_counter() - self.began > self.seconds

    def is_over(self, effort: float) -> bool:
        """Whether nothing more may be begun, where so many times the usual work is worth it."""
        return self.is_late or self.spent >= effort * self.work
