"""
The layers of a step in the order of forward, and the layer that each op goes with.

A layer is a block of the model, by the name in an op's location: `h.0` for `h.0.attn.q` (see `blocks.py`).
Forward only goes on to later layers and backward back to earlier ones, so a contiguous range of layers is a stage
of a pipeline: an op is in its own layer or, where a module is used again, in that of what it uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from ...dialects import train
from ...dialects.aten import OpaqueOp
from ...dialects.compute import INDEPENDENT, ComputeOp, shape_of
from ...dialects.step import BACKWARD, RECOMPUTED
from ..errors import fail
from .blocks import Blocks, find_blocks, layer_of
from .step_view import StepView

_EVERYWHERE = (train.BATCH, train.CONSTANT, train.LEARNING_RATE, train.STEP_COUNT, train.SEED)
"""The roles of arguments that any stage can have a copy of."""


@dataclass(frozen=True)
class Layers:
    """
    The layers of a step.

    Args:
        names: in the order of forward.
        of: by op, the number of its layer; not of ops that are `anywhere`.
        homes: by argument, the number of the layer with which it is kept; not of those that are `anywhere`.
        anywhere: arguments, and ops on them alone, that each stage can have for itself: batch items, scalars,
            constants, and what is made of them.
    """

    names: tuple[str, ...]
    of: dict[Operation, int] = field(default_factory=dict[Operation, int])
    homes: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    anywhere: set[SSAValue] = field(default_factory=set[SSAValue])

    def of_value(self, value: SSAValue) -> int | None:
        """The layer that has a value; None where it can be had anywhere."""
        if value in self.anywhere:
            return None
        return self.of.get(value.op) if isinstance(value, OpResult) else self.homes.get(value)

    def of_operands(self, values: Iterable[SSAValue]) -> list[int]:
        """The layers of some values, of those that have one."""
        return [layer for value in values if (layer := self.of_value(value)) is not None]


def find_layers(view: StepView) -> Layers:
    """The layers of a step function before it is divided."""
    return _Finder(view).run()


class _Finder:
    """Finds layers in four sweeps: forward, backward, what comes after that, and what is kept or updated. One use."""

    def __init__(self, view: StepView) -> None:
        self.view = view
        self.layers = Layers(())
        self.numbers: dict[str, int] = {}
        self.blocks = Blocks()
        self.reached: dict[str, set[int]] = {}
        """The layers that forward ops of a block are in: of a module with blocks inside, those before and behind."""

    def run(self) -> Layers:
        self._anywhere()
        located = [op for op in self.view.ops if not self._is_anywhere(op) and not train.is_update(op)]
        after = _after_backward(located)
        forward = [op for op in located if BACKWARD not in op.attributes and op not in after]
        again = [op for op in located if RECOMPUTED in op.attributes]
        self.blocks = find_blocks(forward)
        for op in forward:
            if block := self.blocks.of(layer_of(op)):
                self.numbers.setdefault(block, len(self.numbers))
        for op in forward:
            self._forward(op)
        self._by_users(forward)
        for op in again:
            self._forward(op)
        self._by_users(again)
        for op in forward:
            self.reached.setdefault(self.blocks.of(layer_of(op)), set()).add(self.layers.of[op])
        for op in located:
            if BACKWARD in op.attributes and op not in self.layers.of:
                self._backward(op)
        for op in after:
            # An op between gradients and updates, such as a norm, is in the layer of its largest operand.
            placed = [value for value in op.args if self.layers.of_value(value) is not None]
            largest = max(placed, key=lambda value: math.prod(shape_of(value)))
            self.layers.of[op] = self.layers.of_operands([largest])[0]
        self._keep()
        names = tuple(self.numbers) or ("step",)
        return Layers(names, self.layers.of, self.layers.homes, self.layers.anywhere)

    def _anywhere(self) -> None:
        found = self.layers.anywhere
        found.update(given.argument for given in self.view.inputs if given.role in _EVERYWHERE)
        for op in self.view.ops:
            # What torch's own generator draws depends on how it is spread, which may differ between stages.
            own = isinstance(op, OpaqueOp) or INDEPENDENT in op.attributes
            if not own and all(value in found for value in op.args):
                found.update(op.outs)

    def _is_anywhere(self, op: ComputeOp) -> bool:
        return bool(op.outs) and op.outs[0] in self.layers.anywhere

    def _own(self, op: ComputeOp) -> list[int]:
        number = self.numbers.get(self.blocks.of(layer_of(op)))
        return [] if number is None else [number]

    def _forward(self, op: ComputeOp) -> None:
        """Its own layer, or a later one that makes what it uses; left to its users where nothing says it."""
        before = (value for value in op.args if isinstance(value, OpResult))
        if at := [*self._own(op), *self.layers.of_operands(before)]:
            self.layers.of[op] = max(at)

    def _by_users(self, ops: Sequence[ComputeOp]) -> None:
        """Put ops that neither a name nor operands place where they are used first."""
        for op in reversed([op for op in ops if op not in self.layers.of]):
            users = (use.operation for result in op.results for use in result.uses)
            self.layers.of[op] = min((self.layers.of[user] for user in users if user in self.layers.of), default=0)

    def _backward(self, op: ComputeOp) -> None:
        """
        Its own layer, or that of the forward values it uses, or an earlier one that a gradient has gone back to.
        """
        made = [value for value in op.args if isinstance(value, OpResult)]
        gradients = [value for value in made if self._is_gradient(value.op)]
        reached = self.layers.of_operands(gradients)
        own = [
            *self._own_before(op, reached),
            *self.layers.of_operands(value for value in made if value not in gradients),
        ]
        latest = max(own) if own else len(self.numbers) - 1
        self.layers.of[op] = min([latest, *reached])

    def _own_before(self, op: ComputeOp, reached: Sequence[int]) -> list[int]:
        """The last layer of an op's block, in forward, that is no later than the layers that gradients have reached."""
        layers = self.reached.get(self.blocks.of(layer_of(op)), set())
        before = [layer for layer in layers if all(layer <= each for each in reached)]
        return [max(before)] if before else self._own(op)

    def _is_gradient(self, op: Operation) -> bool:
        return BACKWARD in op.attributes and RECOMPUTED not in op.attributes

    def _keep(self) -> None:
        """
        Keep an argument on the layer that first uses it or, without a use, on the layer that makes its new value; keep
        its update, and the states of the update, on the same layer.
        """
        made = {target: self.view.terminator.arguments[index] for index, target in self.view.updated.items()}
        for given in self.view.inputs:
            if given.argument not in self.layers.anywhere:
                users = (use.operation for use in given.argument.uses)
                used = [self.layers.of[user] for user in users if user in self.layers.of]
                new = self.layers.of_value(made[at]) if (at := given.argument.index) in made and not used else None
                self.layers.homes[given.argument] = min(used, default=new or 0)
        parameters = {given.name: given.argument for given in self.view.inputs if given.role == train.PARAM}
        for op in self.view.ops:
            if train.is_update(op) and not self._is_anywhere(op):
                name = train.updated_parameter(op)
                if name is not None and name not in parameters:
                    fail(op, f'belongs to the update of "{name}", which is not a parameter of the step')
                kept = parameters[name] if name is not None else op.args[0]
                # A count that anyone can have is made where it becomes known whether the updates are.
                at = self.layers.homes.get(kept)
                self.layers.of[op] = at if at is not None else max(self.layers.of_operands(op.args))
                for value in op.args:
                    if isinstance(value, BlockArgument) and value not in self.layers.anywhere:
                        self.layers.homes[value] = self.layers.of[op]


def _after_backward(ops: Sequence[ComputeOp]) -> dict[ComputeOp, None]:
    """The ops that are not of backward and depend on what it makes, in order."""
    made, found = set[SSAValue](), dict[ComputeOp, None]()
    for op in ops:
        if BACKWARD in op.attributes:
            made.update(op.outs)
        elif not made.isdisjoint(op.args):
            made.update(op.outs)
            found[op] = None
    return found
