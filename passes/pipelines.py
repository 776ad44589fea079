"""
The lists of passes that the product runs, each under a name that a pipeline may use in the place of its passes.

    prepare,search-strategy,program,finish

A list is text, so that naming one imports no other passes than its own. `parse_pipeline` replaces a name by its passes;
the passes then run one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from xdsl.utils.arg_spec import ArgSpecConvertible

from .stages.schedules import ScheduleName

AXIS = "micro"
"""The temporal axis along which a batch is split."""

SUM_BATCH_NORMS = "decompose-batch-norm,canonicalize,cse,dce"
"""The passes that write batch-norms as sums over the batch, so that the batch can be split."""

Mode = Literal["whole", "accumulate", "duplex", "pipeline"]
"""How a step runs the batch: whole, as micro-batches in sequence or interleaved, or in pipeline stages."""


@dataclass(frozen=True)
class NamedPipeline(ArgSpecConvertible):
    """Passes under one name. The fields of a subclass are the options of the pipeline."""

    passes: ClassVar[str] = ""

    @property
    def text(self) -> str:
        """The passes that the name stands for, as a pipeline names them; it may name other pipelines."""
        return self.passes


class PreparePipeline(NamedPipeline):
    """Rewrite an imported step so that its batch can be split, and remove ops that compute nothing new."""

    name = "prepare"
    passes = (
        "decompose-mean,decompose-cross-entropy,make-batch-major,sort-within-rows,canonicalize,cse,detach-factories,dce"
    )


@dataclass(frozen=True)
class CommunicatePipeline(NamedPipeline):
    """Make each change of sharding a collective, in a step whose ops have signatures."""

    name = "communicate"

    per_part: bool = False
    """Whether each micro-batch reduces the gradients of the parameters that it gathers (`accumulate`)."""

    @property
    def text(self) -> str:
        """The passes of the pipeline."""
        return f"sort-across-rows,insert-resharding{_option(self.per_part)},agree-on-choices,select-collectives"


@dataclass(frozen=True)
class ProgramPipeline(NamedPipeline):
    """Make the program of a step whose ops have signatures: split its batch, communicate, overlap and schedule."""

    name = "program"

    mode: Mode | None = None
    """How micro-batches run; by default `accumulate` if there are several, and `whole` otherwise."""

    parts: int = 1
    """Number of micro-batches."""

    schedule: ScheduleName = "auto"
    """The schedule of a pipeline."""

    chunked: bool = False
    """Whether products and their collectives are cut into parts (`chunk-collectives`)."""

    per_part: bool = False
    """Whether each micro-batch gathers parameters and reduces their gradients (`accumulate`)."""

    def __post_init__(self) -> None:
        if self.per_part and (self.parts == 1 or self.mode not in (None, "accumulate")):
            raise ValueError("per_part is for micro-batches one after the other: mode=accumulate and parts above 1")

    @property
    def text(self) -> str:
        """The passes of the program."""
        return f"{self.collectives},{self.overlapped}"

    @property
    def collectives(self) -> str:
        """The passes after which each change of sharding is a collective."""
        if self.parts == 1:
            return "communicate"
        unrolled = " unrolled=true" if self.mode == "duplex" else ""
        return f"split-batch{{parts={self.parts} axis={AXIS}{unrolled}}},communicate{_option(self.per_part)}"

    @property
    def overlapped(self) -> str:
        """The passes that overlap communication with computation. For a pipeline they plan and schedule it."""
        passes = ["chunk-collectives"] if self.chunked else []
        mode = self.mode or ("accumulate" if self.parts > 1 else "whole")
        if mode in ("accumulate", "duplex"):
            passes.append(mode + _option(self.per_part))
        passes += ["overlap", "join-updates"]
        if mode == "pipeline":
            passes += ["split-backward", "plan-transfers"]
            if self.parts > 1:
                passes.append(f"schedule-pipeline{{schedule={self.schedule} axis={AXIS}}}")
        return ",".join(passes)


def _option(per_part: bool) -> str:
    return "{per_part=true}" if per_part else ""


class FinishPipeline(NamedPipeline):
    """Check a program, and write into it which buffers are reused and when values are freed."""

    name = "finish"
    passes = "check-order,reuse-buffers,check-memory,insert-frees"


PIPELINES: dict[str, type[NamedPipeline]] = {
    each.name: each for each in (PreparePipeline, CommunicatePipeline, ProgramPipeline, FinishPipeline)
}
"""The pipelines by name, in the order that they run."""
