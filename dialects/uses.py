"""Verify that the values of a function are defined, and not yet freed, where they are used; xDSL does not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region, SSAValue

from .faults import InnerFault
from .reuse import memory_of, values_taken_over
from .spmd import FreeOp


def verify_uses(func: FuncOp) -> None:
    """
    Raise InnerFault at the first op that uses a value above its definition in the same block or around it, a value of
    another op's region, or a value whose memory was freed or taken over by another result; and at an op outside of the
    function that uses one of its values.
    """
    for region in func.regions:
        for block in region.blocks:
            values = (*block.args, *(result for op in block.ops for result in op.results))
            for use in chain.from_iterable(value.uses for value in values):
                if use.operation.parent is not block and not func.is_ancestor(use.operation):
                    where = f"the function @{func.sym_name.data}"
                    raise InnerFault(use.operation, f"operand {use.index} is a value of {where}; move the op into it")
        _Uses().verify(region)


class _Uses:
    """The values that are defined at a point of a function, and the values that were freed before it."""

    def __init__(self) -> None:
        self._there: set[SSAValue] = set()
        self._freed: set[SSAValue] = set()
        self._views: dict[SSAValue, list[SSAValue]] = {}
        self._overwritten: dict[SSAValue, Operation] = {}

    def verify(self, region: Region) -> None:
        """Verify the ops of a region in order; the values that it defines go out of scope after it."""
        defined: list[SSAValue] = []
        for block in region.blocks:
            self._there.update(block.args)
            defined += block.args
            for op in block.ops:
                if not self._there.issuperset(op.operands):
                    self._verify_operands(op)
                for inner in op.regions:
                    self.verify(inner)
                self._there.update(op.results)
                defined += op.results
                if isinstance(op, FreeOp):
                    self._there.difference_update(op.operands)
                    self._freed.update(op.operands)
                elif taken := values_taken_over(op):
                    for value in taken:
                        root = memory_of(value)
                        gone = (root, *self._views.get(root, ()))
                        self._there.difference_update(gone)
                        self._overwritten.update(dict.fromkeys(gone, op))
                for result in op.results:
                    if (viewed := memory_of(result)) is not result:
                        self._views.setdefault(viewed, []).append(result)
        self._there.difference_update(defined)

    def _verify_operands(self, op: Operation) -> None:
        for index, operand in enumerate(op.operands):
            # Freeing a value ends its name, even if another value has its memory by then.
            if isinstance(op, FreeOp) and operand in self._overwritten and operand not in self._freed:
                continue
            if operand not in self._there and (reason := self._fault(op, index, operand)) is not None:
                raise InnerFault(op, reason)

    def _fault(self, op: Operation, index: int, operand: SSAValue) -> str | None:
        """Return why `op` may not use an undefined operand, or None if another block of its region may define it."""
        if (by := self._overwritten.get(operand)) is not None:
            return f"uses %{operand.name_hint or '?'} after '{by.name}' wrote over its memory; run reuse-buffers last"
        if operand in self._freed:
            return f"uses %{operand.name_hint or '?'} after its memory was given back by 'spmd.free'"
        definition = operand.owner
        home = definition if isinstance(definition, Block) else definition.parent
        around = tuple(_blocks_around(op))
        if home is not None and all(block.parent is not home.parent for block in around):
            return f"operand {index} is defined inside of another op, which does not return it"
        if isinstance(definition, Block):
            return None
        if definition.is_ancestor(op):
            return f"operand {index} is a result of the op around it, '{definition.name}'"
        if any(block is definition.parent for block in around):
            return f"operand {index} is defined only further down, by '{definition.name}'"
        return None


def _blocks_around(op: Operation) -> Iterator[Block]:
    """Yield the block of `op`, the block of its parent op, and so on outwards."""
    around: Operation | None = op
    while around is not None and around.parent is not None:
        yield around.parent
        around = around.parent_op()
