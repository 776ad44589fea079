"""The pass `schedule-pipeline`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.passes import ModulePass

from ..dialects.pipe import SCHEDULE, SlotAttr
from ..dialects.staged import Stages
from .errors import fail
from .stages.fragments import Fragments
from .stages.schedules import Policy, schedule
from .step.loop import find_loop, temporal_axis
from .step.memory_plan import forget_memory_plan
from .step.step_view import stage_meshes, step_functions


@dataclass(frozen=True)
class SchedulePipelinePass(ModulePass):
    """
    Put the ops of each stage that work on parts into fragments, and say in which order stages run them, part by part.

    Requires: stages (`partition-stages`), a temporal axis (`split-batch`) and collectives (`select-collectives`).
    Ensures: the ops in the loop are in fragments by stage and kind: `forward0`, `backward0` (gradients that go to
    another stage, and what they depend on) and `weights0` (the other gradients); where a stage sends no gradients on,
    all are in `backward0`. Transfers of parts stand between them in the order of dataflow; what is there once comes
    before or after. `pipe.schedule` has per stage the order of its runs, starts and waits. Frees are dropped.

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

    Source: cross-mesh 4; GPipe (Huang et al. 2019), 1F1B (Narayanan et al. 2021).
    """

    name = "schedule-pipeline"

    schedule: Policy = "eager-1f1b"
    """`gpipe`, `1f1b`, or `eager-1f1b`, which runs more forwards ahead and delays gradients of weights."""

    axis: str | None = None
    """The temporal axis whose parts go through the pipeline; by default the only one."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Schedule every step function of the module."""
        for func in step_functions(op):
            stages = Stages(func)
            if not stages.names:
                fail(func, "has no stages; run partition-stages first")
            if SCHEDULE in func.attributes:
                fail(func, "has a schedule already")
            mesh = stage_meshes(op, func)[0][1]
            axis = temporal_axis(func, mesh, self.axis)
            forget_memory_plan(func.body.block)
            fragments = Fragments(func, find_loop(func, axis))
            works, deliveries = fragments.works(), fragments.deliveries()
            slots = schedule(works, deliveries, len(stages.names), mesh.axis(axis).size, self.schedule)
            fragments.write(axis)
            func.attributes[SCHEDULE] = ArrayAttr([ArrayAttr([SlotAttr(slot) for slot in mine]) for mine in slots])
