"""Interleave the micro-batches, so that one communicates while another computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ..dialects.mesh_ops import ClusterOp
from ..dialects.staged import Stages
from ..ir.mesh import AxisKind
from .analysis.simulation.simulate import simulate_module
from .analysis.tightest import tightest_rank
from .errors import fail
from .join_updates import JoinUpdatesPass
from .overlap import OverlapPass
from .step.loop import temporal_axis
from .step.requirements import require_no_fragments
from .step.step_view import StepView, cluster_of_module, mesh_of_module, step_functions
from .unrolling.list_order import list_orders
from .unrolling.phases import Turn, UnrolledLoop, phase_turns
from .unrolling.unroller import PARTS, Unroller, check_loop

Order = Literal["phases", "list", "best"]

TRIED = 3
"""Number of list orders that are simulated, the fastest by the list scheduler's estimate."""

MEMORY = 1.05
"""Limit of the peak memory of a list order, as a multiple of the peak memory of the order by phases."""


@dataclass(frozen=True)
class DuplexPass(ModulePass):
    """
    Run several micro-batches at once: each communicates while the others compute.

    The loop is unrolled into a copy for each micro-batch. With `order=phases` it is divided into phases: a
    communication step, then the computation that needs it. The phase of an op is the number of communications on the
    longest path to it. The copies a and b take turns: `wait a.comm k; start b.comm k; a.compute k; wait b.comm k;
    start a.comm k+1; b.compute k`, for k = 0, 1, ...; more copies take turns in the same way.

    With `order=list` the copies are list-scheduled on the streams of the simulator, with seconds from the module's
    cluster. A communication starts once its operand is computed, so communications over different axes overlap. A free
    compute stream takes the ready op with the longest remaining time. Weight gradients, and other ops that no later
    communication needs, fill the time while the stream would wait. Several such orders differ in how far a copy may be
    ahead of the next and how long filler may be delayed. The pass takes the order that is fastest in simulation, after
    `overlap` and `join-updates`, and whose peak memory is at most 1.05 times the peak of the order by phases.

    Requires: a temporal axis of at least two parts (`split-batch`) and collectives (`select-collectives`).
    Ensures: every op in the loop has one copy per micro-batch, marked by `spmd.at`; its collectives are `spmd.start`
    and `spmd.wait`, and each micro-batch has its own transfers to other stages. A sum over the axis is a chain of
    `spmd.accumulate`, each as soon as its operand is computed. Ops that run once come where they are first needed.
    Frees are dropped: run `insert-frees` afterwards.

    Before:
    ```mlir
    spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}) -> tensor<f32> {
      %p = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]> : tensor<8x4xf32>
      %h = aten.exp %p {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{"micro"}, {}])>}
        : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %q = spmd.slice [{}, {"gpu"}] %h out_sharding = <@mesh, [{"micro"}, {"gpu"}]> : tensor<8x4xf32>
      %r = spmd.all_gather [{}, {"gpu"}] %q out_sharding = <@mesh, [{"micro"}, {}]> : tensor<8x4xf32>
      %s = aten.sum %r {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([], unreduced={"micro"})>}
        : (tensor<8x4xf32>) -> tensor<f32>
      %t = spmd.all_reduce [{"micro"}] %s out_sharding = <@mesh, []> : tensor<f32>
      func.return %t : tensor<f32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["micro"=2 temporal, "gpu"=2]>
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}) -> tensor<f32> {
      %p.a = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]>
        {spmd.at = {"micro" = 0 : i64}} : tensor<8x4xf32>
      %h.a = aten.exp %p.a {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{"micro"}, {}])>,
        spmd.at = {"micro" = 0 : i64}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %q.a = spmd.slice [{}, {"gpu"}] %h.a out_sharding = <@mesh, [{"micro"}, {"gpu"}]>
        {spmd.at = {"micro" = 0 : i64}} : tensor<8x4xf32>
      %r.a.started = spmd.start "all_gather" %q.a out_shardings = [#spmd.sharding<@mesh, [{"micro"}, {}]>]
        {spmd.at = {"micro" = 0 : i64}} : tensor<8x4xf32>
      %p.b = spmd.slice [{"micro"}, {}] %x out_sharding = <@mesh, [{"micro"}, {}]>
        {spmd.at = {"micro" = 1 : i64}} : tensor<8x4xf32>
      %h.b = aten.exp %p.b {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([{"micro"}, {}])>,
        spmd.at = {"micro" = 1 : i64}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %q.b = spmd.slice [{}, {"gpu"}] %h.b out_sharding = <@mesh, [{"micro"}, {"gpu"}]>
        {spmd.at = {"micro" = 1 : i64}} : tensor<8x4xf32>
      %r.a = spmd.wait %r.a.started {spmd.at = {"micro" = 0 : i64}} : tensor<8x4xf32>
      %r.b.started = spmd.start "all_gather" %q.b out_shardings = [#spmd.sharding<@mesh, [{"micro"}, {}]>]
        {spmd.at = {"micro" = 1 : i64}} : tensor<8x4xf32>
      %s.a = aten.sum %r.a {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([], unreduced={"micro"})>,
        spmd.at = {"micro" = 0 : i64}} : (tensor<8x4xf32>) -> tensor<f32>
      %r.b = spmd.wait %r.b.started {spmd.at = {"micro" = 1 : i64}} : tensor<8x4xf32>
      %s.b = aten.sum %r.b {spmd.signature = #spmd.sig<@mesh, ([{"micro"}, {}]) -> ([], unreduced={"micro"})>,
        spmd.at = {"micro" = 1 : i64}} : (tensor<8x4xf32>) -> tensor<f32>
      %t = spmd.accumulate %s.a, %s.b out_sharding = <@mesh, []> : tensor<f32>
      func.return %t : tensor<f32>
    }
    ```

    Source: HiDup 3 and 4.1 (stages, which are phases here) and 5 (the compiler's order); list scheduling after Graham
    1969.
    """

    name = "duplex"

    axis: str | None = None
    """The temporal axis; by default the only one."""

    order: Order = "best"
    """Order of the copies: by phases (`phases`); by list scheduling (`list`), which needs a cluster; or the faster of
    both in simulation (`best`), which is `phases` if simulation is impossible."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        mesh = mesh_of_module(op)
        for index, func in enumerate(step_functions(op)):
            require_no_fragments(func, self.name)
            axis = temporal_axis(func, mesh, self.axis)
            parts = mesh.axis(axis).size
            if not 2 <= parts <= len(PARTS):
                fail(
                    func,
                    f'axis "{axis}" has {parts} parts; duplex needs 2 to {len(PARTS)}: split-batch{{parts=2}}, or'
                    " accumulate",
                )
            loop = UnrolledLoop.of(func, mesh, axis)
            check_loop(loop)
            Unroller(func, loop).write(self._turns(op, index, loop))

    def _turns(self, module: ModuleOp, index: int, loop: UnrolledLoop) -> Sequence[Turn]:
        """Return the order of the copies in the step function `index` of a module."""
        func = step_functions(module)[index]
        can_simulate = not Stages(func).names and all(
            axis.name == loop.axis or axis.kind is not AxisKind.TEMPORAL for axis in loop.mesh.axes
        )
        if self.order == "list":
            if not can_simulate:
                fail(func, 'has stages, or another temporal axis; list scheduling is for one loop: use order="phases"')
            return _OrderJudge(module, index, loop).fastest(with_phases=False)
        has_cluster = any(isinstance(inner, ClusterOp) for inner in module.ops)
        if self.order == "phases" or not has_cluster or not can_simulate:
            return tuple(phase_turns(loop))
        return _OrderJudge(module, index, loop).fastest(with_phases=True)


@dataclass(frozen=True)
class _JudgedOrder:
    """An order, with the simulated seconds of the step after `overlap` and `join-updates`."""

    turns: tuple[Turn, ...]
    seconds: float


class _OrderJudge:
    """A simulation of the orders of a loop; used once."""

    def __init__(self, module: ModuleOp, index: int, loop: UnrolledLoop) -> None:
        self.module, self.index, self.loop = module, index, loop
        self.cluster = cluster_of_module(module)

    def fastest(self, *, with_phases: bool) -> tuple[Turn, ...]:
        """
        Return the order of the fastest step, among list orders whose memory is close to the order by phases.

        Args:
            with_phases: whether the order by phases may win; otherwise it is only returned if no list order fits.
        """
        by_phases = tuple(phase_turns(self.loop))
        program = self._made(by_phases)
        best = _JudgedOrder(by_phases, self._seconds(program) if with_phases else inf)
        most = MEMORY * self._peak(program)
        listed = [order.turns for order in list_orders(self.loop, self.cluster)]
        for turns in listed[:TRIED]:
            module = self._made(turns)
            if (seconds := self._seconds(module)) < best.seconds and self._peak(module) <= most:
                best = _JudgedOrder(turns, seconds)
        return best.turns

    def _seconds(self, module: ModuleOp) -> float:
        return simulate_module(module)[self.index].seconds

    def _peak(self, module: ModuleOp) -> int:
        view = StepView(step_functions(module)[self.index], self.cluster.mesh)
        return tightest_rank(view, self.cluster).bytes

    def _made(self, turns: tuple[Turn, ...]) -> ModuleOp:
        module = self.module.clone()
        func = step_functions(module)[self.index]
        loop = UnrolledLoop.of(func, self.loop.mesh, self.loop.axis)
        own = dict(zip(self.loop.ops, loop.ops, strict=True))
        Unroller(func, loop).write((copy, step, own[op]) for copy, step, op in turns)
        for later in (OverlapPass(), JoinUpdatesPass()):
            later.apply(Context(), module)
        return module
