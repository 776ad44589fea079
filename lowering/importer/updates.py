"""Captured updates as ops: the graph of an update, once for each parameter that it is of."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import NameLoc, StringAttr, UnitAttr, UnknownLoc
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import train
from ..capture.captured import CapturedUpdate
from ..capture.normalize import outputs_of
from .nodes import NodeImporter, value_name
from .unknown_ops import UnknownOps


class UpdateImporter:
    """
    Adds updates at the end of a block.

    A graph is imported once, for the first of its parameters; for others its ops are copied. What does not depend on
    a parameter (powers of the betas, say) is there once for all of those that share a graph and a learning rate.
    """

    def __init__(self, block: Block, rules: UnknownOps) -> None:
        self.block, self.rules = block, rules
        self._templates: dict[int, _Template] = {}
        self._shared: dict[tuple[int, SSAValue], dict[SSAValue, SSAValue]] = {}

    def add(
        self,
        parameter: str,
        update: CapturedUpdate,
        old: Sequence[SSAValue],
        gradient: SSAValue,
        count: SSAValue,
        rate: SSAValue,
    ) -> list[SSAValue]:
        """
        The new parameter and states.

        Args:
            old: the parameter and its states.
            count: of the steps before this one.
        """
        if id(update) not in self._templates:
            self._templates[id(update)] = _Template(update, self.rules)
        template = self._templates[id(update)]
        inputs = [old[0], gradient, *old[1:], count, rate]
        made = dict(zip(template.inputs, inputs, strict=True))
        shared = self._shared.setdefault((id(update), rate), {})
        for op in template.ops:
            if op.results[0] in template.of_all:
                if op.results[0] not in shared:
                    self._copy(op, None, {**made, **shared}, shared)
            else:
                self._copy(op, parameter, {**made, **shared}, made)
        new = ({**made, **shared}[value] for value in template.outputs)
        return [self._assign(parameter, before, after) for before, after in zip(old, new, strict=True)]

    def _copy(
        self, op: Operation, parameter: str | None, values: dict[SSAValue, SSAValue], made: dict[SSAValue, SSAValue]
    ) -> None:
        """Add a copy of an op, of the update of one parameter or of several."""
        copy = op.clone(dict(values))
        copy.attributes[train.UPDATE] = UnitAttr() if parameter is None else StringAttr(parameter)
        copy.location = _location(parameter)
        prefix = "update" if parameter is None else f"{parameter}.update"
        for before, after in zip(op.results, copy.results, strict=True):
            after.name_hint = value_name(f"{prefix}.{before.name_hint}")
        self.block.add_op(copy)
        made.update(zip(op.results, copy.results, strict=True))

    def _assign(self, parameter: str, old: SSAValue, new: SSAValue) -> SSAValue:
        op = train.AssignOp([old, new], [old.type], {train.UPDATE: StringAttr(parameter)})
        op.location = _location(parameter)
        self.block.add_op(op)
        return op.results[0]


class _Template:
    """
    The ops of an update, in a block of their own whose arguments are the inputs.

    The count and the rate are the same for all parameters; `of_all` is these and what is computed from them.
    """

    def __init__(self, update: CapturedUpdate, rules: UnknownOps) -> None:
        placeholders = [node for node in update.graph.nodes if node.op == "placeholder"]
        self.block = Block()
        nodes = NodeImporter(self.block, rules)
        for node in placeholders:
            nodes.values[node] = self.block.insert_arg(nodes.type_of(node), len(self.block.args))
        for node in update.graph.nodes:
            if node.op == "call_function":
                nodes.add(node)
        self.inputs: Sequence[SSAValue] = self.block.args
        self.ops = list(self.block.ops)
        self.outputs = [nodes.operand(node) for node in outputs_of(update.graph)]
        self.of_all: set[SSAValue] = {*self.inputs[-2:]}
        for op in self.ops:
            if self.of_all.issuperset(op.operands):
                self.of_all.update(op.results)


def _location(parameter: str | None) -> NameLoc:
    layer = parameter.rpartition(".")[0] if parameter is not None else ""
    return NameLoc(StringAttr(layer), UnknownLoc())
