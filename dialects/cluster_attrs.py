"""Attributes that carry the devices and links of a cluster."""

from __future__ import annotations

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from ..ir.cluster import Device, Link


@irdl_attr_definition
class DeviceAttr(Data[Device]):
    """
    A kind of device: `#spmd.device<"cpu", flops = {float32 = 2.0e10}, bandwidth = 1.0e10, memory = ...,
    launch = ...>` in FLOP/s, bytes/s, bytes and seconds.
    """

    name = "spmd.device"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Device:
        with parser.in_angle_brackets():
            kind = parser.parse_str_literal()
            parser.parse_punctuation(",")
            parser.parse_keyword("flops")
            parser.parse_punctuation("=")
            rates = parser.parse_comma_separated_list(parser.Delimiter.BRACES, lambda: _entry(parser))
            bandwidth, memory, launch = (_field(parser, name) for name in ("bandwidth", "memory", "launch"))
        if not rates:
            parser.raise_error("a device needs the FLOP/s of at least one dtype")
        return Device(kind, tuple(rates), bandwidth, memory, launch)

    def print_parameter(self, printer: Printer) -> None:
        device = self.data
        rates = ", ".join(f"{dtype} = {float_text(rate)}" for dtype, rate in device.flops)
        printer.print_string(
            f'<"{device.kind}", flops = {{{rates}}}, bandwidth = {float_text(device.memory_bandwidth)},'
            f" memory = {float_text(device.memory)}, launch = {float_text(device.launch)}>"
        )


@irdl_attr_definition
class LinkAttr(Data[Link]):
    """
    The network along an axis: `#spmd.link<"gpu", alpha = 1e-5, beta = 1e-10, all_reduce = (2e-5, 1e-10)>`, in
    seconds and seconds per byte."""

    name = "spmd.link"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Link:
        measured: list[tuple[str, float, float]] = []
        with parser.in_angle_brackets():
            axis = parser.parse_str_literal()
            alpha, beta = _field(parser, "alpha"), _field(parser, "beta")
            while parser.parse_optional_punctuation(",") is not None:
                kind = parser.parse_identifier()
                parser.parse_punctuation("=")
                pair = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _number(parser))
                if len(pair) != 2:
                    parser.raise_error("expected (alpha, beta)")
                measured.append((kind, pair[0], pair[1]))
        return Link(axis, alpha, beta, tuple(measured))

    def print_parameter(self, printer: Printer) -> None:
        link = self.data
        extra = "".join(f", {kind} = ({float_text(a)}, {float_text(b)})" for kind, a, b in link.measured)
        alpha, beta = float_text(link.alpha), float_text(link.beta)
        printer.print_string(f'<"{link.axis}", alpha = {alpha}, beta = {beta}{extra}>')


def _entry(parser: AttrParser) -> tuple[str, float]:
    name = parser.parse_identifier()
    parser.parse_punctuation("=")
    return name, _number(parser)


def _field(parser: AttrParser, name: str) -> float:
    parser.parse_punctuation(",")
    parser.parse_keyword(name)
    parser.parse_punctuation("=")
    return _number(parser)


def _number(parser: AttrParser) -> float:
    at = parser.pos
    number = float(parser.parse_number())
    if number < 0:
        parser.raise_error(f"found {number}, expected a number that is not negative", at)
    return number


def float_text(number: float) -> str:
    """
    The shortest text that reads back as `number` and that MLIR's grammar takes for a float (1e-06 has no
    dot).
    """
    text = repr(float(number))
    return text if "." in text else text.replace("e", ".0e")
