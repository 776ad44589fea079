"""What the last passes of a pipeline write about memory, which holds for one order of ops."""

from xdsl.ir import Block

from ...dialects.reuse import REUSES
from ...dialects.spmd import FreeOp


def forget_memory_plan(block: Block) -> None:
    """Remove what `reuse-buffers` and `insert-frees` wrote into a block and the fragments in it."""
    for op in list(block.ops):
        if isinstance(op, FreeOp):
            op.detach()
            op.erase()
            continue
        op.attributes.pop(REUSES, None)
        for region in op.regions:
            for inner in region.blocks:
                forget_memory_plan(inner)
