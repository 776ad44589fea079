"""Removal of the memory plan that the last passes of a pipeline write, which is valid for one order of ops only."""

from xdsl.ir import Block

from ...dialects.reuse import REUSES
from ...dialects.spmd import FreeOp


def forget_memory_plan(block: Block) -> None:
    """Remove the output of `reuse-buffers` and `insert-frees` from a block and the fragments in it."""
    for op in list(block.ops):
        if isinstance(op, FreeOp):
            op.detach()
            op.erase()
            continue
        op.attributes.pop(REUSES, None)
        for region in op.regions:
            for inner in region.blocks:
                forget_memory_plan(inner)
