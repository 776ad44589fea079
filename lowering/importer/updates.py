"""Import the graph of a captured update once for each of its parameters."""

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
    An importer of updates, which appends them to a block.

    A graph is imported once, as a template; each parameter gets a copy of its ops. Ops that are independent of the
    parameter (powers of the betas, for example) are shared by all parameters with the same graph and learning rate.
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
        Add the update of a parameter and return its new value and states.

        Args:
            old: the parameter and its states.
            count: the number of previous steps.
        """
        if id(update) not in self._templates:
            self._templates[id(update)] = _Template(update, self.rules)
        template = self._templates[id(update)]
        inputs = [old[0], gradient, *old[1:], count, rate]
        own = dict(zip(template.inputs, inputs, strict=True))
        shared = self._shared.setdefault((id(update), rate), {})
        for op in template.ops:
            if op.results[0] in template.of_all:
                if op.results[0] not in shared:
                    self._copy(op, None, {**own, **shared}, shared)
            else:
                self._copy(op, parameter, {**own, **shared}, own)
        new = ({**own, **shared}[value] for value in template.outputs)
        return [self._assign(parameter, before, after) for before, after in zip(old, new, strict=True)]

    def _copy(
        self, op: Operation, parameter: str | None, values: dict[SSAValue, SSAValue], made: dict[SSAValue, SSAValue]
    ) -> None:
        """Append a copy of an op, for one parameter or, if `parameter` is None, shared by several."""
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
    The ops of an update, in a separate block whose arguments are the inputs.

    `of_all` holds the count and the rate, which all parameters share, and the values computed from them only.
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
