"""
Pins: what the user has decided, as constraints that every search algorithm obeys.

```toml
[[pin]]
value = "h.*.weight"              # a glob over parameters, states (h.0.weight.exp_avg),
sharding = '[{"gpu"}, {}]'        # gradients (h.0.weight.grad) and batch inputs (batch.0)

[[pin]]
preset = "dp"                     # or "zero1", "zero2", "zero3", "tp"
axes = ["gpu"]                    # the axes it speaks of; all by default
```

`dp` splits the batch, runs every op on its part of the batch and keeps parameters whole; `zero1` does the same with
the states of the optimizer split, each device updating its part of every parameter (a gradient is reduced straight to
the parts that are updated, so `zero2`, which splits gradients too, is the same program); `zero3` splits parameters as
well and gathers them anew for every use; `tp` keeps the batch whole
and every matrix of a matrix product split where it is used (Megatron's layouts are the cheapest completions
of that).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from xdsl.ir import Block, BlockArgument, SSAValue

from ...dialects import train
from ...dialects.compute import ComputeOp, element_bytes, shape_of
from ...ir.cluster_fields import shown
from ...ir.mesh import Mesh
from ...ir.sharding import DimSharding, Sharding, parse_sharding
from ...ir.signatures import Signature
from ...ir.text_file import read_text
from ...ir.toml_text import read_toml
from ..analysis.compute import is_cast, is_contraction, spec_of
from ..analysis.reductions import gradient_values, reductions_of
from ..errors import fail
from ..step.step_view import StepView, value_label
from .propagate import Placement, Propagation, placement, propagate_batch, propagate_updates

_Key = TypeVar("_Key")

PRESETS = ("dp", "zero1", "zero2", "zero3", "tp")

_MOST_CHARACTERS = 10_000
"""Of a glob, or of a sharding."""

_SPLIT_ROLES: dict[str, frozenset[str]] = {
    "dp": frozenset(),
    "zero1": frozenset({train.STATE}),
    "zero2": frozenset({train.STATE}),
    "zero3": frozenset({train.STATE, train.PARAM}),
}
"""The roles of arguments that presets of data parallelism split."""


class PinError(ValueError):
    """A pin that cannot be read or obeyed."""


@dataclass(frozen=True)
class Pin:
    """One entry of a pin file: a sharding for the values of a glob, or a preset on some axes."""

    value: str = ""
    sharding: Sharding | None = None
    preset: str = ""
    axes: tuple[str, ...] | None = None


def load_pins(path: str | Path) -> tuple[Pin, ...]:
    """Read a pin file; PinError names the file and the entry."""
    try:
        return parse_pins(read_text(path), str(path))
    except OSError as error:
        raise PinError(f"{path}: cannot read the pin file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PinError(f"{path}: the pin file is not UTF-8 text") from error


def parse_pins(text: str, source: str = "<pins>") -> tuple[Pin, ...]:
    """Read pins from TOML text; see `load_pins`."""
    try:
        table = read_toml(text)
    except ValueError as error:
        raise PinError(f"{source}: {error}") from error
    entries = table.get("pin")
    if not isinstance(entries, list) or set(table) != {"pin"} or not _are_tables(cast("list[object]", entries)):
        raise PinError(f'{source}: expected [[pin]] entries, each with value and sharding or with preset = "dp"')
    pins = cast("list[Mapping[str, Any]]", entries)
    return tuple(_pin(entry, f"{source}: pin {number}") for number, entry in enumerate(pins, 1))


def _are_tables(entries: list[object]) -> bool:
    return bool(entries) and all(isinstance(entry, dict) for entry in entries)


def _pin(entry: Mapping[str, Any], place: str) -> Pin:
    fields = set(entry)
    for name in fields - {"axes"}:
        if not isinstance(entry[name], str):
            raise PinError(f"{place}: {shown(name)} is {shown(entry[name])}, expected text")
        if len(entry[name]) > _MOST_CHARACTERS:
            raise PinError(f"{place}: {shown(name)} is longer than {_MOST_CHARACTERS} characters")
    if fields == {"value", "sharding"}:
        try:
            return Pin(value=entry["value"], sharding=parse_sharding(entry["sharding"]))
        except ValueError as error:
            raise PinError(f"{place}: sharding: {error}") from error
    if "preset" in fields and fields <= {"preset", "axes"}:
        if entry["preset"] not in PRESETS:
            raise PinError(f"{place}: preset {shown(entry['preset'])} is not one of {', '.join(PRESETS)}")
        axes = entry.get("axes")
        if axes is not None and not _are_axes(axes):
            raise PinError(f'{place}: axes is {shown(axes)}, expected names of axes, each once, as ["gpu"]')
        return Pin(preset=entry["preset"], axes=tuple(axes) if axes is not None else None)
    raise PinError(f"{place}: has {shown(sorted(fields))}; expected value and sharding, or preset and axes")


def _are_axes(axes: object) -> bool:
    if not isinstance(axes, list):
        return False
    names = cast("list[object]", axes)
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


AxisLimit = tuple[str, frozenset[Placement]]
"""On one axis, the placements allowed."""


@dataclass(frozen=True)
class Limit:
    """
    What a value's sharding must be: `sharding` where given, and per axis one of some placements.
    """

    sharding: Sharding | None = None
    axes: tuple[AxisLimit, ...] = ()


@dataclass(frozen=True)
class OpLimit:
    """
    What an op's signature must be: per axis all its placements, the sharding of single operands, per axis the splits
    that its values may not have, the whole of it where given, and whether operands may be partial values.
    """

    axes: tuple[tuple[str, tuple[Placement, ...]], ...] = ()
    operands: tuple[tuple[int, Limit], ...] = ()
    never: tuple[tuple[str, tuple[Placement, ...]], ...] = ()
    signature: Signature | None = None
    takes_partial: bool = True


_FREE = Limit()


@dataclass
class Constraints:
    """Pins applied to one step."""

    arguments: dict[int, Limit] = field(default_factory=dict[int, Limit])
    arrivals: dict[SSAValue, Limit] = field(default_factory=dict[SSAValue, Limit])
    copies: dict[SSAValue, Limit] = field(default_factory=dict[SSAValue, Limit])
    ops: dict[int, OpLimit] = field(default_factory=dict[int, OpLimit])
    regathered: set[SSAValue] = field(default_factory=set[SSAValue])
    sources: dict[int, str] = field(default_factory=dict[int, str])

    def of_input(self, value: SSAValue) -> Limit:
        """The limit on an argument's home, or on how a value comes from another stage."""
        if isinstance(value, BlockArgument):
            return self.arguments.get(value.index, _FREE)
        return self.arrivals.get(value, _FREE)

    def of_copy(self, value: SSAValue) -> Limit | None:
        """The limit on the form in which a value is used, if there is one."""
        return self.copies.get(value)

    def of_op(self, op: ComputeOp) -> OpLimit | None:
        """The limit on an op's signature, if there is one."""
        return self.ops.get(id(op))

    def allows(self, given: Signature | Sharding, limit: object) -> bool:
        """Whether a signature or sharding obeys its limit."""
        if isinstance(given, Sharding):
            return limit is None or _obeys(given, cast(Limit, limit))
        if not isinstance(limit, OpLimit):
            return True
        if not limit.takes_partial and any(sharding.partial for sharding in given.operands):
            return False
        for axis, wanted in limit.axes:
            if tuple(placement(s, axis) for s in (*given.operands, *given.results)) != wanted:
                return False
        for axis, refused in limit.never:
            found = (placement(s, axis) for s in (*given.operands, *given.results))
            if any(isinstance(each, tuple) and each == split for each, split in zip(found, refused, strict=True)):
                return False
        if limit.signature is not None and not is_same(given, limit.signature):
            return False
        return all(_obeys(given.operands[i], each) for i, each in limit.operands)

    def refuse_op(self, op: ComputeOp) -> NoReturn:
        """Raise the error for an op that no signature is left for."""
        fail(op, f"the pins leave no signature for it; its rule is {op.rule()}")

    def refuse_input(self, argument: SSAValue) -> NoReturn:
        """Raise the error for an argument, or a value from another stage, that no sharding is left for."""
        limit, owner = self.of_input(argument), argument.owner
        func = owner.parent_op() if isinstance(owner, Block) else owner
        assert func is not None
        why = f": {limit.sharding} is not a sharding of it in the mesh's order of axes"
        fail(
            func,
            f"the pins leave no sharding for {value_label(argument)} of shape {list(shape_of(argument))}"
            + (why if limit.sharding else ""),
        )


def _obeys(sharding: Sharding, limit: Limit) -> bool:
    if limit.sharding is not None and not _is_as_pinned(sharding, limit.sharding):
        return False
    return all(placement(sharding, axis) in allowed for axis, allowed in limit.axes)


def is_same(given: Signature | Sharding, wanted: Signature | Sharding) -> bool:
    """Whether one is the other; where the wanted one gives no boundaries, those of the ratios will do."""
    if isinstance(given, Sharding) or isinstance(wanted, Sharding):
        return isinstance(given, Sharding) and isinstance(wanted, Sharding) and _is_as_pinned(given, wanted)
    pairs = zip((*given.operands, *given.results), (*wanted.operands, *wanted.results), strict=True)
    return all(_is_as_pinned(one, other) for one, other in pairs)


def _is_as_pinned(sharding: Sharding, pinned: Sharding) -> bool:
    """Whether a sharding is the pinned one; where a pin gives no boundaries, those of the ratios will do."""
    pairs = zip(sharding.dims, pinned.dims, strict=True)
    dims = tuple(dim if wanted.offsets else DimSharding(dim.axes) for dim, wanted in pairs)
    return replace(sharding, dims=dims) == pinned


def apply_pins(pins: Sequence[Pin], view: StepView) -> Constraints:
    """
    The constraints that `pins` put on a step; PinError names a pin that matches nothing or does not fit.

    A pin of a value says more than a preset and wins over it, wherever it stands.
    """
    constraints = Constraints()
    for pin in sorted(pins, key=lambda pin: not pin.preset):
        if pin.preset:
            _apply_preset(pin, view, constraints)
        else:
            _apply_value(pin, view, constraints)
    return constraints


def _apply_value(pin: Pin, view: StepView, constraints: Constraints) -> None:
    assert pin.sharding is not None
    limit, matched = Limit(sharding=pin.sharding), False
    for given in view.inputs:
        if given.role and fnmatch.fnmatchcase(given.name, pin.value):
            _check(pin, given.name, shape_of(given.argument), view.mesh)
            constraints.arguments[given.argument.index] = limit
            matched = True
    for name, update, at in view.grads():
        if fnmatch.fnmatchcase(f"{name}.grad", pin.value):
            _check(pin, f"{name}.grad", shape_of(update.args[at]), view.mesh)
            constraints.ops[id(update)] = OpLimit(operands=((at, limit),))
            matched = True
    if not matched and not _matches_elsewhere(pin, view.whole):
        names = ", ".join(given.name for given in view.inputs[:4])
        raise PinError(f"pin '{pin.value}' matches no parameter, state, gradient or batch input; the first are {names}")


def _matches_elsewhere(pin: Pin, whole: StepView) -> bool:
    """Whether the pin is one of values of another stage."""
    names = (*(given.name for given in whole.inputs if given.role), *(f"{name}.grad" for name, _, _ in whole.grads()))
    return any(fnmatch.fnmatchcase(name, pin.value) for name in names)


def _check(pin: Pin, name: str, shape: tuple[int, ...], mesh: Mesh) -> None:
    try:
        assert pin.sharding is not None
        pin.sharding.verify(mesh, shape)
    except ValueError as error:
        raise PinError(f"pin '{pin.value}' on {name}: {error}") from error


def _apply_preset(pin: Pin, view: StepView, constraints: Constraints) -> None:
    axes = pin.axes if pin.axes is not None else tuple(axis.name for axis in view.mesh.spatial)
    for axis in axes:
        try:
            view.mesh.axis(axis)
        except ValueError as error:
            raise PinError(f"pin preset '{pin.preset}': {error}") from error
    if pin.preset == "tp":
        _tensor_parallel(axes, view, constraints)
    else:
        _data_parallel(axes, view, constraints, _SPLIT_ROLES[pin.preset])


def _data_parallel(axes: tuple[str, ...], view: StepView, constraints: Constraints, split: frozenset[str]) -> None:
    """
    Ops follow the batch; parameters and states are whole, or, of the roles in `split`, split at home.

    Where all ops use a split parameter in a narrower dtype, in mixed precision, it is gathered in that. Gradients are
    reduced after they are cast to a wider one, unless the step says otherwise.
    """
    batch, parts = ("S", 0), view.mesh.parts(axes)
    narrowed: dict[ComputeOp, Placement] = {}
    for given in view.inputs:
        shape = shape_of(given.argument)
        dim = None
        if given.role == train.BATCH:
            dim = 0 if shape and shape[0] >= parts else None
        elif given.role in split:
            dim = split_dim(shape, parts)
        where: Placement = ("S", dim) if dim is not None else "R"
        _limit_axes(constraints.arguments, given.argument.index, axes, where)
        if given.role == train.PARAM:
            casts = _narrowing_casts(given.argument, view) if dim is not None else []
            narrowed |= dict.fromkeys(casts, where)
            for used in [cast.outs[0] for cast in casts] or [given.argument]:
                _limit_axes(constraints.copies, used, axes, "R")
                if dim is not None:
                    constraints.regathered.add(used)

    def updated(value: SSAValue) -> Placement:
        dim = split_dim(shape_of(value), parts) if split else None
        return ("S", dim) if dim is not None else "R"

    reduced = {cast: (updated(cast.outs[0]),) * 2 for cast in reductions_of(view.func).reduced}
    complete = {value: updated(value) for value in gradient_values(view.func)}
    found: Propagation = propagate_batch(view, axes, batch, reduced, complete)
    for transfer in view.arrivals:
        _limit_axes(constraints.arrivals, transfer.result, axes, found.arrivals[transfer.result])
    updates = propagate_updates(view, axes, updated)
    for op in view.ops:
        if isinstance(op, train.TrainOp):
            shape, where = shape_of(op.args[0]), updated(op.args[0])
            placements = tuple(where if shape_of(v) == shape else "R" for v in (*op.args, *op.outs))
        elif train.is_update(op):
            placements = updates[op]
        elif op in narrowed:
            placements = (narrowed[op], narrowed[op])
        else:
            placements = found.ops[op]
        _limit_op(constraints, op, OpLimit(axes=tuple((axis, placements) for axis in axes)))


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


def _tensor_parallel(axes: tuple[str, ...], view: StepView, constraints: Constraints) -> None:
    """The batch stays whole, in every op; matrices that matrix products use are split, at home and in use."""
    for op, splits in _batch_splits(view, axes).items():
        _limit_op(constraints, op, OpLimit(never=tuple((axis, splits) for axis in axes)))
    for given in view.inputs:
        if given.role == train.BATCH:
            _limit_axes(constraints.arguments, given.argument.index, axes, "R")
        elif given.role == train.PARAM and (places := _matrix_splits(given.argument, axes, view)):
            _limit_axes(constraints.arguments, given.argument.index, axes, places)
            _limit_use(constraints, given.argument, axes, view.mesh)
    kept = {given.argument for given in view.whole.inputs if given.role == train.PARAM}
    for transfer in view.arrivals:
        if transfer.operand in kept and (places := _matrix_splits(transfer.result, axes, view)):
            _limit_axes(constraints.arrivals, transfer.result, axes, places)
            _limit_use(constraints, transfer.result, axes, view.mesh)


def _matrix_splits(value: SSAValue, axes: tuple[str, ...], view: StepView) -> frozenset[Placement]:
    """How a parameter may be split, if it is a matrix that a matrix product uses."""
    if len(shape_of(value)) < 2 or next(_contractions(value), None) is None:
        return frozenset()
    return _splits(value, view.mesh.parts(axes))


def _splits(value: SSAValue, parts: int) -> frozenset[Placement]:
    """Along which dims a value has an element for each part; whole, where it has none."""
    dims = (i for i, size in enumerate(shape_of(value)) if size >= parts)
    return frozenset[Placement](("S", i) for i in dims) or frozenset({"R"})


def _limit_use(constraints: Constraints, value: SSAValue, axes: tuple[str, ...], mesh: Mesh) -> None:
    """Let contractions use a value split, as it is or as views of it are."""
    parts = mesh.parts(axes)
    _limit_axes(constraints.copies, value, axes, _splits(value, parts))
    for op, index in _contractions(value):
        limit = Limit(axes=tuple((axis, _splits(op.args[index], parts)) for axis in axes))
        _limit_op(constraints, op, OpLimit(operands=((index, limit),)))


def _batch_splits(view: StepView, axes: tuple[str, ...]) -> dict[ComputeOp, tuple[Placement, ...]]:
    """By op, where its values have the batch for a dim, by itself: merged with heads, say, it may still be split."""
    batches = [shape_of(given.argument) for given in view.whole.inputs if given.role == train.BATCH]
    sizes = {shape[0] for shape in batches if shape}
    found: dict[ComputeOp, tuple[Placement, ...]] = {}
    for op, placements in propagate_batch(view, axes, ("S", 0)).ops.items():
        pairs = zip((*op.args, *op.outs), placements, strict=True)
        found[op] = tuple(p if isinstance(p, tuple) and shape_of(v)[p[1] or 0] in sizes else "R" for v, p in pairs)
    return found


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


def _limit_op(constraints: Constraints, op: ComputeOp, limit: OpLimit) -> None:
    """Put a limit on an op besides those that it has."""
    before = constraints.ops.get(id(op), OpLimit())
    constraints.ops[id(op)] = OpLimit(
        (*before.axes, *limit.axes), (*before.operands, *limit.operands), (*before.never, *limit.never)
    )


def _limit_axes(
    limits: dict[_Key, Limit], key: _Key, axes: tuple[str, ...], where: Placement | frozenset[Placement]
) -> None:
    allowed = where if isinstance(where, frozenset) else frozenset({where})
    before = limits.get(key, _FREE)
    limits[key] = Limit(before.sharding, (*before.axes, *((axis, allowed) for axis in axes)))
