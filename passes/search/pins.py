"""
Pins resolved: the entries of pin files as limits of the arguments, ops and transfers that they are about.

The presets are those of `pin_file.py`.
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
"""The roles of arguments that presets of data parallelism split."""


def add_pins(module: ModuleOp, pins: Sequence[Pin]) -> None:
    """
    Add entries to those of every step function, and write what all of them pin.

    OpFailure at a function to which a pin does not fit.
    """
    for func in step_functions(module):
        entries = dict.fromkeys((*pin_entries(func), *pins))
        func.attributes[PINS] = ArrayAttr([PinEntryAttr(pin) for pin in entries])
    resolve_pins(module)


def resolve_pins(module: ModuleOp) -> None:
    """
    Write anew what the entries of the step functions pin: on another mesh, or in stages, that may be something else.

    OpFailure at a function to which a pin does not fit.
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
    The constraints that `pins` put on a step; PinError names a pin that matches nothing or does not fit.

    A pin of a value says more than a preset and wins over it, wherever it stands.

    Args:
        known: what other constraints are by; `pins` are numbered after them.
    """
    constraints = Constraints(pins=(*known, *pins))
    for index, pin in sorted(enumerate(pins, len(known)), key=lambda each: not each[1].preset):
        resolver = _Resolver(pin, index, view, constraints)
        if pin.preset:
            resolver.preset()
        else:
            resolver.value()
    return constraints


@dataclass(frozen=True)
class _Resolver:
    """Writes one entry, the `index`-th of its list, into the constraints of a step."""

    pin: Pin
    index: int
    view: StepView
    constraints: Constraints

    def value(self) -> None:
        """Pin the values that match the glob."""
        assert self.pin.sharding is not None
        limit, matched = ShardingLimit(self.pin.sharding, by=(self.index,)), False
        for given in self.view.inputs:
            if given.role and fnmatch.fnmatchcase(given.name, self.pin.value):
                self._verify(given.name, shape_of(given.argument))
                self.constraints.arguments[given.argument.index] = limit
                matched = True
        for name, update, at in self.view.grads():
            if fnmatch.fnmatchcase(f"{name}.grad", self.pin.value):
                self._verify(f"{name}.grad", shape_of(update.args[at]))
                before = self.constraints.ops.get(update, SignatureLimit())
                others = tuple(each for each in before.operands if each[0] != at and each[1].sharding is not None)
                self.constraints.ops[update] = SignatureLimit(operands=(*others, (at, limit)), by=(self.index,))
                matched = True
        if not matched and not fnmatch.filter(self._all_names(), self.pin.value):
            names = self._all_names()
            near = did_you_mean(self.pin.value, names) or f"; the first are {', '.join(names[:4])}"
            raise PinError(f"{self.pin} matches no parameter, state, gradient or batch input{near}")

    def _all_names(self) -> list[str]:
        """Return the names of all values that may be pinned, of every stage."""
        whole = self.view.whole
        return [given.name for given in whole.inputs if given.role] + [f"{name}.grad" for name, _, _ in whole.grads()]

    def _verify(self, name: str, shape: tuple[int, ...]) -> None:
        try:
            assert self.pin.sharding is not None
            self.pin.sharding.verify(self.view.mesh, shape)
        except ValueError as error:
            raise PinError(f"{self.pin} on {name}: {error}") from error

    def preset(self) -> None:
        """Pin what the preset is about."""
        given = self.pin.axes
        axes = given if given is not None else tuple(axis.name for axis in self.view.mesh.spatial)
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
        axes: what the preset is for, taken as one.
        by: the indices of the pins that ask for it.
    """

    axes: tuple[str, ...]
    view: StepView
    constraints: Constraints
    by: tuple[int, ...]

    def data_parallel(self, split: frozenset[str]) -> None:
        """
        Ops follow the batch; parameters and states are replicated, or, of the roles in `split`, split at home.

        Where all ops use a split parameter in a narrower dtype, in mixed precision, it is gathered in that. Gradients
        are reduced after they are cast to a wider one, unless the step says otherwise.
        """
        batch, parts = ("S", 0), self.view.mesh.parts(self.axes)
        narrowed: dict[ComputeOp, Placement] = {}
        for given in self.view.inputs:
            shape = shape_of(given.argument)
            dim = None
            if given.role == train.BATCH:
                dim = 0 if given.rows >= parts else None
            elif given.role in split:
                dim = split_dim(shape, parts)
            where: Placement = ("S", dim) if dim is not None else "R"
            self._value(self.constraints.arguments, given.argument.index, where)
            if given.role == train.PARAM:
                casts = _narrowing_casts(given.argument, self.view) if dim is not None else []
                narrowed |= dict.fromkeys(casts, where)
                for used in [cast.outs[0] for cast in casts] or [given.argument]:
                    self._value(self.constraints.copies, used, "R")
                    if dim is not None:
                        self.constraints.regathered.add(used)

        def updated(value: SSAValue) -> Placement:
            dim = split_dim(shape_of(value), parts) if split else None
            return ("S", dim) if dim is not None else "R"

        reduced = {cast: (updated(cast.outs[0]),) * 2 for cast in reductions_of(self.view.func).reduced}
        complete = {value: updated(value) for value in gradient_values(self.view.func)}
        found: Propagation = propagate_batch(self.view, self.axes, batch, reduced, complete)
        for transfer in self.view.arrivals:
            self._value(self.constraints.arrivals, transfer.result, found.arrivals[transfer.result])
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
                placements = found.ops[op]
            self._op(op, SignatureLimit(axes=self._placements(op, placements)))

    def tensor_parallel(self) -> None:
        """The batch is not split, in any op; matrices that matrix products use are split, at home and in use."""
        for op, splits in self._batch_splits().items():
            if self.view.has(op) and set(splits) != {ANY}:
                self._op(op, SignatureLimit(never=self._placements(op, splits)))
        for given in self.view.inputs:
            if given.role == train.BATCH:
                self._value(self.constraints.arguments, given.argument.index, "R")
            elif given.role == train.PARAM and (places := self._matrix_splits(given.argument)):
                self._value(self.constraints.arguments, given.argument.index, places)
                self._limit_use(given.argument)
        kept = {given.argument for given in self.view.whole.inputs if given.role == train.PARAM}
        for transfer in self.view.arrivals:
            if transfer.operand in kept and (places := self._matrix_splits(transfer.result)):
                self._value(self.constraints.arrivals, transfer.result, places)
                self._limit_use(transfer.result)

    def _matrix_splits(self, value: SSAValue) -> frozenset[Placement]:
        """How a parameter may be split, if it is a matrix that a matrix product uses."""
        if len(shape_of(value)) < 2 or next(_contractions(value), None) is None:
            return frozenset()
        return _splits(value, self.view.mesh.parts(self.axes))

    def _limit_use(self, value: SSAValue) -> None:
        """Let contractions use a value split, as it is or as views of it are."""
        parts = self.view.mesh.parts(self.axes)
        self._value(self.constraints.copies, value, _splits(value, parts))
        for op, index in _contractions(value):
            splits = _splits(op.args[index], parts)
            limit = ShardingLimit(axes=tuple((axis, splits) for axis in self.axes), by=self.by)
            self._op(op, SignatureLimit(operands=((index, limit),)))

    def _batch_splits(self) -> dict[ComputeOp, tuple[Placement, ...]]:
        """By op, where its values have the batch for a dim by itself: merged with heads, say, it may be split."""
        sizes = {given.rows for given in self.view.whole.inputs if given.rows}
        found: dict[ComputeOp, tuple[Placement, ...]] = {}
        for op, placements in propagate_batch(self.view, self.axes, ("S", 0)).ops.items():
            pairs = zip((*op.args, *op.outs), placements, strict=True)
            found[op] = tuple(p if isinstance(p, tuple) and shape_of(v)[p[1]] in sizes else ANY for v, p in pairs)
        return found

    def _value(self, limits: dict[_Key, ShardingLimit], key: _Key, where: Placement | frozenset[Placement]) -> None:
        """Limit a value, besides what limits it already."""
        allowed = where if isinstance(where, frozenset) else frozenset({where})
        added = ShardingLimit(axes=tuple((axis, allowed) for axis in self.axes), by=self.by)
        limits[key] = limits.get(key, ShardingLimit()).and_also(added)

    def _op(self, op: ComputeOp, limit: SignatureLimit) -> None:
        """Limit an op, besides what limits it already."""
        self.constraints.ops[op] = self.constraints.ops.get(op, SignatureLimit()).and_also(replace(limit, by=self.by))

    def _placements(self, op: ComputeOp, placements: tuple[Placement, ...]) -> tuple[OpPlacements, ...]:
        """Those of an op's operands and then its results, on every axis."""
        count = len(op.args)
        return tuple(OpPlacements(axis, placements[:count], placements[count:]) for axis in self.axes)


def _narrowing_casts(parameter: SSAValue, view: StepView) -> list[ComputeOp]:
    """The casts of a parameter to fewer bytes, where nothing else but its update uses it."""
    uses = [use.operation for use in parameter.uses if not view.is_update_use(use) and view.has(use.operation)]
    casts = [op for op in uses if isinstance(op, ComputeOp) and is_cast(op)]
    if len(casts) < len(uses) or any(element_bytes(op.outs[0]) >= element_bytes(parameter) for op in casts):
        return []
    return casts


def split_dim(shape: tuple[int, ...], parts: int) -> int | None:
    """
    The dim along which a parameter is spread over `parts` devices: the first that divides, else the largest
    that has enough elements, else none.
    """
    divisible = [i for i, size in enumerate(shape) if size >= parts and size % parts == 0]
    enough = sorted((i for i, size in enumerate(shape) if size >= parts), key=lambda i: -shape[i])
    return next(iter((*divisible, *enough)), None)


def _splits(value: SSAValue, parts: int) -> frozenset[Placement]:
    """The dims along which a value has an element for each part; replicated, where there is none."""
    dims = (i for i, size in enumerate(shape_of(value)) if size >= parts)
    return frozenset[Placement](("S", i) for i in dims) or frozenset({"R"})


def _contractions(value: SSAValue) -> Iterator[tuple[ComputeOp, int]]:
    """The contractions that have a value, perhaps through views, for an operand, and for which."""
    for use in value.uses:
        op = use.operation
        if not isinstance(op, ComputeOp) or train.is_update(op):
            continue
        if is_contraction(op):
            yield op, op.args.index(use.operation.operands[use.index])
        elif spec_of(op).view:
            yield from _contractions(op.outs[0])
