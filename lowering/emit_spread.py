"""How each value of a lowered step is spread, and that the step is lowered indeed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from ..dialects.compute import ComputeOp, shape_of
from ..dialects.sharding_attrs import ShardingAttr
from ..dialects.spmd import CollectiveOp, MeshOp, ReshardOp, WaitOp
from ..ir.mesh import AxisKind, Mesh
from ..ir.sharding import Sharding
from .emit_effects import roles_of_arguments
from .emit_errors import EmitError

ARGUMENT_SHARDING = "spmd.sharding"


def the_step(module: ModuleOp) -> FuncOp:
    """The one function of the module."""
    functions = [op for op in module.ops if isinstance(op, FuncOp)]
    if len(functions) != 1:
        raise EmitError(module, f"has {len(functions)} functions; a program is made from one")
    if len(functions[0].body.blocks) != 1:
        raise EmitError(functions[0], f"has {len(functions[0].body.blocks)} blocks; a step has one")
    return functions[0]


def the_mesh(module: ModuleOp) -> Mesh:
    """The one mesh of the module."""
    meshes = [op.mesh for op in module.ops if isinstance(op, MeshOp)]
    if len(meshes) != 1:
        raise EmitError(
            module, f"has {len(meshes)} meshes; a program runs on one (add-mesh, or apply-cluster)"
        )
    return meshes[0]


def shardings_of(func: FuncOp, mesh: Mesh) -> dict[SSAValue, Sharding]:
    """
    How each tensor of the function is spread; EmitError where an op gets an operand spread otherwise than it
    demands, or where something is left to decide."""
    spread: dict[SSAValue, Sharding] = {}
    for argument, attributes in zip(func.body.block.args, roles_of_arguments(func), strict=True):
        given = attributes.get(ARGUMENT_SHARDING)
        whole = Sharding.replicated(len(shape_of(argument)))
        spread[argument] = given.sharding if isinstance(given, ShardingAttr) else whole
    for op in func.body.block.ops:
        if isinstance(op, ComputeOp):
            _check_operands(op, spread)
        spread |= zip(op.results, _results(op), strict=False)
    temporal = {axis.name for axis in mesh.axes if axis.kind is AxisKind.TEMPORAL}
    for value, sharding in spread.items():
        if left := temporal.intersection((*sharding.split_axes, *sharding.partial_axes)):
            raise EmitError(
                func, f'%{value.name_hint} is split over time along "{left.pop()}"; unroll the axis first'
            )
    return spread


def _check_operands(op: ComputeOp, spread: Mapping[SSAValue, Sharding]) -> None:
    if (given := op.signature) is None:
        raise EmitError(op, "has no signature; run search-strategy")
    for name, value, demanded in zip(op.operand_names(), op.args, given.operands, strict=True):
        if spread[value] != demanded:
            raise EmitError(
                op,
                f"operand '{name}' is spread as {spread[value]} and not as {demanded}; run insert-resharding",
            )


def _results(op: Operation) -> Iterator[Sharding]:
    match op:
        case ComputeOp() if op.signature is not None:
            yield from op.signature.results
        case CollectiveOp():
            yield op.sharding
        case WaitOp():
            yield from (entry.sharding for entry in op.start.out_shardings)
        case ReshardOp():
            raise EmitError(op, "is a change of sharding without its collectives; run select-collectives")
        case _:
            return
