"""
Verifying the attributes on functions and modules, which are ops of xDSL's.

A trait of theirs, which `dialects/__init__.py` adds once any dialect of this package is imported: whoever verifies a
module verifies the attributes in which passes write what they decide, and that values are used where they
are there, which xDSL does not look at.
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
    """Verifies the attributes on a function or module, and on the ops in it, by their names."""

    def verify(self, op: Operation) -> None:
        """
        Raise VerifyException unless they are, and unless values in functions are used where they are there.

        InnerFault says of which op in `op` it is.
        """
        # Imported here, for this module is imported before any of the dialects that it looks at.
        from .known_attributes import verify_function_attributes, verify_op_attributes
        from .uses import verify_uses

        for each in _looked_after(op):
            try:
                verify_op_attributes(each)
            except VerifyException as error:
                raise error if each is op else InnerFault(each, str(error)) from error
        if isinstance(op, FuncOp):
            verify_function_attributes(op)
            verify_uses(op)


def _looked_after(op: Operation) -> Iterator[Operation]:
    """Yield `op` and the ops in it, but for those that are in a function or module in it."""
    yield op
    for child in (child for region in op.regions for block in region.blocks for child in block.ops):
        if not isinstance(child, FuncOp | ModuleOp):
            yield from _looked_after(child) if child.regions else (child,)
