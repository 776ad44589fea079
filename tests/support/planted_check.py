"""A check with stages in which ranks fail: `python -m planted_check`, in the place of `gpu_check`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from gpu_check.__main__ import main
from gpu_check.job import Job
from gpu_check.results import Row
from gpu_check.stages import Check, Stage


class Planted:
    """Cases that pass, differ, or raise on or kill one rank while the others wait for it."""

    def __init__(self, job: Job, cases: Sequence[str]) -> None:
        self._job, self.cases = job, cases

    def prepare(self, cases: Sequence[str]) -> None:
        """Do nothing."""

    def run(self, case: str) -> Row:
        """Fail as the name of the case says."""
        if "differs" in case:
            return Row(case, "failed", {"error": 0.5}, "off by 0.5, above 1e-05")
        if "raises" in case and self._job.rank == 1:
            raise ValueError("there is no such head")
        if "kills" in case and self._job.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self._job.clock.wait_for_all()
        return Row(case, "passed", {"ranks": self._job.world})


def fine(job: Job) -> Planted:
    """Return a stage that passes."""
    return Planted(job, ("one", "two"))


def broken(job: Job) -> Planted:
    """Return a stage whose every second case fails."""
    return Planted(job, ("begins", "differs", "goes on", "raises on rank 1", "goes on again", "kills rank 1", "ends"))


STAGES = (
    Stage("broken", "What fails", "planted_check:broken"),
    Stage("cuda", "What takes a GPU", "planted_check:fine", needs_cuda=True),
    Stage("tool", "What takes a tool", "planted_check:fine", tool=("no-such-sanitizer", "--strict")),
    Stage("last", "The last stage", "planted_check:fine"),
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Check("planted_check", STAGES)))
