"""
Pins in the IR: decisions of the user, as attributes of the arguments, ops and transfers that they constrain.

`add-pins` writes them, every search obeys them, and they stay when a strategy is decided, so that a later search
(`fixed-point`, `fit-memory`, replanning) obeys them too. The function lists the entries of pin files that the pins come
from; a pin without `by` was written by hand, and overrides those entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Data, Operation
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..ir.pins import (
    ANY,
    PRESETS,
    Copy,
    OpPin,
    OpPlacements,
    Pin,
    Placement,
    ShardingLimit,
    SignatureLimit,
    ValuePin,
)
from ..ir.sharding import Sharding
from ..ir.signatures import Signature
from .cluster_attrs import quoted
from .kinds import entries_of
from .mesh_ops import meshes_of
from .sharding_attrs import parse_axis_name, parse_index, parse_indices, parse_sharding, parse_signature

PIN = "spmd.pin"
"""On an argument or a transfer: a `#spmd.pin`. On an op: a `#spmd.op_pin`."""

PINS = "spmd.pins"
"""On a function: the entries of pin files, a list of `#spmd.pin_entry`."""


@irdl_attr_definition
class PinEntryAttr(Data[Pin]):
    """
    An entry of a pin file, with its position there: `#spmd.pin_entry<"h.*.weight" ([{"gpu"}, {}]) at "pins.toml:1">`,
    `#spmd.pin_entry<preset "dp" over ["gpu"] at "pins.toml:5">`.
    """

    name = "spmd.pin_entry"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Pin:
        with parser.in_angle_brackets():
            if parser.parse_optional_keyword("preset") is None:
                value, sharding = parser.parse_str_literal(), _parse_sharding(parser)
                return Pin(value, sharding, place=_parse_place(parser))
            at, preset = parser.pos, parser.parse_str_literal()
            if preset not in PRESETS:
                parser.raise_error(f"preset {preset!r} is not one of {', '.join(PRESETS)}", at)
            axes = None
            if parser.parse_optional_keyword("over") is not None:
                axes = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_axis_name(parser))
            return Pin(preset=preset, axes=tuple(axes) if axes is not None else None, place=_parse_place(parser))

    def print_parameter(self, printer: Printer) -> None:
        pin = self.data
        text = f"preset {quoted(pin.preset)}" if pin.preset else f"{quoted(pin.value)} ({pin.sharding})"
        text += f" over [{', '.join(map(quoted, pin.axes))}]" if pin.axes is not None else ""
        with printer.in_angle_brackets():
            printer.print_string(text + (f" at {quoted(pin.place)}" if pin.place else ""))


@irdl_attr_definition
class ValuePinAttr(Data[ValuePin]):
    """
    The pin of a value: its sharding, or the placements that it may have on some axes; and the same for its working
    copy: `#spmd.pin<([{"gpu"}, {}])>`, `#spmd.pin<{"gpu" = S(0) | R}, working {"gpu" = R} regather, by [0]>`.
    """

    name = "spmd.pin"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> ValuePin:
        limits: list[ShardingLimit] = []
        copies: list[Copy] = []
        by: list[int] = []

        def item() -> None:
            if parser.parse_optional_keyword("by") is not None:
                by.extend(parse_indices(parser))
            elif parser.parse_optional_keyword("working") is not None:
                copies.append(_parse_copy(parser))
            else:
                limits.append(_parse_limit(parser))

        at = parser.pos
        parser.parse_comma_separated_list(parser.Delimiter.ANGLE, item)
        if len(limits) > 1 or len(copies) > 1 or not (limits or copies):
            parser.raise_error("expected one sharding, one working copy, or both", at)
        limit = replace(limits[0], by=tuple(by)) if limits else None
        return ValuePin(limit, _by(copies[0], by) if copies else None)

    def print_parameter(self, printer: Printer) -> None:
        pin = self.data
        parts = [_limit_text(pin.limit)] if pin.limit is not None else []
        parts += [_copy_text(pin.copy)] if pin.copy is not None else []
        with printer.in_angle_brackets():
            printer.print_string(", ".join([*parts, *_by_text(pin.by)]))


@irdl_attr_definition
class OpPinAttr(Data[OpPin]):
    """
    The pin of an op: on some axes, the placements of its operands and results, or forbidden splits; limits of single
    operands; its whole signature; and the working copies of its results:
    `#spmd.op_pin<"gpu" = (S(0), R) -> (S(0)), not "node" = (S(0), any) -> (any), operand 1 {"gpu" = S(0) | S(1)}>`,
    `#spmd.op_pin<signature ([{"gpu"}]) -> ([{"gpu"}]), result 0 working {"gpu" = R} regather, by [0, 2]>`.
    """

    name = "spmd.op_pin"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> OpPin:
        axes: list[OpPlacements] = []
        never: list[OpPlacements] = []
        operands: list[tuple[int, ShardingLimit]] = []
        signatures: list[Signature] = []
        copies: list[tuple[int, Copy]] = []
        by: list[int] = []

        def item() -> None:
            match parser.parse_optional_keyword_in(("by", "not", "operand", "result", "signature")):
                case "by":
                    by.extend(parse_indices(parser))
                case "not":
                    never.append(_parse_placements(parser))
                case "operand":
                    operands.append((parse_index(parser), _parse_limit(parser)))
                case "result":
                    index = parse_index(parser)
                    parser.parse_keyword("working")
                    copies.append((index, _parse_copy(parser)))
                case "signature":
                    signatures.append(parse_signature(parser))
                case _:
                    axes.append(_parse_placements(parser))

        at = parser.pos
        parser.parse_comma_separated_list(parser.Delimiter.ANGLE, item)
        if len(signatures) > 1:
            parser.raise_error(f"expected at most one signature, found {len(signatures)}", at)
        limits = tuple((index, replace(limit, by=tuple(by))) for index, limit in operands)
        limit = SignatureLimit(tuple(axes), tuple(never), limits, next(iter(signatures), None))
        pinned = replace(limit, by=tuple(by)) if limit != SignatureLimit() else None
        return OpPin(pinned, tuple((index, _by(copy, by)) for index, copy in copies))

    def print_parameter(self, printer: Printer) -> None:
        limit, parts = self.data.limit or SignatureLimit(), list[str]()
        parts += map(_placements_text, limit.axes)
        parts += [f"not {_placements_text(placements)}" for placements in limit.never]
        parts += [f"operand {at} {_limit_text(limited)}" for at, limited in limit.operands]
        parts += [f"signature {limit.signature}"] if limit.signature is not None else []
        parts += [f"result {at} {_copy_text(copy)}" for at, copy in self.data.copies]
        with printer.in_angle_brackets():
            printer.print_string(", ".join([*parts, *_by_text(self.data.by)]))


def verify_pins(func: FuncOp) -> None:
    """Raise VerifyException unless the pins of a function's arguments and ops fit their types and the meshes."""
    count = len(entries_of(func.attributes.get(PINS)) or ())
    axes = {axis.name: None for mesh in meshes_of(func) for axis in mesh.mesh.axes}
    check = _Check(tuple(axes), count)
    listed = func.arg_attrs.data if func.arg_attrs is not None else ()
    for index, (entry, value_type) in enumerate(zip(listed, func.function_type.inputs.data, strict=False)):
        if isinstance(pin := entry.data.get(PIN), ValuePinAttr):
            check.value(pin.data, value_type, f"{PIN} of argument {index}")
    for op in func.walk():
        match op.attributes.get(PIN):
            case OpPinAttr(data=pin):
                check.op(pin, op)
            case ValuePinAttr(data=pin) if len(op.results) == 1:
                check.value(pin, op.results[0].type, f"{PIN} of '{op.name}'")
            case _:
                pass


@dataclass(frozen=True)
class _Check:
    """
    A check that pins fit; its methods raise VerifyException at a pin that does not.

    Args:
        axes: names of the axes of all meshes.
        count: number of pin-file entries that the function lists.
    """

    axes: tuple[str, ...]
    count: int

    def value(self, pin: ValuePin, given: Attribute, where: str) -> None:
        """Check the pin of a value of type `given`."""
        self._entries(pin.by, where)
        limits = (pin.limit, pin.copy.limit if pin.copy is not None else None)
        for limit in filter(None, limits):
            self._limit(limit, given, where)

    def op(self, pin: OpPin, op: Operation) -> None:
        """Check the pin of an op."""
        where, limit = f"{PIN} of '{op.name}'", pin.limit or SignatureLimit()
        self._entries(pin.by, where)
        sides = (("operand", tuple(op.operands)), ("result", tuple(op.results)))
        for each in (*limit.axes, *limit.never):
            self._axis(each.axis, where)
            for (side, values), places in zip(sides, (each.operands, each.results), strict=True):
                self._count(len(places), len(values), side, where)
                for value, place in zip(values, places, strict=True):
                    self._placement(place, value.type, where)
        if (given := limit.signature) is not None:
            for (side, values), shardings in zip(sides, (given.operands, given.results), strict=True):
                self._count(len(shardings), len(values), side, where)
                for value, sharding in zip(values, shardings, strict=True):
                    self._limit(ShardingLimit(sharding), value.type, where)
        placed = ((0, limit.operands), (1, tuple((at, copy.limit) for at, copy in pin.copies)))
        for at, limits in placed:
            side, values = sides[at]
            for index, each in limits:
                if index >= len(values):
                    raise VerifyException(f"{where} pins {side} {index}, the op has {len(values)}")
                self._limit(each, values[index].type, where)

    def _limit(self, limit: ShardingLimit, given: Attribute, where: str) -> None:
        if (sharding := limit.sharding) is not None:
            for axis in (*(axis for dim in sharding.dims for axis in dim.axes), *sharding.partial_axes):
                self._axis(axis, where)
            if (rank := _rank(given)) != len(sharding.dims):
                raise VerifyException(f"{where} has {len(sharding.dims)} dims, expected {rank} as its value has")
        for axis, allowed in limit.axes:
            self._axis(axis, where)
            for place in allowed:
                self._placement(place, given, where)

    def _axis(self, axis: str, where: str) -> None:
        if axis not in self.axes:
            known = ", ".join(map(quoted, self.axes)) or "none"
            raise VerifyException(f"{where} refers to the axis {quoted(axis)}, expected one of the meshes': {known}")

    def _placement(self, place: Placement, given: Attribute, where: str) -> None:
        if isinstance(place, tuple) and place[1] >= _rank(given):
            raise VerifyException(f"{where} splits dim {place[1]} of a value that has {_rank(given)} dims")

    def _count(self, found: int, wanted: int, side: str, where: str) -> None:
        if found != wanted:
            raise VerifyException(f"{where} lists {found} {side}s, the op has {wanted}")

    def _entries(self, by: tuple[int, ...], where: str) -> None:
        if (stray := next((entry for entry in by if entry >= self.count), None)) is not None:
            raise VerifyException(f"{where} refers to entry {stray} of {PINS}, which has {self.count}")


def _rank(given: Attribute) -> int:
    return given.get_num_dims() if isinstance(given, TensorType) else 0


def _by(copy: Copy, by: Sequence[int]) -> Copy:
    return replace(copy, limit=replace(copy.limit, by=tuple(by)))


def _by_text(by: tuple[int, ...]) -> list[str]:
    return [f"by [{', '.join(map(str, by))}]"] if by else []


def _parse_sharding(parser: AttrParser) -> Sharding:
    with parser.in_parens():
        return parse_sharding(parser)


def _parse_place(parser: AttrParser) -> str:
    return parser.parse_str_literal() if parser.parse_optional_keyword("at") is not None else ""


def _parse_placement(parser: AttrParser) -> Placement:
    """Read `S(0)`, `R`, `P` or `any`."""
    kind = parser.parse_keyword_in(("S", "R", "P", ANY))
    if kind != "S":
        return kind
    with parser.in_parens():
        return ("S", parse_index(parser))


def _parse_placements(parser: AttrParser) -> OpPlacements:
    """Read `"gpu" = (S(0), R) -> (S(0))`."""
    axis = parse_axis_name(parser)
    parser.parse_punctuation("=")
    operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_placement(parser))
    parser.parse_punctuation("->")
    results = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_placement(parser))
    return OpPlacements(axis, tuple(operands), tuple(results))


def _parse_limit(parser: AttrParser) -> ShardingLimit:
    """Read `([{"gpu"}, {}])` or `{"gpu" = S(0) | S(1), "node" = R}`."""

    def axis() -> tuple[str, frozenset[Placement]]:
        name = parse_axis_name(parser)
        parser.parse_punctuation("=")
        allowed = [_parse_placement(parser)]
        while parser.parse_optional_punctuation("|") is not None:
            allowed.append(_parse_placement(parser))
        return name, frozenset(allowed)

    axes = parser.parse_optional_comma_separated_list(parser.Delimiter.BRACES, axis)
    return ShardingLimit(axes=tuple(axes)) if axes is not None else ShardingLimit(_parse_sharding(parser))


def _parse_copy(parser: AttrParser) -> Copy:
    return Copy(_parse_limit(parser), parser.parse_optional_keyword("regather") is not None)


def _placement_text(place: Placement) -> str:
    return f"S({place[1]})" if isinstance(place, tuple) else place


def _placements_text(given: OpPlacements) -> str:
    operands, results = (", ".join(map(_placement_text, side)) for side in (given.operands, given.results))
    return f"{quoted(given.axis)} = ({operands}) -> ({results})"


def _limit_text(limit: ShardingLimit) -> str:
    if limit.sharding is not None:
        return f"({limit.sharding})"
    axes = (f"{quoted(axis)} = {' | '.join(sorted(map(_placement_text, allowed)))}" for axis, allowed in limit.axes)
    return f"{{{', '.join(axes)}}}"


def _copy_text(copy: Copy) -> str:
    return f"working {_limit_text(copy.limit)}" + (" regather" if copy.regathered else "")
