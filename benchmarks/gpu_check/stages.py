"""The stages of the check, in their order."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .job import Job
    from .results import Row


class Work(Protocol):
    """The work of a stage on one rank. Every rank calls the same methods in the same order."""

    cases: Sequence[str]
    """Names of the cases."""

    def prepare(self, cases: Sequence[str]) -> None:
        """Prepare these cases, for instance plan them."""
        ...

    def run(self, case: str) -> Row:
        """Run one case; the row of rank 0 counts. An error on any rank fails the case and ends the processes."""
        ...


@dataclass(frozen=True)
class Stage:
    """
    A stage of the check.

    Args:
        maker: class or function that makes its `Work` from a `Job`, as ``package.module:name``.
        tool: program and options that its processes run under, or empty. A missing program skips the stage.
    """

    name: str
    title: str
    maker: str
    needs_cuda: bool = False
    tool: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    def load(self) -> Callable[[Job], Work]:
        """Return the function that makes its work."""
        module, _, name = self.maker.partition(":")
        return getattr(importlib.import_module(module), name)


TOOL_FOUND_FAULTS = 86
"""Exit code of compute-sanitizer if it found a fault."""

_MEMCHECK = ("compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode")

STAGES = (
    Stage("environment", "The machine and the job", "gpu_check.environment:Environment"),
    Stage("equality", "Programs against one device", "gpu_check.equality:Equality"),
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
    Stage("profile", "Measured devices and links", "gpu_check.profiling:Profiling"),
    Stage("prediction", "Predicted and measured steps", "gpu_check.prediction:Prediction"),
    Stage("memory", "Predicted and measured peaks of memory", "gpu_check.memory:Memory"),
    Stage("ratios", "Step times compared with DDP, FSDP2 and torch's tensor parallelism", "gpu_check.ratios:Ratios"),
)


@dataclass(frozen=True)
class Check:
    """A check: the module of its processes for ``python -m``, which calls `main` with this check, and its stages."""

    module: str
    stages: tuple[Stage, ...]


CHECK = Check("gpu_check", STAGES)
