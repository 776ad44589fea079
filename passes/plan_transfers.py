"""Plan the slices of a transfer between stages: their senders, receivers and order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.passes import ModulePass

from ..dialects.mesh_ops import ClusterOp, MeshOp
from ..dialects.pipe import OrderAttr, TaskAttr, TransferOp
from ..dialects.placed import parts_of, shape_of, sharding_of
from ..dialects.staged import Stages, transfers
from ..ir.port_schedule import Order
from ..ir.task_order import listed_by_slice
from ..ir.transfer_plan import Method, Placed, Sites, plan, units
from ..ir.unit_tasks import Grid, Task
from .errors import fail
from .step.step_view import step_functions


@dataclass(frozen=True)
class PlanTransfersPass(ModulePass):
    """
    Choose the sender, the receivers and the order of each slice of a transfer.

    Senders and order are chosen to keep NICs busy until the last slice has arrived; each NIC sends one slice and
    receives one at a time. The best time is the load of the busiest NIC, which most transfers reach. Slices that stay
    inside a host are arranged for its devices in the same way. The plan depends only on the step and the cluster, not
    on the machine that computes it.

    The topology of the module's cluster gives each rank its host and NIC. Without a topology, the host is the rank's
    row of the mesh of all ranks, which belongs to no stage, if that mesh has several spatial axes; with one axis all
    ranks share a host. If there is no such mesh, the rows of each stage's mesh are hosts. These hosts have one NIC
    each.

    Requires: transfers with shardings (`search-strategy`).
    Ensures: every transfer has tasks for each part that bring each receiver exactly its slices. If ranks that share a
    NIC have several tasks in one part, the transfer has their order.

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
        order = <[0, 1]: [0, 1], [2, 3]: [0, 1]> : tensor<8x4xf32>
      func.return %h : tensor<8x4xf32>
    }
    ```

    Source: cross-mesh 3.
    """

    name = "plan-transfers"

    method: Method = "broadcast"
    """How a slice is sent: `broadcast` passes it on from receiver to receiver, one copy to each host."""

    order: Order = "best"
    """Algorithm for senders and order: `best` of all, `exact` by CP-SAT, or the name of a heuristic."""

    per_host: int | None = None
    """Number of consecutive ranks of the job that share a host; by default from the topology or the meshes."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Plan every transfer of the module."""
        meshes = {inner.sym_name.data: inner for inner in op.ops if isinstance(inner, MeshOp)}
        grids = {name: Grid.of(inner.mesh, inner.ranks) for name, inner in meshes.items()}
        clusters = {inner.mesh.data: inner for inner in op.ops if isinstance(inner, ClusterOp)}
        for func in step_functions(op):
            stages = Stages(func)
            sites = self._sites(meshes, stages.names, clusters)
            for transfer in transfers(func):
                if (source := stages.mesh_of(transfer.operand)) is None:
                    fail(transfer, "has an operand without a mesh; run search-strategy before plan-transfers")
                tasks, order = listed_by_slice(self._tasks(transfer, source, grids, sites), sites.nic)
                transfer.tasks = ArrayAttr([TaskAttr(task) for task in tasks])
                transfer.order = OrderAttr(order) if order is not None else None

    def _sites(self, meshes: Mapping[str, MeshOp], stages: Sequence[str], clusters: Mapping[str, ClusterOp]) -> Sites:
        """Return the host and NIC of every rank."""
        ranks = {rank for mesh_op in meshes.values() for rank in mesh_op.ranks}
        if self.per_host is not None:
            return Sites({rank: rank // self.per_host for rank in ranks})
        own = [mesh_op for name, mesh_op in meshes.items() if name not in stages and ranks <= set(mesh_op.ranks)]
        described = clusters[own[0].sym_name.data] if own and own[0].sym_name.data in clusters else None
        if described is not None and described.topology is not None:
            seats = {rank: described.topology.data.seat(place) for place, rank in enumerate(own[0].ranks)}
            names = {nic: number for number, nic in enumerate(dict.fromkeys((s.host, s.nic) for s in seats.values()))}
            return Sites(
                {rank: seat.host for rank, seat in seats.items()},
                {rank: names[seat.host, seat.nic] for rank, seat in seats.items()},
            )
        hosts: dict[int, int] = {}
        for mesh_op in own[:1] or meshes.values():
            first = max(hosts.values(), default=-1) + 1
            rows = mesh_op.mesh.spatial[0].size if len(mesh_op.mesh.spatial) > 1 else 1
            row = len(mesh_op.ranks) // rows
            hosts |= {rank: first + index // row for index, rank in enumerate(mesh_op.ranks)}
        return Sites(hosts)

    def _tasks(self, op: TransferOp, source: str, grids: Mapping[str, Grid], sites: Sites) -> list[Task]:
        if op.out_sharding is None:
            fail(op, "has no sharding; run search-strategy before plan-transfers")
        sender = Placed(grids[source], sharding_of(op.operand))
        receiver = Placed(grids[op.mesh.data], op.out_sharding.sharding)
        try:
            return plan(units(shape_of(op.operand), sender, receiver, parts_of(op)), sites, self.method, self.order)
        except ValueError as error:
            fail(op, f"from @{source} to @{op.mesh.data}: {error}")
