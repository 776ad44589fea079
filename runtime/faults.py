"""How long a fault of a rank may last, and the activity of this rank's main thread, for the watches of all ranks."""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Literal, TypeVar

import torch
import torch.distributed as dist

from .groups import TIMEOUT

Done = TypeVar("Done")

Phase = Literal["script", "step", "left", "failed", "ending"]
"""The phases: the script's own code, a training step, the end of the script, after an error, or ended by a signal."""

Patience = Literal["", "plan", "save"]
"""The bound of a wait that may take long, by its name in `FaultBounds`; empty for an ordinary wait."""

DEVICE = "the work of its device"
"""The reported wait of a rank that has begun a step on CUDA: whether its device computes or waits is unknown."""

_STEPS_TIMED = 20
"""The number of recent steps in the median of step times."""


_MOST_SECONDS = 30 * 86400.0
"""The longest timeout; a bound may be infinite."""


@dataclass(frozen=True)
class FaultBounds:
    """
    How soon a fault of a rank ends the job.

    Args:
        gone: seconds until a rank that is dead, or whose script ended while other ranks wait for it, ends the job.
        silent: seconds that other ranks wait for a rank in a collective before it counts as stopped or hung. Work of
            one rank alone, such as saving or evaluating, must take less time.
        slow: a warning names a rank that computes this many times longer than the median of the others; 0 to disable.
        start: seconds that ranks wait for a missing rank at the start of the job, and for one another before the first
            step, while they build and load models.
        plan: seconds that ranks wait for rank 0 to plan or to measure, and for a rank that compiles its program.
        save: seconds that ranks wait for a rank that writes or reads its part of a checkpoint.

    Raises:
        ValueError: a bound is not positive.
    """

    gone: float = 5.0
    silent: float = 30.0
    slow: float = 2.0
    start: float = 600.0
    plan: float = 3600.0
    save: float = 1800.0

    def __post_init__(self) -> None:
        if not (min(self.gone, self.silent, self.start, self.plan, self.save) > 0 and self.slow >= 0):
            raise ValueError(
                f"{self}: gone, silent, start, plan and save must be seconds above 0, slow a factor, or 0 for no "
                "warning"
            )

    @property
    def beat(self) -> float:
        """Seconds between two reports of a rank to the others."""
        return min(0.5, self.gone / 8, self.silent / 8)

    @property
    def timeout(self) -> timedelta:
        """Timeout of collectives, longer than any other bound, so that the watch reports the late rank first."""
        longest = max(self.start, self.plan, self.save) + 2 * self.silent
        return max(TIMEOUT, timedelta(seconds=min(longest, _MOST_SECONDS)))


@dataclass
class RankActivity:
    """
    The activity of this rank's main thread. The main thread writes it, the watch reads it.

    `step` counts the training steps that this process began, `before` the steps before the checkpoint that it resumed.
    `calls` counts the waits, and `lost_peer` is called when a collective fails because of another rank. `on_device` is
    the event at the end of the latest step on CUDA, `timeout` the timeout of this job's collectives. While `compiles`
    is true, to the end of the next step, other ranks wait up to the bound for planning. `forked` is true in a process
    that a rank has forked, such as a worker of a loader: it does not take part in the job.
    """

    phase: Phase = "script"
    step: int = 0
    before: int = 0
    calls: int = 0
    waits_for: object = None
    patient: Patience = ""
    compiles: bool = False
    lost: bool = False
    forked: bool = False
    on_device: torch.Event | None = None
    lost_peer: Callable[[], None] | None = None
    timeout: timedelta = TIMEOUT
    _since: float = 0.0
    _waited: float = 0.0
    _began: float = 0.0
    _busy: deque[float] = field(default_factory=lambda: deque[float](maxlen=_STEPS_TIMED))

    def wait(self, what: object, done: Callable[[], Done], *, patient: Patience = "") -> Done:
        """
        Return the result of `done`, which waits for other ranks.

        Args:
            what: the object of the wait; the watch reports its `str`, which is empty while this rank itself works.
            patient: bound of the wait, if it may take long.
        """
        self._verify_rank()
        outer = self.waits_for, self.patient
        self.calls += 1
        self.patient, self._since = patient or ("plan" if self.compiles else ""), time.monotonic()
        self.waits_for = what
        try:
            result = done()
        except RuntimeError as error:
            self.failed(error)
            raise
        finally:
            self._waited += time.monotonic() - self._since
            self.waits_for, self.patient = outer
        return result

    def _verify_rank(self) -> None:
        if self.forked:
            what = "this process was forked from a rank, and has no part in its job"
            raise RuntimeError(f"{what}: use the step in the rank")

    def failed(self, error: BaseException) -> None:
        """If another rank caused an error, wait for the report about that rank, which ends this process."""
        if self.lost_peer is not None and is_lost_peer(error):
            self.lost = True
            self.lost_peer()

    @contextmanager
    def stepping(self) -> Generator[None, None, None]:
        """Mark the code inside as a training step."""
        self._verify_rank()
        self.phase, self.step = "step", self.step + 1
        try:
            yield
        except RuntimeError as error:
            self.failed(error)
            raise
        self.phase, self.compiles = "script", False
        now = time.monotonic()
        if self._began:
            self._busy.append(max(now - self._began - self._waited, 0.0))
        self._began, self._waited = now, 0.0

    @property
    def has_stepped(self) -> bool:
        """Whether this process has completed a training step."""
        return self._began > 0

    @property
    def number(self) -> int:
        """The number of the latest training step that this process began, as users count steps; 0 before the first."""
        return self.step + self.before if self.step else 0

    @property
    def place(self) -> str:
        """The place of an error: `` in step 3``, `` after step 3``, or empty before the first step."""
        return f" {'in' if self.phase == 'step' else 'after'} step {self.number}" if self.step else ""

    @property
    def busy(self) -> float:
        """Seconds of work per step, without waits: the median of the last steps, or 0 for too few steps."""
        return median(tuple(self._busy)) if len(self._busy) == _STEPS_TIMED else 0.0

    @property
    def what(self) -> str:
        """The present wait of the main thread, or `DEVICE` if its device still works; otherwise empty."""
        if (waits_for := self.waits_for) is not None:
            return str(waits_for)
        # On CUDA collectives wait in a stream, and the main thread at any line that needs a number.
        return DEVICE if self.on_device is not None and not self.on_device.query() else ""


ACTIVITY = RankActivity()
"""The activity of this process."""


def _leave_job_to_parent() -> None:
    """Keep the parent's share of the job unchanged when a forked child process ends."""
    if not dist.is_initialized():
        return
    ACTIVITY.forked, ACTIVITY.lost_peer = True, None
    for group, (_, store) in dist.distributed_c10d._world.pg_map.items():
        # Keep them alive: their destructors would wait for threads that exist only in the parent.
        for owner in (group, store):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


os.register_at_fork(after_in_child=_leave_job_to_parent)


def is_lost_peer(error: BaseException) -> bool:
    """Whether a collective failed because another rank was gone or late: a consequence, not a cause."""
    words = ("closed by peer", "reset by peer", "broken pipe", "timed out", "connection refused", "epitaph")
    text = str(error).lower()
    # A timeout may also come from a loader of the user.
    is_of_job = isinstance(error, dist.DistError) or any(name in text for name in ("gloo", "nccl", "socket", "peer"))
    return isinstance(error, RuntimeError) and is_of_job and any(word in text for word in words)


_PACKAGE = Path(__file__).resolve().parents[1]

_LIBRARIES = (
    *(str(_PACKAGE / layer) + os.sep for layer in ("api", "lowering", "models", "passes", "runtime", "tools")),
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")},
    "<",
)


def main_thread_line() -> str:
    """Return the main thread's line in the user's own code, as ``train.py:41 in load``; empty if unknown."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_LIBRARIES):
            return f"{Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""
