"""The xDSL dialects: ops, attributes, verifiers and assembly formats."""

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from .verified import VerifiesPlan

# xDSL has no verifier of a dialect's attributes on other dialects' ops, as MLIR has; a trait takes its place.
for _op in (ModuleOp, FuncOp):
    _op.traits.add_trait(VerifiesPlan())
