"""Check the requirements of emission: a fully lowered step, and a mesh if it has no stages."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from ...dialects.compute import ComputeOp
from ...dialects.mesh_ops import MeshOp
from ...dialects.pipe import FragmentOp
from ...dialects.reuse import REUSES
from ...dialects.spmd import ReshardOp
from ...dialects.step import sharding_of
from ...dialects.train import overwritten_by_update
from ...ir.mesh import Mesh
from .errors import EmitError


def the_step(module: ModuleOp) -> FuncOp:
    """Return the only function of the module."""
    functions = [op for op in module.ops if isinstance(op, FuncOp)]
    if len(functions) != 1:
        raise EmitError(module, f"has {len(functions)} functions, expected one")
    if len(functions[0].body.blocks) != 1:
        raise EmitError(functions[0], f"has {len(functions[0].body.blocks)} blocks, expected one")
    return functions[0]


def the_mesh(module: ModuleOp) -> Mesh:
    """Return the only mesh of the module."""
    meshes = [op.mesh for op in module.ops if isinstance(op, MeshOp)]
    if len(meshes) != 1:
        raise EmitError(module, f"has {len(meshes)} meshes, expected one; run add-cluster")
    return meshes[0]


def check_lowered(func: FuncOp) -> None:
    """
    Check that every operand has the sharding that its op requires, that every resharding is a collective, and that the
    step says which memory is overwritten.

    Raises:
        EmitError: an op violates this; the error names the first such op.
    """
    for op in func.body.walk():
        if isinstance(op, ReshardOp):
            raise EmitError(op, "has no collective yet; run select-collectives")
        if isinstance(op, ComputeOp):
            _check_operands(op)
        if REUSES not in op.attributes and overwritten_by_update(op):
            raise EmitError(op, f"lacks the operands that it overwrites ({REUSES}); run reuse-buffers")
        if REUSES not in op.attributes and isinstance(op, FragmentOp) and op.outs:
            raise EmitError(op, f"lacks the buffers that its parts are summed in ({REUSES}); run reuse-buffers")


def _check_operands(op: ComputeOp) -> None:
    if op.signature is None:
        raise EmitError(op, "has no signature; run search-strategy")
    for name, value, demanded in zip(op.operand_names(), op.args, op.signature.operands, strict=True):
        if (actual := sharding_of(value)) != demanded:
            raise EmitError(op, f"operand '{name}' is spread as {actual}, expected {demanded}; run insert-resharding")
