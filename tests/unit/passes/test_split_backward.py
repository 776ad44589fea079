"""`split-backward` leaves no ops behind if it decides against a split."""

from pathlib import Path

from ir_files import context

from shardwright.dialects.text import parse_module
from shardwright.passes.split_backward import SplitBackwardPass

STEP = Path(__file__).parents[2] / "filecheck" / "passes" / "split-backward" / "by-cost.mlir"


def test_an_op_that_is_not_split_is_the_only_user_of_its_operands():
    module = parse_module(context(), STEP.read_text(), str(STEP))
    SplitBackwardPass().apply(context(), module)
    (backward,) = (op for op in module.walk() if op.name == "aten.native_layer_norm_backward")
    assert {use.operation for operand in backward.operands for use in operand.uses} == {backward}
