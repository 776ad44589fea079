"""The ops that declare a mesh, and the devices and links of its cluster."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DenseArrayBase,
    FlatSymbolRefAttrConstr,
    ModuleOp,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    TensorType,
    i64,
)
from xdsl.ir import Attribute, Operation
from xdsl.irdl import IRDLOperation, irdl_op_definition, opt_prop_def, prop_def, traits_def
from xdsl.traits import HasParent, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from ..ir.cluster import Cluster, Interference
from ..ir.mesh import Mesh
from .cluster_attrs import DeviceAttr, InterferenceAttr, LinkAttr, TopologyAttr
from .sharding_attrs import MeshAttr, ShardingAttr


@irdl_op_definition
class MeshOp(IRDLOperation):
    """
    The mesh of shardings: `spmd.mesh @mesh = <["node"=2, "gpu"=4]>`.

    The mesh of a stage covers a part of the cluster: `on [4, 5, 6, 7]` lists the ranks of the job that are its ranks 0,
    1, 2 and 3. Without the list, a rank has the same number in both.
    """

    name = "spmd.mesh"

    sym_name = prop_def(SymbolNameConstraint())
    axes = prop_def(MeshAttr)
    devices = opt_prop_def(DenseArrayBase.constr(I64))

    traits = traits_def(SymbolOpInterface(), HasParent(ModuleOp))

    assembly_format = "$sym_name `=` $axes (`on` $devices^)? attr-dict"

    def __init__(self, mesh: Mesh, devices: Sequence[int] | None = None):
        super().__init__(
            properties={
                "sym_name": StringAttr(mesh.name),
                "axes": MeshAttr(mesh),
                "devices": DenseArrayBase.from_list(i64, devices) if devices is not None else None,
            }
        )

    def verify_(self) -> None:
        ranks, count = self.ranks, self.mesh.device_count
        if len(ranks) != count or len(set(ranks)) != count or min(ranks, default=0) < 0:
            raise VerifyException(
                f"mesh {self.mesh} of {count} devices is placed on ranks {list(ranks)}, expected a rank for each device"
            )

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the job, in the order of the mesh's ranks."""
        if self.devices is None:
            return tuple(range(self.mesh.device_count))
        return tuple(int(rank) for rank in self.devices.get_values())

    @property
    def mesh(self) -> Mesh:
        """The mesh, under its symbol name."""
        return Mesh(self.axes.data.axes, self.sym_name.data)


@irdl_op_definition
class ClusterOp(IRDLOperation):
    """
    The devices and links of a mesh, so that passes on a file can compute costs.

    `placement` maps each rank to the index of its kind of device; `links` has one entry per mesh axis or, where there
    is a `topology`, one per measured axis or group of axes.
    """

    name = "spmd.cluster"

    sym_name = prop_def(SymbolNameConstraint())
    mesh_ref = prop_def(FlatSymbolRefAttrConstr, prop_name="mesh")
    devices = prop_def(ArrayAttr[DeviceAttr])
    placement = prop_def(DenseArrayBase.constr(I64))
    links = prop_def(ArrayAttr[LinkAttr])
    topology = opt_prop_def(TopologyAttr)
    interference = opt_prop_def(InterferenceAttr)

    traits = traits_def(SymbolOpInterface(), HasParent(ModuleOp))

    assembly_format = (
        "$sym_name `on` $mesh `devices` $devices `placement` $placement `links` $links"
        " (`topology` $topology^)? (`interference` $interference^)? attr-dict"
    )

    def __init__(self, cluster: Cluster):
        usual = cluster.interference == Interference()
        super().__init__(
            properties={
                "sym_name": StringAttr(cluster.name),
                "mesh": SymbolRefAttr(cluster.mesh.name),
                "devices": ArrayAttr([DeviceAttr(device) for device in cluster.devices]),
                "placement": DenseArrayBase.from_list(i64, cluster.placement),
                "links": ArrayAttr([LinkAttr(link) for link in cluster.links]),
                "topology": TopologyAttr(cluster.topology) if cluster.topology is not None else None,
                "interference": None if usual else InterferenceAttr(cluster.interference),
            }
        )

    def verify_(self) -> None:
        try:
            self.cluster(find_mesh(self, self.mesh.data))
        except ValueError as error:
            raise VerifyException(str(error)) from error

    @property
    def mesh(self) -> StringAttr:
        """The symbol name of the mesh."""
        return self.mesh_ref.root_reference

    def cluster(self, mesh: Mesh) -> Cluster:
        """Return the cluster as a pure value."""
        return Cluster(
            self.sym_name.data,
            mesh,
            tuple(device.data for device in self.devices),
            tuple(int(kind) for kind in self.placement.get_values()),
            tuple(link.data for link in self.links),
            self.interference.data if self.interference is not None else Interference(),
            self.topology.data if self.topology is not None else None,
        )


def meshes_of(op: Operation) -> list[MeshOp]:
    """Return the meshes of the module that contains `op`."""
    top: Operation | None = op
    while top is not None and not isinstance(top, ModuleOp):
        top = top.parent_op()
    return [m for m in top.ops if isinstance(m, MeshOp)] if isinstance(top, ModuleOp) else []


def find_mesh(op: Operation, name: str) -> Mesh:
    """Return the mesh that the symbol `name` stands for at `op`; raise VerifyException if there is none."""
    meshes = meshes_of(op)
    for mesh in meshes:
        if mesh.sym_name.data == name:
            return mesh.mesh
    known = ", ".join(f"@{m.sym_name.data}" for m in meshes) or "none"
    raise VerifyException(f"there is no mesh @{name}; the module's meshes: {known}")


def verify_sharding(op: Operation, given: ShardingAttr, value_type: Attribute) -> Mesh:
    """Return the mesh of `given`; raise VerifyException unless it is a sharding of a value of `value_type`."""
    mesh = find_mesh(op, given.data.mesh)
    shape = value_type.get_shape() if isinstance(value_type, TensorType) else None
    try:
        given.sharding.verify(mesh, shape)
    except ValueError as error:
        raise VerifyException(str(error)) from error
    return mesh
