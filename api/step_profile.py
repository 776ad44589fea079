"""`StepProfile`: the measurements of some steps by the ranks of a job."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..ir.measured_steps import MeasuredRank, MeasuredSteps
from ..ir.overlap import Overlaps
from ..ir.overlap_table import measured_table
from ..ir.text_file import write_atomically
from ..runtime.executor import Executor
from ..runtime.groups import job_rank
from ..runtime.measured import gathered, recorder_of
from ..runtime.plan import PlanError


class StepProfile:
    """
    The overlap of communication with computation in the steps of ``with step.profile() as profile:``, known afterwards.

    Printed, it is a table for the step of median length, of the rank in each stage that computes longest.
    """

    def __init__(self) -> None:
        self._found: MeasuredSteps | None = None

    @property
    def steps(self) -> MeasuredSteps:
        """
        All measurements, the same on every rank.

        Raises:
            PlanError: no step was measured.
        """
        if self._found is None:
            raise PlanError(
                "no step was measured: train inside `with step.profile() as profile:`, and read the profile after it"
            )
        return self._found

    @property
    def overlaps(self) -> Mapping[int, Overlaps]:
        """The overlap in the step of median length, by rank, then by phase and axes or stages; each may be ``all``."""
        return {rank.rank: rank.overlaps for rank in self.middle}

    @property
    def middle(self) -> tuple[MeasuredRank, ...]:
        """The step of median length, by rank."""
        return self.steps.middle

    def save(self, path: str | Path) -> None:
        """Write the input of `shardwright simulate --measured`, on rank 0."""
        text = self.steps.text()
        if job_rank() == 0:
            write_atomically(Path(path), text)

    def __str__(self) -> str:
        return measured_table(self.steps)


@contextmanager
def profiled(executor: Executor, *, compiled: bool) -> Generator[StepProfile, None, None]:
    """Measure the steps inside the context; every rank has to enter it."""
    profile, recorder = StepProfile(), recorder_of(executor, compiled=compiled)
    with recorder.recording():
        yield profile
    profile._found = gathered(recorder, executor)
