"""
Forward of a step as input of `recompute`: the values that backward needs, in segments that can be recomputed.

A segment ends after a layer whose outputs to later layers are few bytes: after each block of a transformer, or after
some layers of a chain. The outputs are kept, and the last segment is not recomputed, because backward begins with it.
So backward holds recomputed values of one segment at a time.
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
"""Relative surcharge on the last op of a layer; it breaks ties, so that a part of equally costly ops can be chosen."""

_NARROW = 4
"""How many times more bytes backward must need from inside a segment than the segment passes on to later layers."""


class Activations:
    """
    The ops and values of forward, with their costs, as `kept_values.choose` takes them.

    Args:
        view: a whole step.
        cluster: gives the seconds of ops, divided among all devices, on the slowest; without it every op costs 1.

    `ops` and `values` are the arguments of `kept_values.choose`; `forward` and `made` hold the ops and values of the IR
    with the same numbers.
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
        # Equal layers get equal relative positions of their ops, from 0 to 1.
        by_layer: dict[int, list[ComputeOp]] = {}
        for op in self.forward:
            by_layer.setdefault(self.layers.of[op], []).append(op)
        self._place = {op: place / len(ops) for ops in by_layer.values() for place, op in enumerate(ops)}
        self.values = [self._value(value) for value in self.made]
        self.ops = [self._op(op) for op in self.forward]

    def _is_forward(self, op: ComputeOp) -> bool:
        # Ops that depend on the batch and constants alone belong to no layer; their results are kept.
        return op in self.layers.of and BACKWARD not in op.attributes and not train.is_update(op)

    def root(self, value: SSAValue) -> SSAValue:
        """Follow views of a value back to the value that owns the memory."""
        while isinstance(value, OpResult) and value in self.number and spec_of(_op_of(value)).view:
            value = _op_of(value).args[0]
        return value

    def _segments(self) -> dict[int, int]:
        """Map each layer to the first layer of its segment; layers of the last segment, which is kept, are left out."""
        by_layer: list[list[SSAValue]] = [[] for _ in self.layers.names]
        for value in self.last_use:
            by_layer[self.layers.of[_op_of(value)]].append(value)
        needed = {self.root(value) for value in self.needed}
        segments, start = dict[int, int](), 0
        for layer in range(len(by_layer)):
            inside = [value for values in by_layer[start : layer + 1] for value in values]
            passed_on = sum(value_bytes(value) for value in inside if self.last_use[value] > layer)
            if sum(value_bytes(value) for value in inside if value in needed) >= _NARROW * passed_on > 0:
                segments |= dict.fromkeys(range(start, layer + 1), start)
                start = layer + 1
        return segments

    def _last_uses(self) -> dict[SSAValue, int]:
        """Map each value that owns memory to the last forward layer that uses it, directly or through views."""
        last: dict[SSAValue, int] = {}
        for value in self.made:
            uses = [self.layers.of[use.operation] for use in value.uses if self._is_use_in_forward(use.operation)]
            if (root := self.root(value)) in self.number:
                last[root] = max([last.get(root, 0), self.layers.of[_op_of(value)], *uses])
        return last

    def _is_use_in_forward(self, op: object) -> bool:
        return isinstance(op, ComputeOp) and self._is_forward(op)

    def _crosses_segments(self, value: SSAValue) -> bool:
        """Whether a later segment uses the value or a view of it."""
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
        return ForwardOp(self._seconds(op), operands, tuple(self.number[value] for value in op.outs))

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
        Whether a second run of an op is possible and gives equal results. Excluded are unknown ops, random numbers that
        depend on the sharding, results of the step, and comparisons, as values may be rounded differently next time.
        """
        if isinstance(op, OpaqueOp) or INDEPENDENT in op.attributes or spec_of(op).decides:
            return False
        return not any(use.operation is self.view.terminator for result in op.outs for use in result.uses)

    def _needs_large_parameter(self, op: ComputeOp) -> bool:
        """
        Whether an op reads a parameter that backward does not use otherwise and that is larger than a device's share of
        the op's results: an embedding table, say, which may have to be gathered again.
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
        """Return the number of the checkpointed region of the model that contains the op; 0 if there is none."""
        region = op.attributes.get(CHECKPOINT)
        return region.value.data if isinstance(region, IntegerAttr) else 0

    def _leaves_region(self, value: OpResult) -> bool:
        """Whether a forward op outside the checkpointed region of a value uses the value or a view of it."""
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
