"""A check whether a model computes in float32 where float64 is requested."""

from __future__ import annotations

from xdsl.dialects.builtin import Float32Type, ModuleOp, TensorType

from shardwright.dialects.aten import AtenOp, OpaqueOp


def is_mixed(doubled: ModuleOp) -> bool:
    """Return whether a step that is imported in float64 computes float32 values, as many do in their loss or norms."""
    results = (value for op in doubled.walk() if isinstance(op, AtenOp | OpaqueOp) for value in op.results)
    used = (value.type for value in results if value.first_use is not None)
    return any(isinstance(type, TensorType) and type.element_type == Float32Type() for type in used)
