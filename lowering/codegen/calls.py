"""Write compute ops as calls of torch and the runtime on local tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from ...dialects.aten import AtenOp, OpaqueOp
from ...dialects.compute import ComputeOp, dtype_of, shape_of
from ...dialects.train import ForeachOp, TrainOp, overwritten_by_update
from ...ir.mesh import Mesh
from ...ir.ops.elementwise import ELEMENTWISE
from ...ir.signatures import Signature
from ..calls.calls import Arg, Call, Dtype, Operand, call_of, differs_by_rank, resolve
from ..calls.dtypes import torch_dtype
from ..calls.empty_shards import Constant, results_without_call
from ..fused.table import FUSED_OPS
from .equal_layers import STREAM
from .errors import EmitError
from .layout import Doc, Group, call, keyword, literal, tuple_of
from .names import Names
from .python_text import checked_name, dotted, dtype
from .sizes import Sizes
from .where import Where

IN_PLACE = {"aten.add.Tensor": "aten.add_.Tensor", "foreach": "foreach_"}
"""Call -> its in-place form, which writes to the first operand."""

_FACTORY_DEVICE = "device=comm.device"
MADE_ON_DEVICE = frozenset(name for name, op in FUSED_OPS.items() if op.takes_device)
"""Functions that need a device argument: their only tensor may be the seed, which is in host memory."""


_ByDevice = Mapping[int, Sequence[Constant]]
"""Device -> its results, for the devices that must not make a call."""


class Calls:
    """A writer of compute ops, which computes the calls of equal uses of an op once."""

    def __init__(self, where: Where, names: Names, sizes: Sizes) -> None:
        self._where, self._names, self._sizes = where, names, sizes
        self._made: dict[tuple[object, ...], tuple[Call, ...]] = {}
        self.streams: dict[ComputeOp, str] = {}
        """Random op -> name of its stream, in a function whose calls differ in the stream."""

    def expression(self, op: ComputeOp, key: str, overwritten: Collection[int]) -> Group:
        """
        Write the call of `op`, with filled tensors in its place on ranks whose shard of a split dim is empty.

        Args:
            key: name of its sizes.
            overwritten: operands that it writes to.
        """
        # There is one call if all devices agree, else one per device of the grid.
        use = (op.use_key(), op.signature)
        if (calls := self._made.get(use)) is None:
            calls = self._made[use] = tuple(_calls_by_device(op, self._where.grid))
            if any(other.target != calls[0].target for other in calls):
                raise EmitError(op, "the ranks call different functions; a program has one text for all of them")
        copied = operands_to_copy(op, overwritten)
        first = calls[0]
        target = IN_PLACE.get(first.target, first.target) if overwritten else first.target
        arguments = [
            self._argument(op, key, [variant.args[i] for variant in calls], copied) for i in range(len(first.args))
        ]
        for i, (name, _) in enumerate(first.kwargs):
            stream = self.streams.get(op) if name == STREAM else None
            value = stream or self._argument(op, key, [variant.kwargs[i][1] for variant in calls], copied)
            arguments.append(keyword(name, value))
        if target in MADE_ON_DEVICE or (target.startswith("aten.") and not op.args):
            arguments.append(_FACTORY_DEVICE)
        return self._guarded(op, key, replace(call(function_name(target), arguments), mixed=True))

    def _argument(self, op: ComputeOp, key: str, by_device: Sequence[Arg], copied: frozenset[int]) -> Doc:
        match by_device[0]:
            case Operand(index, ordered):
                suffix = ".clone()" if index in copied else ".contiguous()" if ordered else ""
                return self._names[op.args[index]] + suffix
            case Dtype(name):
                return dtype(name)
            case tuple() as items if (indices := _plain_operands(items)) and copied.isdisjoint(indices):
                return tuple_of(self._names.listed([op.args[index] for index in indices]))
            case tuple() as items if any(isinstance(item, Operand) for item in items):
                return tuple_of(self._argument(op, key, [item], copied) for item in items)
            case _:
                return self._sizes.entry(key, by_device, self._where.devices(op))

    def _guarded(self, op: ComputeOp, key: str, made: Group) -> Group:
        """Return `made`, or `(made if n not in (3,) else torch.full(...))` if some ranks have an empty shard."""
        constants = _constants(op, self._where.grid)
        if (condition := self._sizes.outside(constants, self._where.devices(op))) is None:
            return made
        results = [self._filled(op, index, key, constants) for index in range(len(op.outs))]
        filled = results[0] if len(results) == 1 else tuple_of(results)
        other = Group(f"else {filled.opening}", filled.items, filled.closing, filled.fill)
        return Group("(", (made, f"if {condition}", other), ")", comma=False)

    def _filled(self, op: ComputeOp, index: int, key: str, constants: _ByDevice) -> Group:
        own = {device: results[index] for device, results in constants.items()}
        devices = self._where.devices(op)
        first = next(own[device] for parts in devices for device in parts if device in own)
        # The devices that make the call have an unused entry.
        by_device = [own.get(device, first) for device in range(self._where.grid.device_count)]
        of_result = dtype_of(op.outs[index])
        shape = self._sizes.entry(f"{key}.empty", [constant.shape for constant in by_device], devices)
        fill = literal(_fill(first.value, of_result))
        text = call("torch.full", [shape, fill, keyword("dtype", dtype(of_result)), _FACTORY_DEVICE])
        for position, addend in enumerate(first.addends):
            shape = self._sizes.entry(f"{key}.addend", [c.addends[position].shape for c in by_device], devices)
            value = call(f"{self._names[op.args[addend.operand]]}.reshape", [shape])
            factor = [] if addend.factor == 1 else [keyword("alpha", literal(addend.factor))]
            text = call("torch.add", [text, value, *factor])
        return text


def _plain_operands(items: Sequence[Arg]) -> list[int]:
    """Return the operand indices of `items` if all are operands passed without conversion, else an empty list."""
    indices = [item.index for item in items if isinstance(item, Operand) and not item.ordered]
    return indices if len(indices) == len(items) else []


def operands_to_copy(op: ComputeOp, overwritten: Collection[int]) -> frozenset[int]:
    """Return the operands that `op` would overwrite although they, or views of them, are read again."""
    return frozenset(operand for operand, _ in overwritten_by_update(op)) - frozenset(overwritten)


def returns_list(op: ComputeOp) -> bool:
    """Return whether the call returns a list or tuple of tensors even for a single result."""
    if isinstance(op, ForeachOp):
        return True
    if isinstance(op, AtenOp):
        return op.spec.results == 0
    if isinstance(op, OpaqueOp):
        returns = resolve(call_of(op).target)._schema.returns
        return len(returns) == 1 and str(returns[0].type).startswith("List")
    return False


def _calls_by_device(op: ComputeOp, mesh: Mesh) -> Iterator[Call]:
    axes = _telling_axes(op, mesh)
    calls: dict[tuple[int, ...], Call] = {}
    for rank in range(mesh.device_count if axes else 1):
        coordinates = mesh.coordinates(rank)
        place = tuple(coordinates[axis] for axis in axes)
        if place not in calls:
            calls[place] = call_of(op, mesh, rank)
        yield calls[place]


def _telling_axes(op: ComputeOp, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes along which the call differs, because it has offsets or unequal local sizes as arguments."""
    signature = op.signature
    if signature is None or not differs_by_rank(op):
        return ()
    places = op.spec.localize.values() if isinstance(op, AtenOp) and op.spec.localize else ()
    starts = bool(op.rule().indexed) or any(".start" in place for place in places)
    values = zip((*op.args, *op.outs), (*signature.operands, *signature.results), strict=True)
    dims = [pair for value, spread in values for pair in zip(shape_of(value), spread.dims, strict=True)]
    uneven = (dim for size, dim in dims if starts or dim.offsets or size % mesh.parts(dim.axes))
    return mesh.in_order({axis for dim in uneven for axis in dim.axes})


def function_name(target: str) -> str:
    """Return the text of a target of `calls` in a program; raise NotPythonError if it is not a Python name."""
    if target.startswith("aten."):
        return dotted(target)
    return f"torch.ops.{dotted(target)}" if "." in target else f"rt.{checked_name(target)}"


def _constants(op: ComputeOp, mesh: Mesh) -> _ByDevice:
    """
    Return device -> results, for the devices that must not call `op`.

    Elementwise ops, views and updates are well defined on empty tensors and are always called.
    """
    if isinstance(op, TrainOp) or (isinstance(op, AtenOp) and (op.spec.view or op.spec.rule in ELEMENTWISE)):
        return {}
    if op.signature is None or not _has_empty_part(op.signature):
        return {}
    results = ((rank, results_without_call(op, mesh, rank)) for rank in range(mesh.device_count))
    return {rank: constants for rank, constants in results if constants is not None}


def _has_empty_part(given: Signature) -> bool:
    offsets = (dim.offsets for spread in (*given.operands, *given.results) for dim in spread.dims)
    return any(bounds is not None and len(set(bounds)) < len(bounds) for bounds in offsets)


def _fill(value: float, name: str) -> float:
    """Return `value` in a dtype; the largest or smallest integer replaces infinity."""
    kind = torch_dtype(name)
    if kind.is_floating_point or math.isfinite(value):
        return value
    limits = torch.iinfo(kind)
    return limits.max if value > 0 else limits.min
