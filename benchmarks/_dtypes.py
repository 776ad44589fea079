"""Whether a model keeps to its dtype."""

from __future__ import annotations

from xdsl.dialects.builtin import Float32Type, ModuleOp, TensorType

from shardwright.dialects.aten import AtenOp, OpaqueOp


def is_mixed(doubled: ModuleOp) -> bool:
    """
    Whether a step computes in float32 what is asked for in float64, as many do in their loss or their normalisation.

    Args:
        doubled: the step, imported in float64.
    """
    results = (value for op in doubled.walk() if isinstance(op, AtenOp | OpaqueOp) for value in op.results)
    used = (value.type for value in results if value.first_use is not None)
    return any(isinstance(type, TensorType) and type.element_type == Float32Type() for type in used)
