"""Write filled tensors in place of calls on ranks whose shard of a split dim is empty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from ...dialects.aten import AtenOp
from ...dialects.compute import ComputeOp, dtype_of
from ...dialects.train import TrainOp
from ...ir.mesh import Mesh
from ...ir.ops.elementwise import ELEMENTWISE
from ...ir.signatures import Signature
from ..calls.dtypes import torch_dtype
from ..calls.empty_shards import Constant, results_without_call
from . import python_text
from .layout import Group, call, keyword, literal, tuple_of
from .names import Names
from .sizes import Sizes
from .where import Where

_ByDevice = Mapping[int, Sequence[Constant]]


class Empties:
    """A writer of the results on ranks that must not make the call of an op."""

    def __init__(self, where: Where, names: Names, sizes: Sizes) -> None:
        self._where, self._names, self._sizes = where, names, sizes

    def guarded(self, op: ComputeOp, key: str, made: Group) -> Group:
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
        dtype = dtype_of(op.outs[index])
        shape = self._sizes.entry(f"{key}.empty", [constant.shape for constant in by_device], devices)
        fill = literal(_fill(first.value, dtype))
        text = call("torch.full", [shape, fill, keyword("dtype", python_text.dtype(dtype)), "device=comm.device"])
        for position, addend in enumerate(first.addends):
            shape = self._sizes.entry(f"{key}.addend", [c.addends[position].shape for c in by_device], devices)
            value = call(f"{self._names[op.args[addend.operand]]}.reshape", [shape])
            factor = [] if addend.factor == 1 else [keyword("alpha", literal(addend.factor))]
            text = call("torch.add", [text, value, *factor])
        return text


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


def _fill(value: float, dtype: str) -> float:
    """Return `value` in a dtype; the largest or smallest integer replaces infinity."""
    kind = torch_dtype(dtype)
    if kind.is_floating_point or math.isfinite(value):
        return value
    limits = torch.iinfo(kind)
    return limits.max if value > 0 else limits.min
