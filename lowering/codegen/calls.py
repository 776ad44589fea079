"""Ops that compute, as calls of torch and the runtime on local tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from xdsl.utils.exceptions import VerifyException

from ...dialects.aten import AtenOp, OpaqueOp
from ...dialects.compute import ComputeOp, shape_of
from ...dialects.train import ForeachOp, overwritten_by_update
from ...ir.mesh import Mesh
from ..calls.calls import Arg, Call, Dtype, Operand, call_of, differs_by_rank, resolve
from ..fused.table import FUSED_OPS
from .equal_ops import STREAM
from .errors import EmitError
from .layout import Doc, Group, call, keyword, tuple_of
from .names import Names
from .overwritten import IN_PLACE
from .python_text import checked_name, dotted, dtype
from .sizes import Sizes
from .where import Where

_FACTORY_DEVICE = "device=comm.device"
MADE_ON_DEVICE = frozenset(name for name, op in FUSED_OPS.items() if op.takes_device)
"""Functions that need not have a tensor of the rank's device: the seed is in the memory of the host."""


class Calls:
    """Writes ops that compute; the calls of equal uses of an op are worked out once."""

    def __init__(self, where: Where, names: Names, sizes: Sizes) -> None:
        self._where, self._names, self._sizes = where, names, sizes
        self._made: dict[tuple[object, ...], tuple[Call, ...]] = {}
        self.streams: dict[ComputeOp, str] = {}
        """The names of the streams of random ops in a function that is called for several of them."""

    def expression(self, op: ComputeOp, key: str, overwritten: Collection[int]) -> Group:
        """The call of `op`; `key` names its sizes, `overwritten` are operands whose memory it takes."""
        try:
            return self._expression(op, key, overwritten)
        except VerifyException as error:
            raise EmitError(op, str(error)) from error

    def _expression(self, op: ComputeOp, key: str, overwritten: Collection[int]) -> Group:
        calls, copied = self._calls(op), operands_to_copy(op, overwritten)
        first = calls[0]
        target = IN_PLACE.get(first.target, first.target) if overwritten else first.target
        arguments = [self._argument(op, key, [made.args[i] for made in calls], copied) for i in range(len(first.args))]
        for i, (name, _) in enumerate(first.kwargs):
            stream = self.streams.get(op) if name == STREAM else None
            value = stream or self._argument(op, key, [made.kwargs[i][1] for made in calls], copied)
            arguments.append(keyword(name, value))
        if target in MADE_ON_DEVICE or (target.startswith("aten.") and not op.args):
            arguments.append(_FACTORY_DEVICE)
        return replace(call(function_name(target), arguments), mixed=True)

    def _calls(self, op: ComputeOp) -> tuple[Call, ...]:
        """The call of `op`: one where all devices agree, else one per device of the grid."""
        use = (op.use_key(), op.signature)
        if (made := self._made.get(use)) is None:
            made = self._made[use] = tuple(_calls_by_device(op, self._where.grid))
            if any(other.target != made[0].target for other in made):
                raise EmitError(op, "the ranks call different functions; a program has one text for all of them")
        return made

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


def _plain_operands(items: Sequence[Arg]) -> list[int]:
    """The indices of operands that are passed as they are; none where other items are among them."""
    found = [item.index for item in items if isinstance(item, Operand) and not item.ordered]
    return found if len(found) == len(items) else []


def operands_to_copy(op: ComputeOp, overwritten: Collection[int]) -> frozenset[int]:
    """The operands that `op` would write to although they, or views of them, are read again."""
    return frozenset(operand for operand, _ in overwritten_by_update(op)) - frozenset(overwritten)


def returns_list(op: ComputeOp) -> bool:
    """Whether the call gives a list or tuple of tensors even where it is of one."""
    if isinstance(op, ForeachOp):
        return True
    if isinstance(op, AtenOp):
        return op.spec.results == 0
    if isinstance(op, OpaqueOp):
        returns = resolve(call_of(op).target)._schema.returns
        return len(returns) == 1 and str(returns[0].type).startswith("List")
    return False


def _calls_by_device(op: ComputeOp, mesh: Mesh) -> Iterator[Call]:
    telling = _telling_axes(op, mesh)
    made: dict[tuple[int, ...], Call] = {}
    for rank in range(mesh.device_count if telling else 1):
        coordinates = mesh.coordinates(rank)
        place = tuple(coordinates[axis] for axis in telling)
        if place not in made:
            made[place] = call_of(op, mesh, rank)
        yield made[place]


def _telling_axes(op: ComputeOp, mesh: Mesh) -> tuple[str, ...]:
    """The axes along which the call differs: where a part starts, or local sizes that are not alike."""
    given = op.signature
    if given is None or not differs_by_rank(op):
        return ()
    places = op.spec.localize.values() if isinstance(op, AtenOp) and op.spec.localize else ()
    starts = bool(op.rule().indexed) or any(".start" in place for place in places)
    values = zip((*op.args, *op.outs), (*given.operands, *given.results), strict=True)
    dims = [pair for value, spread in values for pair in zip(shape_of(value), spread.dims, strict=True)]
    telling = (dim for size, dim in dims if starts or dim.offsets or size % mesh.parts(dim.axes))
    split = {axis for dim in telling for axis in dim.axes}
    return mesh.in_order(split)


def function_name(target: str) -> str:
    """How the program spells a target of `calls`; NotPythonError where that is a keyword."""
    if target.startswith("aten."):
        return dotted(target)
    return f"torch.ops.{dotted(target)}" if "." in target else f"rt.{checked_name(target)}"
