"""The passes that make a program of a step with signatures."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.passes import ModulePass

from ..accumulate import AccumulatePass
from ..agree_on_choices import AgreeOnChoicesPass
from ..chunk_collectives import ChunkCollectivesPass
from ..duplex import DuplexPass
from ..insert_resharding import InsertReshardingPass
from ..join_updates import JoinUpdatesPass
from ..overlap import OverlapPass
from ..plan_transfers import PlanTransfersPass
from ..schedule_pipeline import SchedulePipelinePass
from ..select_collectives import SelectCollectivesPass
from ..sort_across_rows import SortAcrossRowsPass
from ..split_backward import SplitBackwardPass
from ..split_batch import SplitBatchPass
from .candidates import Layout

AXIS = "micro"
"""The temporal axis along which a batch is cut."""


def passes_to_collectives(layout: Layout) -> Iterator[ModulePass]:
    """Those after which each change of sharding is a collective."""
    if layout.parts > 1:
        yield SplitBatchPass(layout.parts, AXIS, unrolled=layout.mode == "duplex")
    yield from (SortAcrossRowsPass(), InsertReshardingPass(), AgreeOnChoicesPass(), SelectCollectivesPass())


def passes_beside(layout: Layout) -> Iterator[ModulePass]:
    """Return the passes that overlap communication with computation. For a pipeline they plan and schedule it."""
    if layout.chunked:
        yield ChunkCollectivesPass()
    if layout.mode == "accumulate":
        yield AccumulatePass()
    elif layout.mode == "duplex":
        yield DuplexPass()
    yield from (OverlapPass(), JoinUpdatesPass())
    if layout.mode == "pipeline":
        yield from (SplitBackwardPass(), PlanTransfersPass())
        if layout.parts > 1:
            yield SchedulePipelinePass(layout.schedule, AXIS)
