"""Add the mesh and the cluster of a cluster file to a module."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ..dialects.mesh_ops import ClusterOp, MeshOp
from ..dialects.step import MEMORY_BUDGET
from ..ir.cluster import Cluster
from ..ir.cluster_file import ClusterFileError, find_cluster
from .step.requirements import require_no_placements
from .step.step_view import step_functions


@dataclass(frozen=True)
class AddClusterPass(ModulePass):
    """
    Put the mesh, devices and links of a cluster file at the head of the module.

    Requires: nothing.
    Ensures: the module has one `spmd.mesh @mesh` and one `spmd.cluster`, which replace earlier ones. The memory budget
    that `fit-memory` set for the earlier ones (`spmd.memory_budget`) is dropped.

    Pipeline: add-cluster{file="local-4"}

    Before:
    ```mlir
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      func.return %x : tensor<4xf32>
    }
    ```

    After:
    ```mlir
    spmd.mesh @mesh = <["gpu"=4]>
    spmd.cluster @"local-4" on @mesh devices [
      #spmd.device<"cpu", flops = {float32 = 25000000000.0, float64 = 12000000000.0}, bandwidth = 5000000000.0,
        memory = 5368709120.0, launch = 4.0e-06>
    ] placement [0, 0, 0, 0] links [#spmd.link<"gpu", alpha = 0.00085, beta = 8.333333333333334e-10>]
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      func.return %x : tensor<4xf32>
    }
    ```

    Source: the cluster files of `ir/cluster_file.py`.
    """

    name = "add-cluster"

    file: str
    """A cluster file, or the name of a shipped one."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Read the file and add its ops."""
        try:
            cluster = find_cluster(self.file)
        except ClusterFileError as error:
            raise PassFailedException(str(error)) from error
        require_no_placements(op, MeshOp(cluster.mesh), self.name)
        add_cluster(op, cluster)


def add_cluster(module: ModuleOp, cluster: Cluster) -> None:
    """
    Put the mesh and the cluster at the head of a module, in the place of earlier ones.

    The memory budget that `fit-memory` derived from the earlier ones is removed.
    """
    for func in step_functions(module):
        func.attributes.pop(MEMORY_BUDGET, None)
    block = module.body.block
    for op in list(block.ops):
        if isinstance(op, MeshOp | ClusterOp):
            op.detach()
            op.erase()
    head = [MeshOp(cluster.mesh), ClusterOp(cluster)]
    if block.first_op is None:
        block.add_ops(head)
    else:
        block.insert_ops_before(head, block.first_op)
