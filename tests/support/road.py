"""The step of `examples/road` after all its passes: two stages, uneven shares, micro-batches in two halves."""

from functools import cache
from pathlib import Path

from ir_files import context
from xdsl.dialects.builtin import ModuleOp

from shardwright.dialects.text import parse_module
from shardwright.passes.pipeline import run_pipeline

EXAMPLES = Path(__file__).parents[2] / "examples"
ROAD_PASSES = (
    f'add-cluster{{file="{EXAMPLES / "clusters" / "mixed-4.toml"}"}},prepare,'
    'partition-stages{stages=2},search-strategy,balance-ratios,split-batch{parts=4},split-batch{parts=2 axis="half"},'
    'communicate,duplex{axis="half"},overlap,join-updates,plan-transfers,schedule-pipeline{schedule=eager-1f1b},finish'
)


def imported_road() -> ModuleOp:
    """Return the imported step, before all passes."""
    path = EXAMPLES / "road" / "step.mlir"
    return parse_module(context(), path.read_text(), str(path))


@cache
def road() -> ModuleOp:
    """Return the step after all passes; it is shared, so clone it before changing it."""
    module = imported_road()
    run_pipeline(context(), module, ROAD_PASSES)
    return module
