"""The stages of the check, in the order in which they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .job import Job
    from .results import Row


class Work(Protocol):
    """What a stage does on one rank of a job; every rank calls the same methods in the same order."""

    cases: Sequence[str]
    """The names of what is tried one by one."""

    def prepare(self, cases: Sequence[str]) -> None:
        """Make what these cases need, such as their plans."""
        ...

    def run(self, case: str) -> Row:
        """Try one case; what rank 0 returns counts. An error on any rank fails the case, and ends the processes."""
        ...


@dataclass(frozen=True)
class Stage:
    """
    One stage.

    Args:
        title: for the report.
        maker: where its `Work` is made of a `Job`, as ``package.module:function``.
        needs_cuda: whether it is skipped on CPUs.
        tool: a program that its processes run under, with options; empty for none. Without the program it is skipped.
        environment: what its processes have in their environment.
    """

    name: str
    title: str
    maker: str
    needs_cuda: bool = False
    tool: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    def load(self) -> Callable[[Job], Work]:
        """What makes its work."""
        module, _, name = self.maker.partition(":")
        return getattr(importlib.import_module(module), name)


TOOL_FOUND_FAULTS = 86
"""The exit code by which compute-sanitizer says that it found something."""

_MEMCHECK = ("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode")

STAGES = (
    Stage("environment", "The machine and the job", "gpu_check.environment:make"),
    Stage("equality", "Programs against one device", "gpu_check.equality:make"),
    Stage("sequence", "Every collective compared over all ranks before it starts", "gpu_check.sanitizers:sequence"),
    Stage(
        "streams",
        "Races between streams, by torch's CUDA sanitizer",
        "gpu_check.sanitizers:streams",
        needs_cuda=True,
        environment={"TORCH_CUDA_SANITIZER": "1"},
    ),
    Stage(
        "memcheck",
        "Accesses to memory, by compute-sanitizer",
        "gpu_check.sanitizers:memcheck",
        needs_cuda=True,
        tool=(*_MEMCHECK, str(TOOL_FOUND_FAULTS)),
    ),
    Stage("profile", "Measured devices and links", "gpu_check.profiling:make"),
    Stage("prediction", "Predicted and measured steps", "gpu_check.prediction:make"),
    Stage("memory", "Predicted and measured peaks of memory", "gpu_check.memory:make"),
    Stage("ratios", "Step times beside DDP, FSDP2 and tensor parallelism of torch", "gpu_check.ratios:make"),
)


@dataclass(frozen=True)
class Check:
    """
    A check: what its processes run, and the stages that it has.

    Args:
        module: what ``python -m`` takes; it calls `main` with this check.
    """

    module: str
    stages: tuple[Stage, ...]


CHECK = Check("gpu_check", STAGES)
