"""Place a program on some ranks of a cluster, while the others idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ..dialects.compute import shape_of
from ..dialects.kinds import entries_of
from ..dialects.mesh_ops import ClusterOp, MeshOp
from ..dialects.pipe import IDLE, SCHEDULE, STAGE, STAGES, Action, FragmentOp, Slot, SlotAttr, TransferOp
from ..dialects.sharding_attrs import ShardingAttr
from ..dialects.staged import Stages
from ..dialects.step import SHARDING, merge_argument_attributes, sharding_of
from ..ir.cluster import Cluster
from ..ir.cluster_file import ClusterFileError, find_cluster
from ..ir.mesh import Axis, Mesh
from ..ir.sharding import Sharding
from ..ir.submesh import subcluster
from .errors import fail
from .plan_transfers import PlanTransfersPass
from .step.step_view import StepView, mesh_of_module, step_functions

JOB = "job"
"""The name of the mesh of all ranks."""


@dataclass(frozen=True)
class LeaveIdlePass(ModulePass):
    """
    Put a program on the given ranks of a cluster, and leave its other ranks idle.

    The idle ranks become the last stage. It has no parameters and ops, and it receives the loss and the metrics. If all
    ranks are given in a different order, no rank is idle.

    Requires: a program with collectives, and with transfers if it has stages; a cluster with at least as many devices.
    Ensures: the module has the mesh and the cluster of the job. The meshes of the program list the given ranks. A
    program without stages becomes the first stage, and a program with stages keeps them. Transfers are planned again.

    Pipeline: leave-idle{file="local-4" ranks="1,3"}

    Before:
    ```mlir
    spmd.mesh @mesh = <["gpu"=2]>
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{}, {}]>})
        -> (tensor<f32> {train.loss, spmd.sharding = #spmd.sharding<@mesh, []>}) {
      %loss = aten.mean %x {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([])>} : (tensor<8x4xf32>) -> tensor<f32>
      func.return %loss : tensor<f32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @job = <["gpu"=4]>
    spmd.cluster @"local-4" on @job devices [
      #spmd.device<"cpu", flops = {float32 = 25000000000.0, float64 = 12000000000.0}, bandwidth = 5000000000.0,
        memory = 5368709120.0, launch = 4.0e-06>
    ] placement [0, 0, 0, 0] links [#spmd.link<"gpu", alpha = 0.00085, beta = 8.333333333333334e-10>]
    spmd.mesh @mesh = <["gpu"=2]> on [1, 3]
    spmd.mesh @idle = <["gpu"=2]> on [0, 2]
    spmd.cluster @"local-4.idle" on @idle devices [
      #spmd.device<"cpu", flops = {float32 = 25000000000.0, float64 = 12000000000.0}, bandwidth = 5000000000.0,
        memory = 5368709120.0, launch = 4.0e-06>
    ] placement [0, 0] links [#spmd.link<"gpu", alpha = 0.00085, beta = 8.333333333333334e-10>]
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0", spmd.sharding = #spmd.sharding<@mesh, [{}, {}]>,
        pipe.stage = 0 : i64})
        -> (tensor<f32> {train.loss, spmd.sharding = #spmd.sharding<@mesh, []>}, tensor<f32> {train.loss,
        spmd.sharding = #spmd.sharding<@idle, []>})
        attributes {pipe.stages = ["mesh", "idle"]} {
      %loss = aten.mean %x {spmd.signature = #spmd.sig<@mesh, ([{}, {}]) -> ([])>} : (tensor<8x4xf32>) -> tensor<f32>
      %loss.idle = pipe.transfer "loss.idle" %loss to @idle out_sharding = <@idle, []>
        tasks = [#pipe.task<part 0, [], 1 to [0, 2]>] : tensor<f32>
      func.return %loss, %loss.idle : tensor<f32>, tensor<f32>
    }
    ```

    Source: this project.
    """

    name = "leave-idle"

    ranks: str
    """The ranks of the job that run ranks 0, 1, ... of the program, as "1,2,3"."""

    file: str
    """The cluster of the job: a cluster file, or the name of a shipped one."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Place the program of the module."""
        try:
            cluster = find_cluster(self.file)
            ranks = [int(rank) for rank in self.ranks.split(",")]
        except (ClusterFileError, ValueError) as error:
            raise PassFailedException(f'ranks="{self.ranks}" file="{self.file}": {error}') from error
        count = cluster.mesh.device_count
        if len(set(ranks)) < len(ranks) or not all(0 <= rank < count for rank in ranks):
            raise PassFailedException(
                f'ranks="{self.ranks}": expected different ranks of {cluster.name!r}, 0 to {count - 1}'
            )
        if taken := {mesh.sym_name.data for mesh in op.ops if isinstance(mesh, MeshOp)} & {JOB, IDLE}:
            raise PassFailedException(f"the module has a mesh @{min(taken)}; run {self.name} once")
        if (needed := mesh_of_module(op).device_count) != len(ranks):
            raise PassFailedException(f'ranks="{self.ranks}": the program is for {needed} ranks')
        leave_idle(op, cluster, ranks)


def leave_idle(module: ModuleOp, cluster: Cluster, ranks: Sequence[int]) -> None:
    """
    Put a program on some ranks of a cluster; see the pass.

    Args:
        module: a program for as many ranks, which is changed.
        cluster: the cluster of the job.
        ranks: its ranks that run the program, in the order of the program's own.
    """
    for each in (op for op in module.ops if isinstance(op, MeshOp)):
        each.devices = DenseArrayBase.from_list(i64, [ranks[rank] for rank in each.ranks])
    own = mesh_of_module(module).name
    others = sorted(set(range(cluster.mesh.device_count)) - set(ranks))
    idle = Mesh((Axis(cluster.mesh.spatial[-1].name, len(others)),), IDLE) if others else None
    for func in step_functions(module):
        if not Stages(func).names:
            _become_stage(func, mesh_of_module(module))
        if idle is not None:
            _share_results(func, idle)
    declared = [op for op in module.ops if isinstance(op, MeshOp | ClusterOp)]
    if idle is not None:
        module.body.block.insert_ops_after(
            [MeshOp(idle, others), ClusterOp(subcluster(cluster, idle, others))], declared[-1]
        )
    job = replace(cluster, mesh=replace(cluster.mesh, name=JOB))
    module.body.block.insert_ops_before([MeshOp(job.mesh), ClusterOp(job)], declared[0])
    if all(own not in Stages(func).names for func in step_functions(module)):
        # The program's mesh is no longer used if it is not the mesh of a stage.
        for each in declared:
            if own == (each.sym_name if isinstance(each, MeshOp) else each.mesh).data:
                each.detach()
                each.erase()
    PlanTransfersPass().apply(Context(), module)


def _become_stage(func: FuncOp, mesh: Mesh) -> None:
    first = IntegerAttr(0, i64)
    func.attributes[STAGES] = ArrayAttr([StringAttr(mesh.name)])
    merge_argument_attributes(func, {index: {STAGE: first} for index in range(len(func.body.block.args))})
    stages, slots = Stages(func), list[Attribute]()
    for op in func.body.block.ops:
        if isinstance(op, FragmentOp):
            op.stage = first
            parts = range(mesh.axis(op.axis.data).size)
            slots += (SlotAttr(Slot(Action.RUN, op.label.data, part)) for part in parts)
        elif op is not func.body.block.last_op and stages.of_op(op) is None:
            op.attributes[STAGE] = first
    if slots:
        func.attributes[SCHEDULE] = ArrayAttr([ArrayAttr(slots)])


def _share_results(func: FuncOp, idle: Mesh) -> None:
    """Add the idle ranks as a stage that receives the loss and the metrics."""
    view = StepView(func, idle)
    stages, done = Stages(func), view.terminator
    values, attributes = list(done.arguments), [view.result_attributes(index) for index in range(len(done.arguments))]
    shared = [index for index in range(len(values)) if view.is_for_all(index) and stages.of_value(values[index]) == 0]
    func.attributes[STAGES] = ArrayAttr([*map(StringAttr, (*stages.names, idle.name))])
    if (schedule := entries_of(func.attributes.get(SCHEDULE))) is not None:
        func.attributes[SCHEDULE] = ArrayAttr([*schedule, ArrayAttr[Attribute]([])])
    for index in shared:
        value = values[index]
        if not sharding_of(value).is_replicated:
            fail(func, f"result {index} is split, and is needed on idle ranks; run insert-resharding first")
        name = f"{value.name_hint or 'result'}.{idle.name}"
        sharding = ShardingAttr.of(idle.name, Sharding.replicated(len(shape_of(value))))
        transfer = TransferOp(name, value, idle.name, sharding)
        transfer.result.name_hint = name
        func.body.block.insert_op_before(transfer, done)
        values.append(transfer.result)
        attributes.append({**attributes[index], SHARDING: sharding})
    done.operands = values
    func.res_attrs = ArrayAttr([DictionaryAttr(dict(roles)) for roles in attributes])
    inputs = [argument.type for argument in func.body.block.args]
    func.function_type = FunctionType.from_lists(inputs, [value.type for value in values])
