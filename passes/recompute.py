"""Recompute values of forward in backward, to save memory: activation checkpointing."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ..dialects import train
from ..dialects.compute import ComputeOp
from ..dialects.step import BACKWARD, CHECKPOINT, RECOMPUTED, argument_attribute
from ..ir.mesh import Mesh
from .analysis.compute import is_cast, spec_of
from .recomputing.activations import Activations
from .recomputing.kept_values import choose
from .step.requirements import require_no_resharding
from .step.step_view import StepView, cluster_of_module, step_functions


@dataclass(frozen=True)
class RecomputePass(ModulePass):
    """
    Keep fewer values of forward for backward, and recompute the others there: activation checkpointing.

    Ops that the model runs under `torch.utils.checkpoint` (`train.checkpoint`) are recomputed. With `keep` below 1,
    further values are recomputed until the kept values take at most that fraction of the bytes of all: first the values
    that cost the fewest seconds per byte, by the roofline of the cluster's devices. Ops are recomputed right before the
    first op of backward that needs them; values between layers are kept. Random numbers are the same, because they
    depend on seed and place.

    Requires: a step function that is not divided into stages; a cluster if `keep` is below 1.
    Ensures: the same results. Recomputed ops have `train.backward` and `train.recomputed`.

    Before:
    ```mlir
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4x4xf32> {train.param = "w"})
        -> (tensor<f32> {train.loss}, tensor<8x4xf32>) {
      %a = aten.mm %x, %w {train.checkpoint = 1 : i64} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      %b = aten.tanh %a {train.checkpoint = 1 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %c = aten.relu %b {train.checkpoint = 1 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %loss = aten.sum %c : (tensor<8x4xf32>) -> tensor<f32>
      %g = aten.mul.Tensor %c, %b {train.backward} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
      func.return %loss, %g : tensor<f32>, tensor<8x4xf32>
    }
    ```

    Pipeline: recompute

    After:
    ```mlir
    func.func @step(%x: tensor<8x4xf32> {train.batch = "0"}, %w: tensor<4x4xf32> {train.param = "w"})
        -> (tensor<f32> {train.loss}, tensor<8x4xf32>) {
      %a = aten.mm %x, %w {train.checkpoint = 1 : i64} : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      %b = aten.tanh %a {train.checkpoint = 1 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %c = aten.relu %b {train.checkpoint = 1 : i64} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %loss = aten.sum %c : (tensor<8x4xf32>) -> tensor<f32>
      %a.again = aten.mm %x, %w {train.backward, train.recomputed}
        : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
      %b.again = aten.tanh %a.again {train.backward, train.recomputed} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %g = aten.mul.Tensor %c, %b.again {train.backward} : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xf32>
      func.return %loss, %g : tensor<f32>, tensor<8x4xf32>
    }
    ```

    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; Korthikanti et al., MLSys 2023 (values
    that are cheap to recompute); `recomputing/kept_values.py` for the choice.
    """

    name = "recompute"

    keep: int | float = 1
    """Fraction of the bytes from forward to backward that may be kept; 1 keeps all but values marked in the model."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Run on every step function of the module."""
        if not 0 <= self.keep <= 1:
            raise PassFailedException(f"recompute: keep={self.keep}, expected a fraction between 0 and 1")
        for func in step_functions(op):
            if self.keep == 1 and not any(CHECKPOINT in inner.attributes for inner in func.body.block.ops):
                continue
            require_no_resharding(func, self.name)
            cluster = cluster_of_module(op) if self.keep < 1 else None
            activations = Activations(StepView(func, cluster.mesh if cluster is not None else Mesh(())), cluster)
            chosen = choose(activations.ops, activations.values, self.keep)
            _Recomputer(func, {activations.forward[number] for number in chosen.again}).run()


class _Recomputer:
    """A rewrite of backward that repeats ops of forward; used once."""

    def __init__(self, func: FuncOp, again: set[ComputeOp]) -> None:
        self.block, self.again = func.body.block, again
        self.values: dict[SSAValue, SSAValue] = {}

    def run(self) -> None:
        for op in list(self.block.ops):
            if BACKWARD in op.attributes:
                for index, value in enumerate(op.operands):
                    if (instead := self._value(value, op)) is not value:
                        op.operands[index] = instead

    def _value(self, value: SSAValue, user: Operation) -> SSAValue:
        """Return the value that backward uses in the place of `value`, computed before `user` if it is missing."""
        if not isinstance(value, OpResult) or not isinstance(op := value.op, ComputeOp) or BACKWARD in op.attributes:
            return value
        if op not in self.again and not _looks_at_parameter(value):
            return value
        if value not in self.values:
            operands = [self._value(operand, user) for operand in op.operands]
            if spec_of(op).view and operands[0] is op.operands[0] and not _looks_at_parameter(value):
                self.values[value] = value
            else:
                self._clone(op, operands, user)
        return self.values[value]

    def _clone(self, op: ComputeOp, operands: list[SSAValue], user: Operation) -> None:
        new = op.clone()
        new.operands = operands
        new.attributes.pop(CHECKPOINT, None)
        new.attributes |= {BACKWARD: UnitAttr(), RECOMPUTED: UnitAttr()}
        new.location = op.location
        self.block.insert_op_before(new, user)
        for result, before in zip(new.results, op.results, strict=True):
            result.name_hint = f"{before.name_hint or 'value'}.again"
            self.values[before] = result


def _looks_at_parameter(value: SSAValue) -> bool:
    """Return whether a value is a view or cast of a parameter; in forward it would keep the gathered copy alive."""
    while isinstance(value, OpResult) and isinstance(op := value.op, ComputeOp):
        if not spec_of(op).view and not is_cast(op):
            break
        value = op.args[0]
    return isinstance(value, BlockArgument) and argument_attribute(value, train.PARAM) is not None
