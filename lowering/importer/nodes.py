"""Import each node of an fx graph as one op, with the layer and line that it comes from."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence

import torch
from torch.fx import Node
from xdsl.dialects.builtin import (
    ArrayAttr,
    FileLineColLoc,
    IntAttr,
    IntegerAttr,
    NameLoc,
    StringAttr,
    TensorType,
    UnitAttr,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from ...dialects import train
from ...dialects.aten import ATEN_OPS, OpaqueOp
from ...dialects.compute import ABSENT
from ...dialects.step import BACKWARD, CHECKPOINT
from ...ir.not_supported import STRIDES
from ..calls.allowed_ops import vouch_for
from ..calls.arguments import Arguments, bind_arguments, element_type
from ..capture.captured import LOSS_GRADIENT, ORIGIN, CaptureError, Origin
from .source_path import source_path
from .unknown_ops import UnknownOps

aten = torch.ops.aten


class NodeImporter:
    """
    An importer of nodes, which appends their ops to a block.

    The caller puts the values of placeholders into `values`.
    """

    def __init__(self, block: Block, rules: UnknownOps) -> None:
        self.block, self.rules = block, rules
        self.values: dict[Node, SSAValue | tuple[SSAValue, ...]] = {}

    def add(self, node: Node) -> None:
        """Add the op that `node` calls; raise CaptureError if the IR cannot represent the op."""
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, Node)
            parts = self.values[source]
            assert isinstance(parts, tuple)
            assert isinstance(index, int)
            self.values[node] = parts[index]
            return
        origin: Origin = node.meta[ORIGIN]
        source = node.args[0] if node.target in _BY_MEMORY else None
        if isinstance(source, Node) and source.op != "placeholder":
            raise CaptureError(
                f"{origin.file}:{origin.line} (layer '{origin.layer}'): as_strided of a computed tensor depends on its"
                f" memory layout, which a distributed program does not preserve; {STRIDES.instead}"
            )
        bound = bind_arguments(node, origin)
        op = self._op(node, bound, [self.operand(item) for item in bound.tensors])
        if origin.phase == "backward":
            op.attributes[BACKWARD] = UnitAttr()
        if node.meta.get(LOSS_GRADIENT):
            op.attributes[train.LOSS_GRADIENT] = UnitAttr()
        if origin.region:
            op.attributes[CHECKPOINT] = IntegerAttr(origin.region, i64)
        self._place(op, origin, node)
        multiple = isinstance(node.meta["val"], tuple | list)
        self.values[node] = tuple(op.results) if multiple else op.results[0]

    def type_of(self, node: Node) -> TensorType[Attribute]:
        """Return the type of the only result of `node`."""
        return _result_type(node.meta["val"])

    def operand(self, node: Node) -> SSAValue:
        """Return the value of `node`, which has one result."""
        value = self.values[node]
        assert isinstance(value, SSAValue)
        return value

    def _op(self, node: Node, bound: Arguments, operands: Sequence[SSAValue]) -> Operation:
        results: tuple[torch.Tensor | None, ...] | list[torch.Tensor | None] | torch.Tensor | None = node.meta["val"]
        listed = results if isinstance(results, tuple | list) else (results,)
        types = [_result_type(result) for result in listed]
        attributes = dict(bound.attributes)
        if bound.absent:
            attributes[ABSENT] = ArrayAttr([StringAttr(name) for name in bound.absent])
        if (cls := ATEN_OPS.get(bound.name)) is not None:
            return cls(operands=[operands], result_types=[types], attributes=attributes)
        vouch_for(bound.name)
        target = {"target": StringAttr(bound.name)}
        op = OpaqueOp(operands=[operands], result_types=[types], properties=target, attributes=attributes)
        op.attributes |= self.rules.attributes_of(op, node)
        return op

    def _place(self, op: Operation, origin: Origin, node: Node) -> None:
        place = FileLineColLoc(StringAttr(source_path(origin.file)), IntAttr(origin.line), IntAttr(0))
        op.location = NameLoc(StringAttr(origin.layer), place)
        for result in op.results:
            result.name_hint = value_name(_KERNEL.sub("attention", origin.name or node.name))
        self.block.add_op(op)


_BY_MEMORY = frozenset({aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default})
"""Ops that depend on the memory layout of their operand, which is known only for inputs."""


_KERNEL = re.compile(r"_?scaled_dot_product_[a-z_]*?attention(_for_cpu)?")
"""The names of torch's attention kernels; the runtime chooses the kernel, so the program does not name one."""


_MOST_CHARACTERS = 200
"""The most characters of a value's name; the role of an argument holds its full name."""


def value_name(text: str) -> str:
    """Return a name that xDSL prints unchanged: ASCII letters, digits, dots, underscores, not ending in `_<digits>`."""
    name = "".join(c if (c.isascii() and c.isalnum()) or c in "._" else "_" for c in text[:_MOST_CHARACTERS])
    stem, _, tail = name.rpartition("_")
    name = f"{stem}.{tail}" if stem and tail.isdigit() else name
    return name if name[:1].isalpha() else f"v.{name}"


def _result_type(value: torch.Tensor | None) -> TensorType[Attribute]:
    """Return the type of a result; a result that the op does not compute is a 0-d placeholder."""
    if value is None:
        return TensorType(element_type(torch.float32), [])
    return TensorType(element_type(value.dtype), [int(size) for size in value.shape])
