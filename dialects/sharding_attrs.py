"""Attributes that carry the pure data types of `ir`: meshes, shardings, ratios, signatures and rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from ..ir.mesh import Axis, AxisKind, Mesh, axis_name_fault
from ..ir.ratios import Ratios
from ..ir.rules import Notation, parse_rule
from ..ir.sharding import Sharding, read_dims, read_shardings
from ..ir.signatures import Signature
from .cluster_attrs import float_text, quoted


@irdl_attr_definition
class MeshAttr(Data[Mesh]):
    """The axes of a mesh: `<["node"=2, "gpu"=4, "micro"=2 temporal]>`."""

    name = "spmd.axes"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Mesh:
        def axis() -> Axis:
            at = parser.pos
            name = parse_axis_name(parser)
            parser.parse_punctuation("=")
            size = parse_index(parser)
            temporal = parser.parse_optional_keyword("temporal") is not None
            try:
                return Axis(name, size, AxisKind.TEMPORAL if temporal else AxisKind.SPATIAL)
            except ValueError as error:
                parser.raise_error(str(error), at)

        with parser.in_angle_brackets():
            at = parser.pos
            axes = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, axis)
        try:
            return Mesh(tuple(axes))
        except ValueError as error:
            parser.raise_error(str(error), at)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(str(self.data))


@dataclass(frozen=True)
class MeshSharding:
    """A sharding together with the symbol name of the mesh that it refers to."""

    mesh: str
    sharding: Sharding


@dataclass(frozen=True)
class MeshSignature:
    """A signature together with the symbol name of the mesh that it refers to."""

    mesh: str
    signature: Signature


@dataclass(frozen=True)
class MeshRatios:
    """Ratios together with the symbol name of their mesh, and with the number of their segment of the model."""

    mesh: str
    ratios: Ratios
    segment: int = 0


@irdl_attr_definition
class ShardingAttr(Data[MeshSharding]):
    """The sharding of a value: `#spmd.sharding<@mesh, [{"dp"}, {}], unreduced={"tp"}, offsets={0: [0, 1, 4]}>`."""

    name = "spmd.sharding"

    @staticmethod
    def of(mesh: str, sharding: Sharding) -> ShardingAttr:
        """Return the attribute of `sharding` on the mesh called `mesh`."""
        return ShardingAttr(MeshSharding(mesh, sharding))

    @property
    def sharding(self) -> Sharding:
        """The sharding without its mesh."""
        return self.data.sharding

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> MeshSharding:
        with parser.in_angle_brackets():
            return MeshSharding(parse_mesh_name(parser), parse_sharding(parser))

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{_symbol(self.data.mesh)}, {self.data.sharding}")


@irdl_attr_definition
class SignatureAttr(Data[MeshSignature]):
    """The signature of an op: `#spmd.sig<@mesh, ([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])>`."""

    name = "spmd.sig"

    @staticmethod
    def of(mesh: str, signature: Signature) -> SignatureAttr:
        """Return the attribute of `signature` on the mesh called `mesh`."""
        return SignatureAttr(MeshSignature(mesh, signature))

    @property
    def signature(self) -> Signature:
        """The signature without its mesh."""
        return self.data.signature

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> MeshSignature:
        with parser.in_angle_brackets():
            return MeshSignature(parse_mesh_name(parser), parse_signature(parser))

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{_symbol(self.data.mesh)}, {self.data.signature}")


@irdl_attr_definition
class RatiosAttr(Data[MeshRatios]):
    """The uneven shares of axes: `#spmd.ratios<@mesh, {"gpu" = [0.4, 0.3, 0.2, 0.1]}, segment = 1>`."""

    name = "spmd.ratios"

    @staticmethod
    def of(mesh: str, ratios: Ratios, segment: int = 0) -> RatiosAttr:
        """Return the attribute of `ratios` on the mesh called `mesh`."""
        return RatiosAttr(MeshRatios(mesh, ratios, segment))

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> MeshRatios:
        def shares() -> tuple[str, list[float]]:
            axis = parse_axis_name(parser)
            parser.parse_punctuation("=")
            return axis, parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE, lambda: float(parser.parse_number())
            )

        with parser.in_angle_brackets():
            mesh = parse_mesh_name(parser)
            ratios = Ratios.of(dict(parser.parse_comma_separated_list(parser.Delimiter.BRACES, shares)))
            segment = 0
            if parser.parse_optional_punctuation(",") is not None:
                parser.parse_keyword("segment")
                parser.parse_punctuation("=")
                segment = parse_index(parser)
        return MeshRatios(mesh, ratios, segment)

    def print_parameter(self, printer: Printer) -> None:
        data = self.data
        axes = ", ".join(f'"{axis}" = [{", ".join(map(float_text, shares))}]' for axis, shares in data.ratios.shares)
        segment = f", segment = {data.segment}" if data.segment else ""
        with printer.in_angle_brackets():
            printer.print_string(f"{_symbol(data.mesh)}, {{{axes}}}{segment}")


@irdl_attr_definition
class AxesAttr(Data[tuple[tuple[str, ...], ...]]):
    """By dim, the axes that a collective works on: `[{}, {"gpu"}]`."""

    name = "spmd.dim_axes"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[str, ...], ...]:
        return tuple(read_dims(_AttributeTokens(parser)))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(str(Sharding.of(self.data)))


@irdl_attr_definition
class RuleAttr(Data[str]):
    """A sharding rule in factor notation: `#spmd.rule<"([b, k], [k, n]) -> ([b, n]) reduction={k}">`."""

    name = "spmd.rule"

    @property
    def notation(self) -> Notation:
        """The parsed rule."""
        return parse_rule(self.data)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        with parser.in_angle_brackets():
            at = parser.pos
            text = parser.parse_str_literal()
        try:
            parse_rule(text)
        except ValueError as error:
            parser.raise_error(str(error), at)
        return text

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(self.data)


def _symbol(name: str) -> str:
    return f"@{name if _BARE.fullmatch(name) else quoted(name)}"


_BARE = re.compile(r"[A-Za-z_][\w$.]*", re.ASCII)


def parse_mesh_name(parser: AttrParser) -> str:
    """Read `@mesh,` at the head of an attribute."""
    name = parser.parse_symbol_name().data
    parser.parse_punctuation(",")
    return name


def parse_index(parser: AttrParser) -> int:
    """Read a whole number from 0."""
    return parser.parse_integer(allow_boolean=False, allow_negative=False)


def parse_indices(parser: AttrParser) -> tuple[int, ...]:
    """Read `[0, 2]`."""
    return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_index(parser)))


def parse_axis_name(parser: AttrParser) -> str:
    """Read the name of an axis, which generated programs use as an identifier."""
    at, name = parser.pos, parser.parse_str_literal()
    if (fault := axis_name_fault(name)) is not None:
        parser.raise_error(fault, at)
    return name


_Item = TypeVar("_Item")


@dataclass(frozen=True)
class _AttributeTokens:
    """The tokens of an attribute, for the grammar of shardings (`ir.sharding`)."""

    parser: AttrParser

    def accept(self, mark: str) -> bool:
        return self.parser.parse_optional_characters(mark) is not None

    def keyword(self, words: Iterable[str]) -> str | None:
        return next((word for word in words if self.parser.parse_optional_keyword(word) is not None), None)

    def expect(self, mark: str) -> None:
        self.parser.parse_characters(mark)

    def listed(self, brackets: str, item: Callable[[], _Item]) -> list[_Item]:
        return self.parser.parse_comma_separated_list(_DELIMITERS[brackets], item)

    def axis(self) -> str:
        return parse_axis_name(self.parser)

    def number(self) -> int:
        return parse_index(self.parser)

    def fail(self, message: str) -> NoReturn:
        self.parser.raise_error(message)


_DELIMITERS = {"[]": AttrParser.Delimiter.SQUARE, "{}": AttrParser.Delimiter.BRACES}


def parse_sharding(parser: AttrParser) -> Sharding:
    """Read `[{"dp"}, {}], unreduced={"tp"}, offsets={0: [0, 1, 4]}`."""
    at = parser.pos
    shardings = read_shardings(_AttributeTokens(parser))
    if len(shardings) != 1:
        parser.raise_error(f"found {len(shardings)} shardings, expected one", at)
    return shardings[0]


def parse_shardings(parser: AttrParser) -> tuple[Sharding, ...]:
    """Read `([{"dp"}, {}], [{}])`."""
    parser.parse_punctuation("(")
    if parser.parse_optional_punctuation(")") is not None:
        return ()
    shardings = read_shardings(_AttributeTokens(parser))
    parser.parse_punctuation(")")
    return tuple(shardings)


def parse_signature(parser: AttrParser) -> Signature:
    """Read `([{"gpu"}, {}], [{}, {}]) -> ([{"gpu"}, {}])`."""
    operands = parse_shardings(parser)
    parser.parse_punctuation("->")
    return Signature(operands, parse_shardings(parser))
