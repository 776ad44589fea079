"""Insert frees after the last uses of values."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from ..dialects.pipe import FragmentOp
from ..dialects.spmd import FreeOp, StartOp, TokenType
from .step.step_view import step_functions


@dataclass(frozen=True)
class InsertFreesPass(ModulePass):
    """
    Write where the memory of each value is freed: right after its last use.

    Requires: nothing; run it last, because passes that move ops move last uses.
    Ensures: every value that an op computes and the function does not return is freed once. Arguments belong to the
    caller. Operands of a `spmd.start` are kept until its `spmd.wait`. A fragment frees the values that it computes and
    does not yield; values from outside are freed after the fragment.

    Before:
    ```mlir
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
      %b = aten.exp %a : (tensor<4xf32>) -> tensor<4xf32>
      func.return %b : tensor<4xf32>
    }
    ```

    After:
    ```mlir
    func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      %a = aten.relu %x : (tensor<4xf32>) -> tensor<4xf32>
      %b = aten.exp %a : (tensor<4xf32>) -> tensor<4xf32>
      spmd.free %a : tensor<4xf32>
      func.return %b : tensor<4xf32>
    }
    ```

    Source: liveness over straight-line code.
    """

    name = "insert-frees"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        for func in step_functions(op):
            insert_frees(func)


def insert_frees(func: FuncOp) -> None:
    """Insert the frees of one function, in place; existing frees are replaced."""
    for op in list(func.walk()):
        if isinstance(op, FreeOp):
            op.detach()
            op.erase()
    for op in list(func.walk()):
        if isinstance(op, FragmentOp):
            _free_values_of(op.body.block)
    _free_values_of(func.body.block)


def _free_values_of(block: Block) -> None:
    ending: dict[Operation, list[SSAValue]] = {}
    order = {op: i for i, op in enumerate(block.ops)}
    for op in block.ops:
        for value in op.results:
            users = (block.find_ancestor_op_in_block(_end(use.operation)) for use in value.uses)
            last = max((user for user in users if user is not None), key=order.__getitem__, default=op)
            if last is not block.last_op and not isinstance(value.type, TokenType):
                ending.setdefault(last, []).append(value)
    for op, values in ending.items():
        block.insert_op_after(FreeOp(values), op)


def _end(user: Operation) -> Operation:
    """Return the op that ends a use: a collective that was started reads its operands until its wait."""
    if isinstance(user, StartOp):
        return next(iter(user.token.uses)).operation
    return user
