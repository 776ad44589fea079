"""The ways to split a step in time, as pipelines of passes on `dp` or on one device per stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from split_cluster import split_cluster

from shardwright.api.checking.cases import CheckCase
from shardwright.api.training_step import TrainingStep
from shardwright.ir.mesh import Mesh

_DATA_PARALLEL = "search-strategy{algorithm=fixed pins=dp}"
_SPLIT_STATE = "search-strategy{algorithm=fixed pins=zero3}"


@dataclass(frozen=True)
class Form:
    """A way to split a step in time: the number of devices, and the passes between `prepare` and `finish`."""

    devices: int
    passes: str

    def case(
        self,
        step: str | Callable[[], TrainingStep],
        dtype: torch.dtype = torch.float64,
        steps: int = 5,
        first: str = "",
    ) -> CheckCase:
        """Return a check of `step` split in this way; the passes `first` precede all others."""
        mesh, pipeline = Mesh.of(gpu=self.devices), f"{first}prepare,{self.passes},finish"
        return CheckCase(step, mesh, None, dtype, "sgd", steps, split_cluster(mesh), pipeline=pipeline)


def _stages(count: int, schedule: str, chunks: int = 1) -> Form:
    stages = f"partition-stages{{stages={count} chunks={chunks}}},search-strategy"
    return Form(count, f"{stages},program{{mode=pipeline parts=4 schedule={schedule}}}")


DUPLEX = Form(2, f"{_DATA_PARALLEL},program{{mode=duplex parts=2}}")
FORMS = {
    "accumulate": Form(2, f"{_DATA_PARALLEL},program{{parts=2}}"),
    "accumulate, gathered by each": Form(2, f"{_SPLIT_STATE},program{{parts=2 per_part=true}}"),
    "duplex": DUPLEX,
    "2 stages": _stages(2, "1f1b"),
    "3 stages": _stages(3, "1f1b"),
}
SCHEDULED = {
    **{
        f"{count} stages, {schedule}": _stages(count, schedule)
        for count in (2, 3)
        for schedule in ("gpipe", "1f1b", "eager-1f1b", "zero-bubble", "auto")
    },
    "2 stages of 2 chunks, interleaved-1f1b": _stages(2, "interleaved-1f1b", 2),
    "2 stages of 2 chunks, auto": _stages(2, "auto", 2),
}
"""The pipelines with every schedule."""
