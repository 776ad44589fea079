"""
Resolve the entries of pin files to limits on the arguments, ops and transfers that they concern.

`pin_file.py` describes the presets.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from xdsl.dialects.builtin import ArrayAttr, ModuleOp
from xdsl.ir import SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp, element_bytes, shape_of
from ...dialects.pins import PINS, PinEntryAttr
from ...ir.pins import ANY, OpPlacements, Pin, Placement, ShardingLimit, SignatureLimit
from ...ir.plain import did_you_mean
from ..analysis.compute import is_cast, is_contraction, spec_of
from ..analysis.reductions import gradient_values, reductions_of
from ..errors import fail
from ..step.step_view import StepView, stage_meshes, step_functions
from .constraints import Constraints, pin_entries, write_pins
from .pin_file import PinError
from .propagate import Propagation, propagate_batch, propagate_updates

_Key = TypeVar("_Key")

_SPLIT_ROLES: dict[str, frozenset[str]] = {
    "dp": frozenset(),
    "zero1": frozenset({train.STATE}),
    "zero2": frozenset({train.STATE}),
    "zero3": frozenset({train.STATE, train.PARAM}),
}
"""The roles of arguments that each data-parallel preset splits."""


def add_pins(module: ModuleOp, pins: Sequence[Pin]) -> None:
    """
    Add entries to every step function, and write the limits that follow from all its entries.

    Raise OpFailure at a function if a pin does not fit it.
    """
    for func in step_functions(module):
        entries = dict.fromkeys((*pin_entries(func), *pins))
        func.attributes[PINS] = ArrayAttr([PinEntryAttr(pin) for pin in entries])
    resolve_pins(module)


def resolve_pins(module: ModuleOp) -> None:
    """
    Write the limits of the step functions' entries again, as another mesh or stages may change them.

    Raise OpFailure at a function if a pin does not fit it.
    """
    for func in step_functions(module):
        if entries := pin_entries(func):
            for stage, mesh in stage_meshes(module, func):
                view = StepView(func, mesh, stage)
                try:
                    write_pins(view, apply_pins(entries, view))
                except PinError as error:
                    fail(func, str(error))


def apply_pins(pins: Sequence[Pin], view: StepView, known: tuple[Pin, ...] = ()) -> Constraints:
    """
    Return the constraints that `pins` put on a step; raise PinError if a pin matches nothing or is invalid.

    A pin of a value is more specific than a preset and wins over it, in any order of entries.

    Args:
        known: pins of other constraints; the indices of `pins` begin after them.
    """
    constraints = Constraints(pins=(*known, *pins))
    for index, pin in sorted(enumerate(pins, len(known)), key=lambda numbered: not numbered[1].preset):
        resolver = _Resolver(pin, index, view, constraints)
        if pin.preset:
            resolver.preset()
        else:
            resolver.value()
    return constraints


@dataclass(frozen=True)
class _Resolver:
    """Writes an entry, the `index`-th of its list, into the constraints of a step."""

    pin: Pin
    index: int
    view: StepView
    constraints: Constraints

    def value(self) -> None:
        """Limit the arguments and gradients whose names match the glob."""
        assert self.pin.sharding is not None
        limit, matched = ShardingLimit(self.pin.sharding, by=(self.index,)), False
        for step_input in self.view.inputs:
            if step_input.role and fnmatch.fnmatchcase(step_input.name, self.pin.value):
                self._verify(step_input.name, shape_of(step_input.argument))
                self.constraints.arguments[step_input.argument.index] = limit
                matched = True
        for name, update, at in self.view.grads():
            if fnmatch.fnmatchcase(f"{name}.grad", self.pin.value):
                self._verify(f"{name}.grad", shape_of(update.args[at]))
                before = self.constraints.ops.get(update, SignatureLimit())
                others = tuple(other for other in before.operands if other[0] != at and other[1].sharding is not None)
                self.constraints.ops[update] = SignatureLimit(operands=(*others, (at, limit)), by=(self.index,))
                matched = True
        if not matched and not fnmatch.filter(self._all_names(), self.pin.value):
            names = self._all_names()
            near = did_you_mean(self.pin.value, names) or f"; the first are {', '.join(names[:4])}"
            raise PinError(f"{self.pin} matches no parameter, state, gradient or batch input{near}")

    def _all_names(self) -> list[str]:
        """Return the names of all values, in all stages, that can be pinned."""
        whole = self.view.whole
        return [i.name for i in whole.inputs if i.role] + [f"{name}.grad" for name, _, _ in whole.grads()]

    def _verify(self, name: str, shape: tuple[int, ...]) -> None:
        try:
            assert self.pin.sharding is not None
            self.pin.sharding.verify(self.view.mesh, shape)
        except ValueError as error:
            raise PinError(f"{self.pin} on {name}: {error}") from error

    def preset(self) -> None:
        """Write the limits of the preset."""
        chosen = self.pin.axes
        axes = chosen if chosen is not None else tuple(axis.name for axis in self.view.mesh.spatial)
        for axis in axes:
            try:
                self.view.mesh.axis(axis)
            except ValueError as error:
                raise PinError(f"{self.pin}: {error}") from error
        preset = _Preset(axes, self.view, self.constraints, (self.index,))
        if self.pin.preset == "tp":
            preset.tensor_parallel()
        else:
            preset.data_parallel(_SPLIT_ROLES[self.pin.preset])


@dataclass(frozen=True)
class _Preset:
    """
    Writes the limits of a preset into the constraints of a step.

    Args:
        axes: axes of the preset, treated as one axis.
        by: indices of the pins that ask for the preset.
    """

    axes: tuple[str, ...]
    view: StepView
    constraints: Constraints
    by: tuple[int, ...]

    def data_parallel(self, split: frozenset[str]) -> None:
        """
        Let ops follow the batch; replicate parameters and states, except that roles in `split` are split at home.

        If all ops use a split parameter in a narrower dtype (mixed precision), it is gathered in that dtype. Gradients
        are reduced after a cast to a wider dtype, unless the step specifies otherwise.
        """
        batch, parts = ("S", 0), self.view.mesh.parts(self.axes)
        narrowed: dict[ComputeOp, Placement] = {}
        for step_input in self.view.inputs:
            shape = shape_of(step_input.argument)
            dim = None
            if step_input.role == train.BATCH:
                dim = 0 if step_input.rows >= parts else None
            elif step_input.role in split:
                dim = split_dim(shape, parts)
            where: Placement = ("S", dim) if dim is not None else "R"
            self._value(self.constraints.arguments, step_input.argument.index, where)
            if step_input.role == train.PARAM:
                casts = _narrowing_casts(step_input.argument, self.view) if dim is not None else []
                narrowed |= dict.fromkeys(casts, where)
                for used in [cast.outs[0] for cast in casts] or [step_input.argument]:
                    self._value(self.constraints.copies, used, "R")
                    if dim is not None:
                        self.constraints.regathered.add(used)

        def updated(value: SSAValue) -> Placement:
            dim = split_dim(shape_of(value), parts) if split else None
            return ("S", dim) if dim is not None else "R"

        reduced = {cast: (updated(cast.outs[0]),) * 2 for cast in reductions_of(self.view.func).reduced}
        complete = {value: updated(value) for value in gradient_values(self.view.func.body.block.ops)}
        propagation: Propagation = propagate_batch(self.view, self.axes, batch, reduced, complete)
        for transfer in self.view.arrivals:
            self._value(self.constraints.arrivals, transfer.result, propagation.arrivals[transfer.result])
        updates = propagate_updates(self.view, self.axes, updated)
        for op in self.view.ops:
            if isinstance(op, train.TrainOp):
                shape, where = shape_of(op.args[0]), updated(op.args[0])
                placements = tuple(where if shape_of(v) == shape else "R" for v in (*op.args, *op.outs))
            elif train.is_update(op):
                placements = updates[op]
            elif op in narrowed:
                placements = (narrowed[op], narrowed[op])
            else:
                placements = propagation.ops[op]
            self._op(op, SignatureLimit(axes=self._placements(op, placements)))

    def tensor_parallel(self) -> None:
        """Replicate the batch in all ops; split the weight matrices of matrix products, at home and where used."""
        for op, splits in self._batch_splits().items():
            if self.view.has(op) and set(splits) != {ANY}:
                self._op(op, SignatureLimit(never=self._placements(op, splits)))
        for step_input in self.view.inputs:
            if step_input.role == train.BATCH:
                self._value(self.constraints.arguments, step_input.argument.index, "R")
            elif step_input.role == train.PARAM and (places := self._matrix_splits(step_input.argument)):
                self._value(self.constraints.arguments, step_input.argument.index, places)
                self._limit_use(step_input.argument)
        parameters = {step_input.argument for step_input in self.view.whole.inputs if step_input.role == train.PARAM}
        for transfer in self.view.arrivals:
            if transfer.operand in parameters and (places := self._matrix_splits(transfer.result)):
                self._value(self.constraints.arrivals, transfer.result, places)
                self._limit_use(transfer.result)

    def _matrix_splits(self, value: SSAValue) -> frozenset[Placement]:
        """Return the placements of a parameter that split it, if it is a matrix operand of a matrix product."""
        if len(shape_of(value)) < 2 or next(_contractions(value), None) is None:
            return frozenset()
        return _splits(value, self.view.mesh.parts(self.axes))

    def _limit_use(self, value: SSAValue) -> None:
        """Require that contractions read the value split, directly or through views."""
        parts = self.view.mesh.parts(self.axes)
        self._value(self.constraints.copies, value, _splits(value, parts))
        for op, index in _contractions(value):
            splits = _splits(op.args[index], parts)
            limit = ShardingLimit(axes=tuple((axis, splits) for axis in self.axes), by=self.by)
            self._op(op, SignatureLimit(operands=((index, limit),)))

    def _batch_splits(self) -> dict[ComputeOp, tuple[Placement, ...]]:
        """Map each op to the placements that split a dim of the batch's size, with ANY in place of all others."""
        sizes = {step_input.rows for step_input in self.view.whole.inputs if step_input.rows}
        splits: dict[ComputeOp, tuple[Placement, ...]] = {}
        for op, placements in propagate_batch(self.view, self.axes, ("S", 0)).ops.items():
            pairs = zip((*op.args, *op.outs), placements, strict=True)
            splits[op] = tuple(p if isinstance(p, tuple) and shape_of(v)[p[1]] in sizes else ANY for v, p in pairs)
        return splits

    def _value(self, limits: dict[_Key, ShardingLimit], key: _Key, where: Placement | frozenset[Placement]) -> None:
        """Add a limit to the present limits of a value."""
        allowed = where if isinstance(where, frozenset) else frozenset({where})
        added = ShardingLimit(axes=tuple((axis, allowed) for axis in self.axes), by=self.by)
        limits[key] = limits.get(key, ShardingLimit()).and_also(added)

    def _op(self, op: ComputeOp, limit: SignatureLimit) -> None:
        """Add a limit to the present limits of an op."""
        self.constraints.ops[op] = self.constraints.ops.get(op, SignatureLimit()).and_also(replace(limit, by=self.by))

    def _placements(self, op: ComputeOp, placements: tuple[Placement, ...]) -> tuple[OpPlacements, ...]:
        """Return the placements of operands and results on every axis, from one list of both."""
        count = len(op.args)
        return tuple(OpPlacements(axis, placements[:count], placements[count:]) for axis in self.axes)


def _narrowing_casts(parameter: SSAValue, view: StepView) -> list[ComputeOp]:
    """Return the casts of a parameter to a narrower dtype, if only they and its update use it."""
    uses = [use.operation for use in parameter.uses if not view.is_update_use(use) and view.has(use.operation)]
    casts = [op for op in uses if isinstance(op, ComputeOp) and is_cast(op)]
    if len(casts) < len(uses) or any(element_bytes(op.outs[0]) >= element_bytes(parameter) for op in casts):
        return []
    return casts


def split_dim(shape: tuple[int, ...], parts: int) -> int | None:
    """
    Return the dim along which to split a parameter over `parts` devices: the first that is divisible, else the largest
    that has enough elements, else None.
    """
    divisible = [i for i, size in enumerate(shape) if size >= parts and size % parts == 0]
    enough = sorted((i for i, size in enumerate(shape) if size >= parts), key=lambda i: -shape[i])
    return next(iter((*divisible, *enough)), None)


def _splits(value: SSAValue, parts: int) -> frozenset[Placement]:
    """Return the dims along which every part gets an element, or replicated if there are none."""
    dims = (i for i, size in enumerate(shape_of(value)) if size >= parts)
    return frozenset[Placement](("S", i) for i in dims) or frozenset({"R"})


def _contractions(value: SSAValue) -> Iterator[tuple[ComputeOp, int]]:
    """Yield the contractions that read a value, directly or through views, with the index of that operand."""
    for use in value.uses:
        op = use.operation
        if not isinstance(op, ComputeOp) or train.is_update(op):
            continue
        if is_contraction(op):
            yield op, op.args.index(use.operation.operands[use.index])
        elif spec_of(op).view:
            yield from _contractions(op.outs[0])
