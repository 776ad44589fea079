"""
Verify the attributes on functions and modules, which are ops of xDSL.

The trait below is added to these ops in `dialects/__init__.py` once any dialect of this package is imported. Verifying
a module then verifies the attributes that hold the decisions of passes, and that used values are defined; xDSL checks
neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.traits import OpTrait
from xdsl.utils.exceptions import VerifyException

from .faults import InnerFault


@dataclass(frozen=True)
class VerifiesPlan(OpTrait):
    """Verify the attributes on a function or module, and on the ops in it, by their names."""

    def verify(self, op: Operation) -> None:
        """
        Raise VerifyException unless the attributes are valid and the values in functions are used where they are
        defined.

        An InnerFault carries the nested op at fault.
        """
        # Imported here, since this module is imported before the dialects that these modules use.
        from .known_attributes import verify_function_attributes, verify_op_attributes
        from .uses import verify_uses

        for inner in _looked_after(op):
            try:
                verify_op_attributes(inner)
            except VerifyException as error:
                raise error if inner is op else InnerFault(inner, str(error)) from error
        if isinstance(op, FuncOp):
            verify_function_attributes(op)
            verify_uses(op)


def _looked_after(op: Operation) -> Iterator[Operation]:
    """Yield `op` and the ops nested in it, except nested functions and modules and their ops."""
    yield op
    for child in (child for region in op.regions for block in region.blocks for child in block.ops):
        if not isinstance(child, FuncOp | ModuleOp):
            yield from _looked_after(child) if child.regions else (child,)
