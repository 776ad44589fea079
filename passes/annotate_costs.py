"""Annotate ops with their predicted costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, IntegerAttr, ModuleOp, f64, i64
from xdsl.ir import Attribute
from xdsl.passes import ModulePass

from ..dialects.compute import ComputeOp
from .analysis.compute import op_work
from .analysis.fusion import fused_parts
from .analysis.simulation.engine import SpanRun
from .analysis.simulation.held import HeldBytes
from .analysis.simulation.results import Simulation
from .analysis.simulation.simulate import simulate_module

SECONDS, FLOPS, BYTES, STEP = "cost.seconds", "cost.flops", "cost.bytes", "cost.step"


@dataclass(frozen=True)
class AnnotateCostsPass(ModulePass):
    """
    Write the predicted costs of every op and of the whole step.

    An op gets `cost.seconds`, its undisturbed seconds on the ranks where it takes longest. A compute op also gets
    `cost.flops` and the `cost.bytes` that it reads and writes; a collective, the start of a collective, or a transfer
    gets the `cost.bytes` that a rank sends. The function gets `cost.step`: the seconds of a step, the compute and
    waiting seconds of the busiest rank, and the peak bytes of a rank. No pass reads these attributes.

    Requires: a cluster; signatures and collectives. Best at the end of a pipeline.
    Ensures: the attributes have the costs of this program only; with `remove` there are no costs.

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh
      devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e3, memory = 1.0e9, launch = 0.0>]
      placement [0, 0] links [#spmd.link<"gpu", alpha = 0.5, beta = 1.0e-3>]
    func.func @f(%x: tensor<500xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<500xf32> {
      %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>}
        : (tensor<500xf32>) -> tensor<500xf32>
      %z = spmd.all_gather [{"gpu"}] %y out_sharding = <@mesh, [{}]> : tensor<500xf32>
      func.return %z : tensor<500xf32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    spmd.cluster @two on @mesh
      devices [#spmd.device<"a", flops = {float32 = 1.0e9}, bandwidth = 1.0e3, memory = 1.0e9, launch = 0.0>]
      placement [0, 0] links [#spmd.link<"gpu", alpha = 0.5, beta = 1.0e-3>]
    func.func @f(%x: tensor<500xf32> {spmd.sharding = #spmd.sharding<@mesh, [{"gpu"}]>}) -> tensor<500xf32>
        attributes {cost.step = {seconds = 3.5, compute = 2.0, waiting = 1.5, peak_bytes = 4000 : i64}} {
      %y = aten.relu %x {spmd.signature = #spmd.sig<@mesh, ([{"gpu"}]) -> ([{"gpu"}])>,
        cost.seconds = 2.0, cost.flops = 250.0, cost.bytes = 2000.0} : (tensor<500xf32>) -> tensor<500xf32>
      %z = spmd.all_gather [{"gpu"}] %y out_sharding = <@mesh, [{}]> {cost.seconds = 1.5, cost.bytes = 1000.0}
        : tensor<500xf32>
      func.return %z : tensor<500xf32>
    }
    ```

    Source: the simulation of `passes/analysis/simulation`; HiDup 5 and AutoDDL 3 for the costs of single ops.
    """

    name = "annotate-costs"

    remove: bool = False
    """Only remove existing costs."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Annotate every step function of the module."""
        for inner in op.walk():
            for name in (SECONDS, FLOPS, BYTES, STEP):
                inner.attributes.pop(name, None)
        if not self.remove:
            for simulation in simulate_module(op):
                _annotate(simulation)


def _annotate(simulation: Simulation) -> None:
    parts = fused_parts(simulation.func)
    for entry in (entry for entries in simulation.execution.entries for entry in entries):
        if isinstance(entry, SpanRun):
            mesh = simulation.classes[entry.number].place.cluster.mesh
            by_class = ([end - begin for begin, end in pairwise((0.0, *ends))] for ends in entry.span.ends)
            for op, *each in zip(entry.span.ops, *by_class, strict=True):
                costs = {SECONDS: max(each)}
                if isinstance(op, ComputeOp) and op.signature is not None:
                    work = op_work(op, op.signature, mesh, part=parts.get(op))
                    costs |= {FLOPS: work.flops, BYTES: work.bytes}
                op.attributes |= _floats(costs)
    for run in simulation.execution.traffic:
        run.traffic.op.attributes |= _floats({SECONDS: run.traffic.seconds, BYTES: run.traffic.sent})
    held = HeldBytes(simulation)
    computes = max(simulation.compute_seconds(cls.number) for cls in simulation.classes)
    times = {"seconds": simulation.seconds, "compute": computes, "waiting": simulation.seconds - computes}
    peak = max(held.peak(cls) for cls in simulation.classes)
    simulation.func.attributes[STEP] = DictionaryAttr({**_floats(times), "peak_bytes": IntegerAttr(peak, i64)})


def _floats(numbers: Mapping[str, float]) -> dict[str, Attribute]:
    return {name: FloatAttr(number, f64) for name, number in numbers.items()}
