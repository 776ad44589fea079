"""
The layers of a step in the order of forward, and which ops belong to each.

A layer is a block of the model, found from the name in an op's location: `h.0` for `h.0.attn.q` (see `blocks.py`).
Forward only moves on to later layers and backward to earlier ones, so a contiguous range of layers is a stage of a
pipeline. An op belongs to the layer of its module or, where a module is used again, to the layer of its operands.
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
"""The roles of arguments that every stage can hold a copy of."""


@dataclass(frozen=True)
class Layers:
    """
    The layers of a step.

    Args:
        names: names of the layers in the order of forward.
        of: by op, the index of its layer, except for ops that are `anywhere`.
        homes: by argument, the index of the layer that stores it, except for arguments that are `anywhere`.
        anywhere: values that every stage can hold: batch items, scalars, constants, and results of ops on these alone.
    """

    names: tuple[str, ...]
    of: dict[Operation, int] = field(default_factory=dict[Operation, int])
    homes: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    anywhere: set[SSAValue] = field(default_factory=set[SSAValue])

    def of_value(self, value: SSAValue) -> int | None:
        """Return the layer that holds a value, or None if every stage can hold it."""
        if value in self.anywhere:
            return None
        return self.of.get(value.op) if isinstance(value, OpResult) else self.homes.get(value)

    def of_operands(self, values: Iterable[SSAValue]) -> list[int]:
        """Return the layers of the values that have a layer."""
        return [layer for value in values if (layer := self.of_value(value)) is not None]


def find_layers(view: StepView) -> Layers:
    """Return the layers of a step function that has not been partitioned yet."""
    return _Finder(view).run()


class _Finder:
    """A search for layers in four sweeps: forward, backward, ops after backward, and stored or updated arguments."""

    def __init__(self, view: StepView) -> None:
        self.view = view
        self.layers = Layers(())
        self.numbers: dict[str, int] = {}
        self.blocks = Blocks()
        self.reached: dict[str, set[int]] = {}
        """The layers of the forward ops of each block; a module around other blocks can have several."""

    def run(self) -> Layers:
        self._anywhere()
        located = [op for op in self.view.ops if not self._is_anywhere(op) and not train.is_update(op)]
        computed, after = set[SSAValue](), dict[ComputeOp, None]()
        for op in located:
            if BACKWARD in op.attributes:
                computed.update(op.outs)
            elif not computed.isdisjoint(op.args):
                computed.update(op.outs)
                after[op] = None
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
        return Layers(tuple(self.numbers) or ("step",), self.layers.of, self.layers.homes, self.layers.anywhere)

    def _anywhere(self) -> None:
        anywhere = self.layers.anywhere
        anywhere.update(item.argument for item in self.view.inputs if item.role in _EVERYWHERE)
        for op in self.view.ops:
            # Numbers from torch's own generator depend on the sharding, which may differ between stages.
            own = isinstance(op, OpaqueOp) or INDEPENDENT in op.attributes
            if not own and all(value in anywhere for value in op.args):
                anywhere.update(op.outs)

    def _is_anywhere(self, op: ComputeOp) -> bool:
        return bool(op.outs) and op.outs[0] in self.layers.anywhere

    def _own(self, op: ComputeOp) -> list[int]:
        number = self.numbers.get(self.blocks.of(layer_of(op)))
        return [] if number is None else [number]

    def _forward(self, op: ComputeOp) -> None:
        """Put an op in its own layer or a later layer that produces an operand; without either, leave it to users."""
        before = (value for value in op.args if isinstance(value, OpResult))
        if at := [*self._own(op), *self.layers.of_operands(before)]:
            self.layers.of[op] = max(at)

    def _by_users(self, ops: Sequence[ComputeOp]) -> None:
        """Put ops without a layer in the first layer that uses their results."""
        for op in reversed([op for op in ops if op not in self.layers.of]):
            users = (use.operation for result in op.results for use in result.uses)
            self.layers.of[op] = min((self.layers.of[user] for user in users if user in self.layers.of), default=0)

    def _backward(self, op: ComputeOp) -> None:
        """Put an op in its own layer or the layer of its forward operands, no later than gradients have reached."""
        computed = [value for value in op.args if isinstance(value, OpResult)]
        gradients = [value for value in computed if self._is_gradient(value.op)]
        reached = self.layers.of_operands(gradients)
        # Recomputed ops belong to the last forward layer of their block that gradients have not passed.
        layers = self.reached.get(self.blocks.of(layer_of(op)), set())
        before = [layer for layer in layers if all(layer <= other for other in reached)]
        own = [
            *([max(before)] if before else self._own(op)),
            *self.layers.of_operands(value for value in computed if value not in gradients),
        ]
        latest = max(own) if own else len(self.numbers) - 1
        self.layers.of[op] = min([latest, *reached])

    def _is_gradient(self, op: Operation) -> bool:
        return BACKWARD in op.attributes and RECOMPUTED not in op.attributes

    def _keep(self) -> None:
        """
        Keep an argument on the layer that first uses it or, without a use, on the layer that makes its new value; keep
        its update, and the states of the update, on the same layer.
        """
        news = {target: self.view.terminator.arguments[index] for index, target in self.view.updated.items()}
        for item in self.view.inputs:
            if item.argument not in self.layers.anywhere:
                users = (use.operation for use in item.argument.uses)
                used = [self.layers.of[user] for user in users if user in self.layers.of]
                new = self.layers.of_value(news[at]) if (at := item.argument.index) in news and not used else None
                self.layers.homes[item.argument] = min(used, default=new or 0)
        parameters = {item.name: item.argument for item in self.view.inputs if item.role == train.PARAM}
        for op in self.view.ops:
            if train.is_update(op) and not self._is_anywhere(op):
                name = train.updated_parameter(op)
                if name is not None and name not in parameters:
                    fail(op, f'belongs to the update of "{name}", which is not a parameter of the step')
                stored = parameters[name] if name is not None else op.args[0]
                # A step count that every stage holds is updated where it is known whether updates are skipped.
                at = self.layers.homes.get(stored)
                self.layers.of[op] = at if at is not None else max(self.layers.of_operands(op.args))
                for value in op.args:
                    if isinstance(value, BlockArgument) and value not in self.layers.anywhere:
                        self.layers.homes[value] = self.layers.of[op]
