"""Filled tensors in place of calls, on ranks whose part of a split dim is empty."""

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
    """Writes, beside the call of an op, what ranks have that must not make it."""

    def __init__(self, where: Where, names: Names, sizes: Sizes) -> None:
        self._where, self._names, self._sizes = where, names, sizes

    def guarded(self, op: ComputeOp, key: str, made: Group) -> Group:
        """`made`, or where some ranks have nothing `(made if n not in (3,) else torch.full(...))`."""
        constants = _constants(op, self._where.grid)
        if (condition := self._sizes.outside(constants, self._where.devices(op))) is None:
            return made
        results = [self._filled(op, index, key, constants) for index in range(len(op.outs))]
        filled = results[0] if len(results) == 1 else tuple_of(results)
        other = Group(f"else {filled.opening}", filled.items, filled.closing, filled.fill)
        return Group("(", (made, f"if {condition}", other), ")", comma=False)

    def _filled(self, op: ComputeOp, index: int, key: str, constants: _ByDevice) -> Group:
        """Result number `index` on the devices that have nothing."""
        found = {device: results[index] for device, results in constants.items()}
        devices = self._where.devices(op)
        first = next(found[device] for parts in devices for device in parts if device in found)
        # The devices that make the call have an entry too, which nothing reads.
        by_device = [found.get(device, first) for device in range(self._where.grid.device_count)]
        dtype = dtype_of(op.outs[index])
        shape = self._sizes.entry(f"{key}.empty", [constant.shape for constant in by_device], devices)
        fill = literal(_fill(first.value, dtype))
        made = call("torch.full", [shape, fill, keyword("dtype", python_text.dtype(dtype)), "device=comm.device"])
        for position, addend in enumerate(first.addends):
            shape = self._sizes.entry(f"{key}.addend", [c.addends[position].shape for c in by_device], devices)
            value = call(f"{self._names[op.args[addend.operand]]}.reshape", [shape])
            factor = [] if addend.factor == 1 else [keyword("alpha", literal(addend.factor))]
            made = call("torch.add", [made, value, *factor])
        return made


def _constants(op: ComputeOp, mesh: Mesh) -> _ByDevice:
    """
    The devices on which `op` must not be called, and its results there.

    Element by element, as a view and as an update an op is well defined on nothing: these are called always.
    """
    if isinstance(op, TrainOp) or (isinstance(op, AtenOp) and (op.spec.view or op.spec.rule in ELEMENTWISE)):
        return {}
    if op.signature is None or not _has_empty_part(op.signature):
        return {}
    found = ((rank, results_without_call(op, mesh, rank)) for rank in range(mesh.device_count))
    return {rank: constants for rank, constants in found if constants is not None}


def _has_empty_part(given: Signature) -> bool:
    offsets = (dim.offsets for spread in (*given.operands, *given.results) for dim in spread.dims)
    return any(each is not None and len(set(each)) < len(each) for each in offsets)


def _fill(value: float, dtype: str) -> float:
    """`value` in a dtype: the largest or smallest integer stands for infinity."""
    kind = torch_dtype(dtype)
    if kind.is_floating_point or math.isfinite(value):
        return value
    limits = torch.iinfo(kind)
    return limits.max if value > 0 else limits.min
