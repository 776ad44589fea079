"""The pass `plan-transfers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.passes import ModulePass

from ..dialects.mesh_ops import ClusterOp, MeshOp
from ..dialects.pipe import TaskAttr, TransferOp
from ..dialects.placed import parts_of, shape_of, sharding_of
from ..dialects.staged import Stages, transfers
from ..ir.transfer_plan import Method, Order, Placed, plan, units
from ..ir.unit_tasks import Grid, Task
from .errors import fail
from .step.step_view import step_functions


@dataclass(frozen=True)
class PlanTransfersPass(ModulePass):
    """
    Say which rank sends which slice of a transfer to whom, in which order.

    A rank's host is the one that the topology of the module's cluster has for it. Without one, it is the rank's row of
    the module's own mesh, the one that no stage has, where that has several spatial axes; with one axis all ranks
    share a host. A module without such a mesh has the rows of each stage's mesh as hosts.

    Requires: transfers with shardings (`search-strategy`).
    Ensures: every transfer has tasks, part by part, that bring each receiver what it holds and nothing else.

    Before:
    ```mlir
    spmd.mesh @mesh = <["node"=2, "gpu"=2]>
    spmd.mesh @stage0 = <["gpu"=2]> on [0, 1]
    spmd.mesh @stage1 = <["gpu"=2]> on [2, 3]
    func.func @step(%x: tensor<8x4xf32> {pipe.stage = 0 : i64,
        spmd.sharding = #spmd.sharding<@stage0, [{"gpu"}, {}]>}) -> tensor<8x4xf32>
        attributes {pipe.stages = ["stage0", "stage1"]} {
      %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{}, {}]> : tensor<8x4xf32>
      func.return %h : tensor<8x4xf32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["node"=2, "gpu"=2]>
    spmd.mesh @stage0 = <["gpu"=2]> on [0, 1]
    spmd.mesh @stage1 = <["gpu"=2]> on [2, 3]
    func.func @step(%x: tensor<8x4xf32> {pipe.stage = 0 : i64,
        spmd.sharding = #spmd.sharding<@stage0, [{"gpu"}, {}]>}) -> tensor<8x4xf32>
        attributes {pipe.stages = ["stage0", "stage1"]} {
      %h = pipe.transfer "h" %x to @stage1 out_sharding = <@stage1, [{}, {}]>
        tasks = [#pipe.task<part 0, [0:4, 0:4], 0 to [2, 3]>, #pipe.task<part 0, [4:8, 0:4], 1 to [2, 3]>]
        : tensor<8x4xf32>
      func.return %h : tensor<8x4xf32>
    }
    ```

    Source: cross-mesh 3.
    """

    name = "plan-transfers"

    method: Method = "broadcast"
    """How a slice travels: `broadcast` passes it on from receiver to receiver, one copy to each host."""

    order: Order = "greedy"
    """How senders and order are chosen: `greedy` by what hosts have to send."""

    per_host: int | None = None
    """How many consecutive ranks of the job share a host; by default as the meshes say."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Plan every transfer of the module."""
        meshes = {each.sym_name.data: each for each in op.ops if isinstance(each, MeshOp)}
        grids = {name: Grid.of(each.mesh, each.ranks) for name, each in meshes.items()}
        clusters = {each.mesh.data: each for each in op.ops if isinstance(each, ClusterOp)}
        for func in step_functions(op):
            stages = Stages(func)
            hosts = self._hosts(meshes, stages.names, clusters)
            for transfer in transfers(func):
                if (source := stages.mesh_of(transfer.operand)) is None:
                    fail(transfer, "has an operand without a mesh; run search-strategy before plan-transfers")
                tasks = self._tasks(transfer, source, grids, hosts)
                transfer.tasks = ArrayAttr([TaskAttr(task) for task in tasks])

    def _hosts(
        self, meshes: Mapping[str, MeshOp], stages: Sequence[str], clusters: Mapping[str, ClusterOp]
    ) -> dict[int, int]:
        """The host of every rank."""
        ranks = {rank for each in meshes.values() for rank in each.ranks}
        if self.per_host is not None:
            return {rank: rank // self.per_host for rank in ranks}
        own = [each for name, each in meshes.items() if name not in stages and ranks <= set(each.ranks)]
        described = clusters[own[0].sym_name.data] if own and own[0].sym_name.data in clusters else None
        if described is not None and described.topology is not None:
            seats = described.topology.data
            return {rank: seats.seat(place).host for place, rank in enumerate(own[0].ranks)}
        hosts: dict[int, int] = {}
        for each in own[:1] or meshes.values():
            first = max(hosts.values(), default=-1) + 1
            rows = each.mesh.spatial[0].size if len(each.mesh.spatial) > 1 else 1
            row = len(each.ranks) // rows
            hosts |= {rank: first + index // row for index, rank in enumerate(each.ranks)}
        return hosts

    def _tasks(self, op: TransferOp, source: str, grids: Mapping[str, Grid], hosts: Mapping[int, int]) -> list[Task]:
        if op.out_sharding is None:
            fail(op, "has no sharding; run search-strategy before plan-transfers")
        here = Placed(grids[source], sharding_of(op.operand))
        there = Placed(grids[op.mesh.data], op.out_sharding.sharding)
        try:
            return plan(units(shape_of(op.operand), here, there, parts_of(op)), hosts, self.method, self.order)
        except ValueError as error:
            fail(op, f"from @{source} to @{op.mesh.data}: {error}")
