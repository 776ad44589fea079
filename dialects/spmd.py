"""
The `spmd` dialect: meshes, clusters, changes of sharding and the collectives that implement them.

Types are global throughout: a collective is the identity on the global value, and only the sharding changes.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    TensorType,
    UnitAttr,
)
from xdsl.ir import Attribute, Block, Dialect, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    base,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from ..ir.collective_cost import METHODS, Method, may_have_phases
from ..ir.collectives import CollectiveKind, Step, find_step
from ..ir.mesh import AxisKind, Mesh
from ..ir.sharding import Reduction, Sharding
from .cluster_attrs import DeviceAttr, InterferenceAttr, LinkAttr, TopologyAttr
from .kinds import one_of
from .mesh_ops import ClusterOp, MeshOp, find_mesh, verify_sharding
from .pins import OpPinAttr, PinEntryAttr, ValuePinAttr
from .placed import GivesShardings, sharding_of
from .sharding_attrs import AxesAttr, MeshAttr, RatiosAttr, RuleAttr, ShardingAttr, SignatureAttr
from .words import CollectiveKindAttr, MethodAttr


class ReshardingOp(IRDLOperation, GivesShardings, ABC):
    """The base class of ops that change the sharding of a value: identities on the global value."""

    T: ClassVar = VarConstraint("T", base(TensorType[Attribute]))

    operand = operand_def(T)
    result = result_def(T)
    out_sharding = prop_def(ShardingAttr)

    traits = traits_def(Pure())

    @property
    def sharding(self) -> Sharding:
        """The sharding of the result."""
        return self.out_sharding.sharding

    def result_sharding(self, index: int) -> Sharding:
        """Return the sharding of the only result."""
        return self.sharding

    def verify_(self) -> None:
        verify_sharding(self, self.out_sharding, self.result.type)


@irdl_op_definition
class ReshardOp(ReshardingOp):
    """
    A change of sharding before a collective is chosen for it.

    With `regather`, a value is copied twice, for forward and again for backward, and this is one of the copies; without
    it, a single copy stays alive from forward to backward.
    """

    name = "spmd.reshard"

    regather = opt_prop_def(UnitAttr)

    assembly_format = "$operand `to` $out_sharding (`regather` $regather^)? attr-dict `:` type($operand)"

    def __init__(self, operand: SSAValue | Operation, out: ShardingAttr, *, regather: bool = False):
        value = SSAValue.get(operand)
        super().__init__(
            operands=[value],
            result_types=[value.type],
            properties={"out_sharding": out, "regather": UnitAttr() if regather else None},
        )


class CollectiveOp(ReshardingOp, ABC):
    """A collective. `axes` repeats, for the reader, the axes that its shardings imply; the verifier compares them."""

    KIND: ClassVar[CollectiveKind]

    axes = prop_def(AxesAttr)
    method = opt_prop_def(MethodAttr)
    regather = opt_prop_def(UnitAttr)

    assembly_format = (
        "$axes $operand `out_sharding` `=` $out_sharding (`method` `=` $method^)? (`regather` $regather^)?"
        " attr-dict `:` type($operand)"
    )

    def __init__(
        self,
        operand: SSAValue | Operation,
        mesh: str,
        step: Step,
        *,
        method: Method | None = None,
        regather: bool = False,
    ):
        value = SSAValue.get(operand)
        super().__init__(
            operands=[value],
            result_types=[value.type],
            properties={
                "out_sharding": ShardingAttr.of(mesh, step.target),
                "axes": axes_of(step),
                "method": MethodAttr(method) if method is not None else None,
                "regather": UnitAttr() if regather else None,
            },
        )

    def verify_(self) -> None:
        mesh = verify_sharding(self, self.out_sharding, self.result.type)
        step = self.step(sharding_of(self.operand), mesh)
        _verify_method(self, self.KIND, self.method)
        _verify_phases(self, step, mesh, self.method)

    def step(self, source: Sharding, mesh: Mesh) -> Step:
        """Return the step from `source` to the op's sharding; raise VerifyException if the collective cannot do it."""
        step = find_step(self.KIND, source, self.sharding, mesh)
        if step is None:
            raise VerifyException(f"'{self.name}' does not convert {source} to {self.sharding}")
        if axes_of(step) != self.axes:
            raise VerifyException(
                f"'{self.name}' works on axes {Sharding.of(self.axes.data)} but its shardings imply"
                f" {Sharding.of(axes_of(step).data)}"
            )
        return step


def _verify_method(op: Operation, kind: CollectiveKind, method: MethodAttr | None) -> None:
    if method is not None and method.data not in METHODS[kind]:
        expected = one_of(METHODS[kind]).words if METHODS[kind] else "none, since it sends nothing"
        raise VerifyException(f"'{op.name}' of kind {kind} has the method \"{method.data}\", expected {expected}")


def _verify_phases(op: Operation, step: Step, mesh: Mesh, method: MethodAttr | None) -> None:
    if method is not None and method.data == "hierarchical" and not may_have_phases(step, mesh):
        raise VerifyException(
            f"'{op.name}' over {Sharding.of([step.axes])} has the method \"hierarchical\", which needs several spatial"
            " axes in the mesh's order and, in an all-to-all, two dims; choose another method"
        )


def axes_of(step: Step) -> AxesAttr:
    """Return the axes of a step as collective ops write them: by dim, or one list for a step without a dim."""
    rank = len(step.source.dims)
    if step.dim is None:
        return AxesAttr((step.axes,))
    dim = step.dim if step.to_dim is None else step.to_dim
    return AxesAttr(tuple(step.axes if i == dim else () for i in range(rank)))


@irdl_op_definition
class AllReduceOp(CollectiveOp):
    """Every device of a group gets the reduction of their partial values."""

    name = "spmd.all_reduce"
    KIND: ClassVar[CollectiveKind] = CollectiveKind.ALL_REDUCE


@irdl_op_definition
class AllGatherOp(CollectiveOp):
    """Every device of a group gets the parts of all devices, along the dims that list axes."""

    name = "spmd.all_gather"
    KIND: ClassVar[CollectiveKind] = CollectiveKind.ALL_GATHER


@irdl_op_definition
class ReduceScatterOp(CollectiveOp):
    """Every device of a group gets its part of the reduction, along the dim that lists axes."""

    name = "spmd.reduce_scatter"
    KIND: ClassVar[CollectiveKind] = CollectiveKind.REDUCE_SCATTER


@irdl_op_definition
class AllToAllOp(CollectiveOp):
    """The split of a value moves from one dim to the dim that lists axes."""

    name = "spmd.all_to_all"
    KIND: ClassVar[CollectiveKind] = CollectiveKind.ALL_TO_ALL


@irdl_op_definition
class SliceOp(CollectiveOp):
    """Each device keeps its part along the dim that lists axes; nothing is sent."""

    name = "spmd.slice"
    KIND: ClassVar[CollectiveKind] = CollectiveKind.SLICE


@irdl_op_definition
class PartialOp(CollectiveOp):
    """The first device of a group keeps the value, the others hold zeros; nothing is sent."""

    name = "spmd.partial"
    KIND: ClassVar[CollectiveKind] = CollectiveKind.PARTIAL


COLLECTIVES: dict[CollectiveKind, type[CollectiveOp]] = {
    op.KIND: op for op in (AllReduceOp, AllGatherOp, ReduceScatterOp, AllToAllOp, SliceOp, PartialOp)
}


@irdl_attr_definition
class TokenType(ParametrizedAttribute, TypeAttribute):
    """The type of a collective in flight."""

    name = "spmd.token"


@irdl_op_definition
class StartOp(IRDLOperation):
    """
    Start one collective on one operand, or on several at once (a bucket); `spmd.wait` returns the results.

    `out_shardings` has one entry per operand; all operands need the same kind of collective over the same axes.
    """

    name = "spmd.start"

    kind = prop_def(CollectiveKindAttr)
    args = var_operand_def(base(TensorType[Attribute]))
    out_shardings = prop_def(ArrayAttr[ShardingAttr])
    method = opt_prop_def(MethodAttr)
    token = result_def(TokenType)

    assembly_format = (
        "$kind $args `out_shardings` `=` $out_shardings (`method` `=` $method^)? attr-dict `:` type($args)"
    )

    def __init__(
        self,
        kind: CollectiveKind,
        args: Sequence[SSAValue],
        out_shardings: Sequence[ShardingAttr],
        method: Method | None = None,
    ):
        super().__init__(
            operands=[args],
            result_types=[TokenType()],
            properties={
                "kind": CollectiveKindAttr(kind),
                "out_shardings": ArrayAttr(out_shardings),
                "method": MethodAttr(method) if method is not None else None,
            },
        )

    def verify_(self) -> None:
        _verify_method(self, self.collective, self.method)
        if len(self.args) != len(self.out_shardings):
            raise VerifyException(f"'spmd.start' has {len(self.args)} operands and {len(self.out_shardings)} shardings")
        axes = {self._step(arg, out).axes for arg, out in zip(self.args, self.out_shardings, strict=True)}
        if len(axes) > 1:
            listed = " and ".join(str(Sharding.of([names])) for names in sorted(axes))
            raise VerifyException(f"'spmd.start' works on {listed} at once, expected one set of axes")

        if (waits := len(tuple(self.token.uses))) != 1:
            raise VerifyException(f"'spmd.start' is waited for {waits} times, expected once")

    def _step(self, arg: SSAValue, out: ShardingAttr) -> Step:
        mesh, source = verify_sharding(self, out, arg.type), sharding_of(arg)
        step = find_step(self.collective, source, out.sharding, mesh)
        if step is None:
            raise VerifyException(f"'{self.kind.data}' does not convert {source} to {out.sharding}")
        _verify_phases(self, step, mesh, self.method)
        return step

    @property
    def collective(self) -> CollectiveKind:
        """The kind of the collective."""
        return self.kind.data


@irdl_op_definition
class WaitOp(IRDLOperation, GivesShardings):
    """The results of a collective, once it has completed."""

    name = "spmd.wait"

    token = operand_def(TokenType)
    outs = var_result_def(base(TensorType[Attribute]))

    assembly_format = "$token attr-dict `:` type($outs)"

    def __init__(self, start: StartOp):
        super().__init__(operands=[start.token], result_types=[[arg.type for arg in start.args]])

    def verify_(self) -> None:
        start = self.token.owner
        if not isinstance(start, StartOp):
            raise VerifyException("'spmd.wait' takes the token of a 'spmd.start'")
        if [arg.type for arg in start.args] != [out.type for out in self.outs]:
            raise VerifyException("'spmd.wait' has different types than the operands of its 'spmd.start'")

    def result_sharding(self, index: int) -> Sharding | None:
        """Return the sharding that the collective gives result `index`."""
        return self.start.out_shardings.data[index].sharding

    @property
    def start(self) -> StartOp:
        """The op that started the collective."""
        assert isinstance(self.token.owner, StartOp)
        return self.token.owner


@irdl_op_definition
class AccumulateOp(IRDLOperation, GivesShardings):
    """
    The reduction of two parts of an unrolled temporal axis over which a value is partial.

    `out_sharding` equals the sharding of the operands while the reduction lacks parts; the last reduction removes the
    axis.
    """

    name = "spmd.accumulate"

    T: ClassVar = VarConstraint("T", base(TensorType[Attribute]))

    total = operand_def(T)
    part = operand_def(T)
    result = result_def(T)
    out_sharding = prop_def(ShardingAttr)

    traits = traits_def(Pure())

    assembly_format = "$total `,` $part `out_sharding` `=` $out_sharding attr-dict `:` type($total)"

    def __init__(self, total: SSAValue, part: SSAValue, out: ShardingAttr):
        super().__init__(operands=[total, part], result_types=[total.type], properties={"out_sharding": out})

    def result_sharding(self, index: int) -> Sharding:
        """Return `out_sharding`."""
        return self.out_sharding.sharding

    @property
    def reduction(self) -> Reduction:
        """The reduction that combines the two parts."""
        mesh = find_mesh(self, self.out_sharding.data.mesh)
        temporal = {axis.name for axis in mesh.axes if axis.kind is AxisKind.TEMPORAL}
        return next(kind for axis, kind in sharding_of(self.total).partial if axis in temporal)

    def verify_(self) -> None:
        mesh = verify_sharding(self, self.out_sharding, self.result.type)
        source, out = sharding_of(self.total), self.out_sharding.sharding
        if source != sharding_of(self.part):
            raise VerifyException(f"'spmd.accumulate' of {source} and {sharding_of(self.part)}, expected one sharding")
        temporal = {axis.name for axis in mesh.axes if axis.kind is AxisKind.TEMPORAL}
        gone = set(source.partial_axes) - set(out.partial_axes)
        left = Sharding(source.dims, tuple(p for p in source.partial if p[0] not in gone))
        if left != out or not gone <= temporal or not temporal & set(source.partial_axes):
            raise VerifyException(
                f"'spmd.accumulate' converts {source} to {out}; its operands must be partial over temporal axes, and"
                " its result may lack only temporal axes"
            )


@irdl_op_definition
class FreeOp(IRDLOperation):
    """Free the memory of values after their last use."""

    name = "spmd.free"

    args = var_operand_def(AnyAttr())

    assembly_format = "$args attr-dict `:` type($args)"

    def __init__(self, args: Sequence[SSAValue]):
        super().__init__(operands=[args])

    def verify_(self) -> None:
        """Raise VerifyException for values of another block: a loop must not free values from outside of it."""
        for value in self.args:
            home = value.owner if isinstance(value.owner, Block) else value.owner.parent
            if home is not self.parent:
                name = f"%{value.name_hint}" if value.name_hint else "a value"
                raise VerifyException(f"frees {name} of another block; free it in the block that defines it")


SPMD = Dialect(
    "spmd",
    [MeshOp, ClusterOp, ReshardOp, *COLLECTIVES.values(), StartOp, WaitOp, AccumulateOp, FreeOp],
    [
        MeshAttr,
        ShardingAttr,
        RatiosAttr,
        SignatureAttr,
        AxesAttr,
        RuleAttr,
        PinEntryAttr,
        ValuePinAttr,
        OpPinAttr,
        DeviceAttr,
        LinkAttr,
        TopologyAttr,
        InterferenceAttr,
        TokenType,
        MethodAttr,
        CollectiveKindAttr,
    ],
)
