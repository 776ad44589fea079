"""
The forward pass of a step as values that backward needs, by segments within which they can be computed again.

A segment ends after a layer where few of its bytes go on to later layers: after each block of a transformer, or after
some layers of a chain. What goes on is kept, so backward needs the values of one segment at a time beside those. The
last segment is not computed again, for backward begins with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import BlockArgument, OpResult, SSAValue

from ...dialects import train
from ...dialects.aten import OpaqueOp
from ...dialects.compute import INDEPENDENT, ComputeOp, value_bytes
from ...dialects.step import BACKWARD, CHECKPOINT
from ...ir.cluster import Cluster
from ...ir.mesh import Mesh
from ...ir.op_cost import op_seconds
from ..analysis.compute import op_work, spec_of
from ..analysis.fusion import least_parts
from ..stages.stage_costs import whole_signature
from ..step.layers import find_layers
from ..step.step_view import StepView
from .kept_values import ForwardOp, ForwardValue

_TILT = 0.01
"""By how much later ops of a layer count more than earlier ones, so that of ops that pay alike some can be chosen."""

_NARROW = 4
"""A lower bound on how many times the output bytes of a segment are needed within it."""


class Activations:
    """
    What forward makes, and backward needs.

    Args:
        view: a whole step.
        cluster: whose slowest device an op is run on, in as many parts as there are devices; None where seconds do not
            matter: every op counts alike.

    `ops` and `values` are what `kept_values.choose` takes, `forward` and `made` the ops and values of the same numbers.
    """

    def __init__(self, view: StepView, cluster: Cluster | None) -> None:
        self.view, self.cluster = view, cluster
        self.layers = find_layers(view)
        self.forward = [op for op in view.ops if self._is_forward(op)]
        self.made = [result for op in self.forward for result in op.outs]
        self.number: dict[SSAValue, int] = {value: number for number, value in enumerate(self.made)}
        self.needed = {value for value in self.made if any(BACKWARD in use.operation.attributes for use in value.uses)}
        self.last_use = self._last_uses()
        self.segment_of = self._segments()
        self._known: dict[object, float] = {}
        self._parts = least_parts(view.func)
        self._place = self._places()
        self.values = [self._value(value) for value in self.made]
        self.ops = [self._op(op) for op in self.forward]

    def _is_forward(self, op: ComputeOp) -> bool:
        # Values that depend on batch and constants alone are kept, by all layers that use them.
        return op in self.layers.of and BACKWARD not in op.attributes and not train.is_update(op)

    def root(self, value: SSAValue) -> SSAValue:
        """What a value looks at, through views; itself where it has memory of its own."""
        while isinstance(value, OpResult) and value in self.number and spec_of(_op_of(value)).view:
            value = _op_of(value).args[0]
        return value

    def _segments(self) -> dict[int, int]:
        """By layer its segment, of those that may be computed again."""
        made: list[list[SSAValue]] = [[] for _ in self.layers.names]
        for value in self.last_use:
            made[self.layers.of[_op_of(value)]].append(value)
        needed = {self.root(value) for value in self.needed}
        found, start = dict[int, int](), 0
        for layer in range(len(made)):
            inside = [value for each in made[start : layer + 1] for value in each]
            going = sum(value_bytes(value) for value in inside if self.last_use[value] > layer)
            if sum(value_bytes(value) for value in inside if value in needed) >= _NARROW * going > 0:
                found |= dict.fromkeys(range(start, layer + 1), start)
                start = layer + 1
        return found

    def _last_uses(self) -> dict[SSAValue, int]:
        """By value with memory of its own, the last layer of forward that uses it, through views too."""
        last: dict[SSAValue, int] = {}
        for value in self.made:
            uses = [self.layers.of[use.operation] for use in value.uses if self._is_use_in_forward(use.operation)]
            if (root := self.root(value)) in self.number:
                last[root] = max([last.get(root, 0), self.layers.of[_op_of(value)], *uses])
        return last

    def _is_use_in_forward(self, op: object) -> bool:
        return isinstance(op, ComputeOp) and self._is_forward(op)

    def _crosses_segments(self, value: SSAValue) -> bool:
        """Whether later segments take a value, or something that looks at it."""
        root = self.root(value)
        if root not in self.last_use:
            return False
        segment = self.segment_of.get(self.layers.of[_op_of(value)])
        return self.segment_of.get(self.last_use[root]) != segment

    def _value(self, value: OpResult) -> ForwardValue:
        op = _op_of(value)
        is_marked = self._region(op) > 0 and self._may_run_again(op) and not self._leaves_region(value)
        root = self.root(value)
        if root not in self.number:
            return ForwardValue(0.0, value in self.needed)
        is_view = root is not value
        return ForwardValue(inf if is_view or is_marked else float(value_bytes(value)), value in self.needed)

    def _op(self, op: ComputeOp) -> ForwardOp:
        operands = tuple(self.number[value] for value in op.args if value in self.number)
        results = tuple(self.number[value] for value in op.outs)
        return ForwardOp(self._seconds(op), operands, results)

    def _seconds(self, op: ComputeOp) -> float:
        if spec_of(op).view:
            return 0.0
        if not self._may_run_again(op):
            return inf
        is_last = self.layers.of[op] not in self.segment_of
        is_kept = is_last or any(map(self._crosses_segments, op.outs)) or self._needs_large_parameter(op)
        if is_kept and not self._region(op):
            return inf
        return self._least_seconds(op) * (1.0 + _TILT * self._place[op])

    def _places(self) -> dict[ComputeOp, float]:
        """Where in its layer an op is, from 0 to 1: the same in equal layers."""
        by_layer: dict[int, list[ComputeOp]] = {}
        for op in self.forward:
            by_layer.setdefault(self.layers.of[op], []).append(op)
        return {op: place / len(ops) for ops in by_layer.values() for place, op in enumerate(ops)}

    def _least_seconds(self, op: ComputeOp) -> float:
        if self.cluster is None:
            return 1.0
        if (key := (op.use_key(), self._parts.get(op))) not in self._known:
            work = op_work(op, whole_signature(op), Mesh(()), keyed=False, part=self._parts.get(op))
            part = self.cluster.mesh.device_count
            own = replace(work, flops=work.flops / part, bytes=work.bytes / part)
            self._known[key] = max(op_seconds(kind, own) for kind in self.cluster.kinds_used)
        return self._known[key]

    def _may_run_again(self, op: ComputeOp) -> bool:
        """
        Not what draws other numbers where it is spread otherwise, is unknown, or gives an argument its new value; nor
        what decides by values that may be rounded in another way the second time.
        """
        if isinstance(op, OpaqueOp) or INDEPENDENT in op.attributes or spec_of(op).decides:
            return False
        return not any(use.operation is self.view.terminator for result in op.outs for use in result.uses)

    def _needs_large_parameter(self, op: ComputeOp) -> bool:
        """
        Whether an op takes a parameter that backward has no other use for, and that is larger than what a device has of
        the op's results: a table of embeddings, which may have to be gathered again.
        """
        devices = self.cluster.mesh.device_count if self.cluster is not None else 1
        own = sum(map(value_bytes, op.outs)) / devices
        return any(
            isinstance(value, BlockArgument)
            and value_bytes(value) > own
            and not any(BACKWARD in use.operation.attributes for use in value.uses)
            for value in op.args
        )

    def _region(self, op: ComputeOp) -> int:
        """The number of the checkpointed region of the model that an op is in; 0 for none."""
        found = op.attributes.get(CHECKPOINT)
        return found.value.data if isinstance(found, IntegerAttr) else 0

    def _leaves_region(self, value: OpResult) -> bool:
        """Whether an op of forward outside of its checkpointed region takes a value, or something that looks at it."""
        region = self._region(_op_of(value))
        return any(self._region(op) != region for op in self._users_in_forward(value))

    def _users_in_forward(self, value: SSAValue) -> Iterator[ComputeOp]:
        for use in value.uses:
            op = use.operation
            if isinstance(op, ComputeOp) and self._is_forward(op):
                yield op
                if spec_of(op).view:
                    yield from (user for result in op.outs for user in self._users_in_forward(result))


def _op_of(value: SSAValue) -> ComputeOp:
    assert isinstance(value, OpResult)
    assert isinstance(value.op, ComputeOp)
    return value.op
