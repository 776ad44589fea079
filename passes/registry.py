"""The passes of this package by name, each imported on first use, because xDSL loads this module at every start."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import TypeAlias

from xdsl.passes import ModulePass

PassFactory: TypeAlias = Callable[[], type[ModulePass]]

_HOMES: dict[str, str] = {
    "add-cluster": "add_cluster:AddClusterPass",
    "add-pins": "add_pins:AddPinsPass",
    "clip-gradients": "clip_gradients:ClipGradientsPass",
    "partition-stages": "partition_stages:PartitionStagesPass",
    "decompose-batch-norm": "decompose_batch_norm:DecomposeBatchNormPass",
    "decompose-cross-entropy": "decompose_cross_entropy:DecomposeCrossEntropyPass",
    "decompose-mean": "decompose_mean:DecomposeMeanPass",
    "leave-idle": "leave_idle:LeaveIdlePass",
    "make-batch-major": "make_batch_major:MakeBatchMajorPass",
    "detach-factories": "detach_factories:DetachFactoriesPass",
    "sort-within-rows": "sort_within_rows:SortWithinRowsPass",
    "sort-across-rows": "sort_across_rows:SortAcrossRowsPass",
    "draw-independently": "draw_independently:DrawIndependentlyPass",
    "recompute": "recompute:RecomputePass",
    "mark-compiled": "mark_compiled:MarkCompiledPass",
    "set-reduce-dtype": "set_reduce_dtype:SetReduceDtypePass",
    "scale-loss": "scale_loss:ScaleLossPass",
    "skip-non-finite": "skip_non_finite:SkipNonFinitePass",
    "search-plan": "search_plan:SearchPlanPass",
    "search-strategy": "search_strategy:SearchStrategyPass",
    "split-backward": "split_backward:SplitBackwardPass",
    "split-batch": "split_batch:SplitBatchPass",
    "balance-ratios": "balance_ratios:BalanceRatiosPass",
    "fixed-point": "fixed_point:FixedPointPass",
    "fit-memory": "fit_memory:FitMemoryPass",
    "insert-resharding": "insert_resharding:InsertReshardingPass",
    "agree-on-choices": "agree_on_choices:AgreeOnChoicesPass",
    "plan-transfers": "plan_transfers:PlanTransfersPass",
    "schedule-pipeline": "schedule_pipeline:SchedulePipelinePass",
    "select-collectives": "select_collectives:SelectCollectivesPass",
    "accumulate": "accumulate:AccumulatePass",
    "chunk-collectives": "chunk_collectives:ChunkCollectivesPass",
    "duplex": "duplex:DuplexPass",
    "overlap": "overlap:OverlapPass",
    "join-updates": "join_updates:JoinUpdatesPass",
    "reuse-buffers": "reuse_buffers:ReuseBuffersPass",
    "insert-frees": "insert_frees:InsertFreesPass",
    "check-order": "check_order:CheckOrderPass",
    "check-memory": "check_memory:CheckMemoryPass",
    "annotate-costs": "annotate_costs:AnnotateCostsPass",
    "strip-resharding": "strip_resharding:StripReshardingPass",
}
"""Pass -> "module:Class", both named like the pass."""


def our_passes() -> dict[str, PassFactory]:
    """Return the passes of this package by name."""
    return {name: partial(resolve_name, f"{__package__}.{home}") for name, home in _HOMES.items()}


def available_passes() -> dict[str, PassFactory]:
    """Return every pass that a pipeline may name: ours and xDSL's own."""
    from xdsl.transforms import get_all_passes

    return {**get_all_passes(), **our_passes()}
