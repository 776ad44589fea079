"""Order the fragments and transfers of each stage of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from ..dialects.pipe import SCHEDULE, Slot
from ..dialects.staged import Stages, transfers
from .errors import fail
from .plan_transfers import PlanTransfersPass
from .stages.choose import MemoryBudget, choose_schedule, set_schedule
from .stages.fragments import Fragments
from .stages.schedules import PipelineShape, ScheduleName, policies, schedule
from .step.loop import find_loop, temporal_axis
from .step.memory_plan import forget_memory_plan
from .step.step_view import cluster_of_module, stage_meshes, step_functions, step_views


@dataclass(frozen=True)
class SchedulePipelinePass(ModulePass):
    """
    Put the micro-batched ops of each stage into fragments, and write the order of each stage's fragments and transfers.

    Requires: stages (`partition-stages`), a temporal axis (`split-batch`) and collectives (`select-collectives`).
    Ensures: the ops in the loop are in fragments by stage and kind: `forward0`, `backward0` (gradients for another
    stage, and the ops that they depend on) and `weights0` (the other gradients). If a stage sends no gradients, all are
    in `backward0`. Transfers of micro-batches are between the fragments in dataflow order; ops outside the loop come
    before or after. `pipe.schedule` has for each stage the order of its runs, starts and waits. Frees are dropped. If
    micro-batches return to a stage, each of its chunks of the model has its own fragments: `forward0.0`, `forward0.1`.

    `auto` plans transfers that are not planned yet (`plan-transfers`). It simulates all fixed orders, and the best
    orders of list scheduling with the estimated seconds of fragments and transfers, each stage within its memory, and
    takes the fastest that fits. So the delay of weight gradients follows from the time that they can fill. It needs the
    module's cluster.

    Pipeline: schedule-pipeline{schedule=gpipe}

    Before:
    ```mlir
    spmd.mesh @stage0 = <["micro"=2 temporal, "gpu"=1]> on [0]
    spmd.mesh @stage1 = <["micro"=2 temporal, "gpu"=1]> on [1]
    func.func @step(%x: tensor<8xf32> {train.batch = "0", pipe.stage = 0 : i64}) -> tensor<f32>
        attributes {pipe.stages = ["stage0", "stage1"]} {
      %x.slice = spmd.slice [{"micro"}] %x out_sharding = <@stage0, [{"micro"}]> : tensor<8xf32>
      %h = aten.exp %x.slice {pipe.stage = 0 : i64, spmd.signature = #spmd.sig<@stage0, ([{"micro"}]) -> ([{"micro"}])>}
        : (tensor<8xf32>) -> tensor<8xf32>
      %h.at1 = pipe.transfer "h.at1" %h to @stage1 out_sharding = <@stage1, [{"micro"}]> : tensor<8xf32>
      %s = aten.sum %h.at1
        {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{"micro"}]) -> ([], unreduced={"micro"})>}
        : (tensor<8xf32>) -> tensor<f32>
      %s.all_reduce = spmd.all_reduce [{"micro"}] %s out_sharding = <@stage1, []> : tensor<f32>
      func.return %s.all_reduce : tensor<f32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @stage0 = <["micro"=2 temporal, "gpu"=1]> on [0]
    spmd.mesh @stage1 = <["micro"=2 temporal, "gpu"=1]> on [1]
    func.func @step(%x: tensor<8xf32> {train.batch = "0", pipe.stage = 0 : i64}) -> tensor<f32> attributes {
      pipe.stages = ["stage0", "stage1"],
      pipe.schedule = [
        [#pipe.slot<run "forward0" 0>, #pipe.slot<start "h.at1" 0>,
         #pipe.slot<run "forward0" 1>, #pipe.slot<start "h.at1" 1>],
        [#pipe.slot<start "h.at1" 0>, #pipe.slot<start "h.at1" 1>, #pipe.slot<wait "h.at1" 0>,
         #pipe.slot<run "forward1" 0>, #pipe.slot<wait "h.at1" 1>, #pipe.slot<run "forward1" 1>]
      ]
    } {
      %h = pipe.fragment "forward0" stage 0 : i64 over "micro" -> tensor<8xf32> {
        %x.slice = spmd.slice [{"micro"}] %x out_sharding = <@stage0, [{"micro"}]> : tensor<8xf32>
        %h_1 = aten.exp %x.slice
          {pipe.stage = 0 : i64, spmd.signature = #spmd.sig<@stage0, ([{"micro"}]) -> ([{"micro"}])>}
          : (tensor<8xf32>) -> tensor<8xf32>
        pipe.yield %h_1 : tensor<8xf32>
      }
      %h.at1 = pipe.transfer "h.at1" %h to @stage1 out_sharding = <@stage1, [{"micro"}]> : tensor<8xf32>
      %s = pipe.fragment "forward1" stage 1 : i64 over "micro" -> tensor<f32> {
        %s_1 = aten.sum %h.at1
          {pipe.stage = 1 : i64, spmd.signature = #spmd.sig<@stage1, ([{"micro"}]) -> ([], unreduced={"micro"})>}
          : (tensor<8xf32>) -> tensor<f32>
        pipe.yield %s_1 : tensor<f32>
      }
      %s.all_reduce = spmd.all_reduce [{"micro"}] %s out_sharding = <@stage1, []> : tensor<f32>
      func.return %s.all_reduce : tensor<f32>
    }
    ```

    Source: cross-mesh 4; GPipe (Huang et al. 2019), 1F1B and interleaved 1F1B (Narayanan et al. 2021), ZB-H1 (Qi et al.
    2023).
    """

    name = "schedule-pipeline"

    schedule: ScheduleName = "eager-1f1b"
    """
    `gpipe`; `1f1b`; `eager-1f1b`, which runs more forwards ahead and delays weight gradients; `zero-bubble`, which
    delays them for longer the later the stage; `interleaved-1f1b`, for stages of several chunks; or `auto`.
    """

    axis: str | None = None
    """The temporal axis whose micro-batches pass the pipeline; by default the only one."""

    in_flight: int | None = None
    """With `auto`, the number of micro-batches that a stage may have between forward and their last gradient."""

    limit: int | float | None = None
    """With `auto`, bytes that each rank may use; by default the memory of its device."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Schedule every step function of the module."""
        for func in step_functions(op):
            stages = Stages(func)
            if not stages.names:
                fail(func, "has no stages; run partition-stages first")
            if SCHEDULE in func.attributes:
                fail(func, "has a schedule already")
            if self.schedule != "auto" and (self.in_flight is not None or self.limit is not None):
                fail(func, f"in-flight and limit are for schedule=auto; {self.schedule} is the same for any memory")
            if self.in_flight is not None and self.in_flight < 1:
                fail(func, f"in-flight={self.in_flight}: expected at least one part")
            mesh = stage_meshes(op, func)[0][1]
            axis = temporal_axis(func, mesh, self.axis)
            forget_memory_plan(func.body.block)
            fragments = Fragments(func, find_loop(func, axis))
            shape = PipelineShape(len(stages.names), mesh.axis(axis).size, fragments.chunks)
            set_schedule(func, self._slots(ctx, op, func, fragments, shape, axis))

    def _slots(
        self, ctx: Context, module: ModuleOp, func: FuncOp, fragments: Fragments, shape: PipelineShape, axis: str
    ) -> list[list[Slot]]:
        """Return the schedule of a function, after putting its ops into fragments."""
        works, deliveries = fragments.works(), fragments.deliveries()
        if self.schedule == "auto":
            stages = [cluster for view, cluster in step_views(module) if view.func is func]
            whole = cluster_of_module(module)
            fragments.write(axis)
            if any(transfer.tasks is None for transfer in transfers(func)):
                PlanTransfersPass().apply(ctx, module)
            budget = MemoryBudget(self.limit, self.in_flight)
            return choose_schedule(func, works, deliveries, shape, stages, whole, budget)
        if self.schedule not in (allowed := policies(shape)):
            fail(func, _refusal(self.schedule, shape, allowed))
        fragments.write(axis)
        return schedule(works, deliveries, shape, self.schedule)


def _refusal(name: str, shape: PipelineShape, known: Sequence[str]) -> str:
    """Return why a pipeline cannot have an order."""
    others = f"; use {', '.join((*known, 'auto'))}"
    if shape.chunks == 1:
        return f"has one chunk of the model in each stage, but {name} is for several{others}"
    if name == "interleaved-1f1b":
        return (
            f"has {shape.parts} parts along its axis, but {name} takes as many at a time as there are stages:"
            f" expected a multiple of {shape.stages}{others}"
        )
    return f"has {shape.chunks} chunks of the model in each stage, but {name} is for one{others}"
