"""
The kinds of parallelism of a planned step, in the words of the field, read off shardings and signatures.

A parameter has, on each axis of the mesh, the kinds that its placements and its uses in forward imply:

home split, use whole             fully sharded (ZeRO-3): the parameter is gathered for its use
states split, home whole          optimizer states split (ZeRO-1)
use split, result split           Megatron column: the output features are split
use split, result partial         Megatron row: the contracted features are split; of an embedding, its vocabulary
use and the other operand split   expert parallel for products of groups, otherwise split as the layer's outputs
use whole, rows of activations    data parallel if these are rows of the batch, otherwise sequence parallel
everything whole                  replicated compute: all ranks of the axis compute the same
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from xdsl.ir import BlockArgument, OpResult, SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp, python_value, shape_of
from ...dialects.placed import argument_attribute, sharding_of
from ...dialects.spmd import ReshardingOp, WaitOp
from ...dialects.step import BACKWARD
from ...ir.mesh import Mesh
from ...ir.sharding import Sharding
from ...ir.signatures import Signature
from ..step.step_view import Input, StepView, batch_rows


class Parallelism(StrEnum):
    """A kind of parallelism of a parameter on an axis."""

    COLUMN = "Megatron column"
    ROW = "Megatron row"
    VOCABULARY = "Megatron vocabulary"
    EXPERT = "expert parallel"
    OUTPUTS = "split as the layer's outputs"
    FULLY_SHARDED = "fully sharded (ZeRO-3)"
    STATES = "optimizer states split (ZeRO-1)"
    DATA = "data parallel"
    SEQUENCE = "sequence parallel"
    REPLICATED = "replicated compute"


_GROUPED = ("bmm", "grouped_mm")
"""The products of a stack of matrices, such as the experts of a mixture."""


_TIED = "train.tied"
"""On a parameter: its further names in the model, as of a head that shares the weight of an embedding."""


@dataclass(frozen=True)
class ParameterSpread:
    """
    A parameter, and how it is spread.

    Args:
        home: sharding between steps.
        uses: shardings in forward, without repetition.
        states: shardings of its optimizer states between steps, without repetition.
        kinds: kinds of parallelism by axis, for the axes with several ranks.
        tied: further names of the same parameter.
    """

    name: str
    shape: tuple[int, ...]
    home: Sharding
    uses: tuple[Sharding, ...]
    states: tuple[Sharding, ...]
    kinds: Mapping[str, tuple[Parallelism, ...]]
    tied: tuple[str, ...] = ()


def spreads(view: StepView) -> Iterator[ParameterSpread]:
    """Yield the parameters of a step, or of one stage, in the order of the arguments."""
    uses = _uses(view)
    states: dict[str, dict[Sharding, None]] = {}
    for given in view.inputs:
        if given.role == train.STATE and len(shape_of(given.argument)) > 0:
            states.setdefault(given.name.rpartition(".")[0], {})[sharding_of(given.argument)] = None
    rows = batch_rows(StepView(view.func, view.mesh).inputs) or 1
    axes = [axis.name for axis in view.mesh.spatial if axis.size > 1]
    for given in view.inputs:
        if given.role == train.PARAM:
            yield _spread(given, uses.get(given.argument, ()), tuple(states.get(given.name, ())), axes, rows, view.mesh)


def per_axis(sharding: Sharding, mesh: Mesh) -> dict[str, str]:
    """Return the placement of a value on each spatial axis as a DTensor has it: `Shard(0)`, `Replicate`, `Partial`."""
    partial = dict(sharding.partial)
    found: dict[str, str] = {}
    for axis in mesh.spatial:
        dims = [str(index) for index, dim in enumerate(sharding.dims) if axis.name in dim.axes]
        reduction = f"Partial({partial[axis.name]})" if axis.name in partial else "Replicate"
        found[axis.name] = f"Shard({dims[0]})" if dims else reduction
    return found


@dataclass(frozen=True)
class _ParameterUse:
    """The operand of an op that comes from a parameter, and the sharding of the parameter there."""

    op: ComputeOp
    signature: Signature
    index: int
    sharding: Sharding


def _uses(view: StepView) -> dict[BlockArgument, list[_ParameterUse]]:
    """Return the ops of forward that combine each parameter with other values."""
    uses: dict[BlockArgument, list[_ParameterUse]] = {}
    for op in view.func.walk():
        if not isinstance(op, ComputeOp) or BACKWARD in op.attributes or train.is_update(op):
            continue
        if (signature := op.signature) is None or (len(op.args) < 2 and not _is_looked_up(op)):
            continue
        for index, value in enumerate(op.args):
            argument, form = _origin(value)
            if isinstance(argument, BlockArgument):
                uses.setdefault(argument, []).append(_ParameterUse(op, signature, index, sharding_of(form)))
    return uses


def _origin(value: SSAValue) -> tuple[SSAValue | None, SSAValue]:
    """Return the argument that a value is another form of, if any, and the form before the first cast or view."""
    form = value
    while isinstance(value, OpResult):
        match op := value.op:
            case ReshardingOp():
                value = op.operand
            case WaitOp():
                value = op.start.args[value.index]
            case ComputeOp() if len(op.args) == 1:
                value = form = op.args[0]
            case _:
                return None, form
    return value, form


def _is_looked_up(op: ComputeOp) -> bool:
    return op.name == "aten.embedding"


def _spread(
    given: Input,
    uses: Sequence[_ParameterUse],
    states: tuple[Sharding, ...],
    axes: Sequence[str],
    rows: int,
    mesh: Mesh,
) -> ParameterSpread:
    home = sharding_of(given.argument)
    shape = tuple(shape_of(given.argument))
    kinds: dict[str, tuple[Parallelism, ...]] = {}
    for axis in axes:
        found: dict[Parallelism, None] = {}
        for use in uses:
            is_split = axis in use.signature.operands[use.index].split_axes
            if axis in home.split_axes and not is_split:
                found[Parallelism.FULLY_SHARDED] = None
            found[_split_kind(use, axis, shape) if is_split else _whole_kind(use, axis, rows, mesh)] = None
        if axis not in home.split_axes and any(axis in state.split_axes for state in states):
            found[Parallelism.STATES] = None
        if set(found) - {Parallelism.FULLY_SHARDED, Parallelism.STATES, Parallelism.REPLICATED}:
            # Another op may still use the whole parameter on all ranks.
            found.pop(Parallelism.REPLICATED, None)
        kinds[axis] = tuple(found) or (Parallelism.REPLICATED,)
    used = tuple(dict.fromkeys(use.sharding for use in uses))
    names = argument_attribute(given.argument, _TIED)
    tied = tuple(python_value(names)) if names is not None else ()
    return ParameterSpread(given.name, shape, home, used, states, kinds, tied)


def _split_kind(use: _ParameterUse, axis: str, shape: Sequence[int]) -> Parallelism:
    """Return the kind of a use of a split parameter."""
    others = (each for index, each in enumerate(use.signature.operands) if index != use.index)
    if any(axis in each.partial_axes for each in use.signature.results):
        return Parallelism.VOCABULARY if _is_looked_up(use.op) else Parallelism.ROW
    if len(shape) > 2 and any(name in use.op.name for name in _GROUPED):
        return Parallelism.EXPERT if any(axis in each.split_axes for each in others) else Parallelism.COLUMN
    return Parallelism.COLUMN if len(shape) > 1 else Parallelism.OUTPUTS


def _whole_kind(use: _ParameterUse, axis: str, rows: int, mesh: Mesh) -> Parallelism:
    """Return the kind of a use of a whole parameter, by the dim of the activations that the axis splits."""
    if not any(axis in each.split_axes for each in use.signature.results):
        # The bias of a product with split contracted features, say, is added once.
        return Parallelism.REPLICATED
    for index, sharding in enumerate(use.signature.operands):
        if index == use.index or axis not in sharding.split_axes:
            continue
        at = next(at for at, dim in enumerate(sharding.dims) if axis in dim.axes)
        axes, size = sharding.dims[at].axes, shape_of(use.op.args[index])[at]
        # The rows of the batch are the outer part of a dim into which they are flattened.
        is_rows = at == 0 and size % rows == 0 and mesh.parts(axes[: axes.index(axis) + 1]) <= rows
        return Parallelism.DATA if is_rows else Parallelism.SEQUENCE
    return Parallelism.REPLICATED
