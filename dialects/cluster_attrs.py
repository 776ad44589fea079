"""Attributes that carry the devices, links, hosts and wires of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from ..ir.cluster import Device, Interference, Link
from ..ir.cluster_fields import (
    BANDWIDTH,
    BETA,
    BLOCK,
    BYTES,
    DEVICES,
    FLOPS,
    NICS,
    PART,
    PLAIN,
    SECONDS,
    Count,
    Unit,
    shown,
)
from ..ir.op_rate import OpRate
from ..ir.topology import Host, Level, Switch, Topology

Item = TypeVar("Item")


@irdl_attr_definition
class DeviceAttr(Data[Device]):
    """
    A kind of device: `#spmd.device<"cpu", flops = {float32 = 2.0e10}, bandwidth = 1.0e10, memory = ...,
    launch = ...>` in FLOP/s, bytes/s, bytes and seconds.

    Optional fields may follow: the allocation granularity in bytes, `block = 512.0`; the profiled fixed seconds of a
    step, `overhead = 1.0e-3`; fitted rates,
    `rates = [<"contractions", "float32", flops = 1.0e10, bandwidth = 1.0e10, launch = 0.0, curve = [(1.0e6, 0.5)]>]`,
    where `moving_curve = ...` in bytes is optional too;
    and measured seconds, `table = {"mm(float32[64x32], float32[32x16])" = 1.0e-5}`.
    """

    name = "spmd.device"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Device:
        with parser.in_angle_brackets():
            kind = parser.parse_str_literal()
            _comma_and(parser, "flops")
            rates = _entries(parser, partial(_number, unit=FLOPS))
            bandwidth = _field(parser, "bandwidth", BANDWIDTH)
            memory, launch = _field(parser, "memory", BYTES), _field(parser, "launch", SECONDS, positive=False)
            others = _others(
                parser,
                overhead=lambda: _number(parser, SECONDS, positive=False),
                block=lambda: _number(parser, BLOCK),
                rates=lambda: _squared(parser, _rate),
                table=lambda: _entries(parser, partial(_number, unit=SECONDS, positive=False), quotes=True),
            )
        if not rates:
            parser.raise_error("a device needs the FLOP/s of at least one dtype")
        return Device(kind, rates, bandwidth, memory, launch, **others)

    def print_parameter(self, printer: Printer) -> None:
        device = self.data
        text = _fields_text(
            flops=_entries_text(device.flops),
            bandwidth=float_text(device.memory_bandwidth),
            memory=float_text(device.memory),
            launch=float_text(device.launch),
            overhead=float_text(device.overhead) if device.overhead else "",
            block=float_text(device.block) if device.block != 1.0 else "",
            rates=f"[{', '.join(map(_rate_text, device.rates))}]" if device.rates else "",
            table=_entries_text((quoted(key), seconds) for key, seconds in device.table) if device.table else "",
        )
        printer.print_string(f"<{quoted(device.kind)}, {text}>")


@irdl_attr_definition
class LinkAttr(Data[Link]):
    """
    The network along an axis, or along several axes (`"node-gpu"`): `#spmd.link<"gpu", alpha = 1e-5, beta = 1e-10,
    all_reduce = (2e-5, 1e-10)>`, in seconds and seconds per byte.

    Measured times follow, in bytes and seconds: `points = {"all_reduce" = [(1024.0, 2e-5), (1048576.0, 1e-4)]}`.
    """

    name = "spmd.link"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Link:
        measured: list[tuple[str, float, float]] = []
        points: list[tuple[str, float, float]] = []
        with parser.in_angle_brackets():
            at = parser.pos
            axis = parser.parse_str_literal()
            alpha = _field(parser, "alpha", SECONDS, positive=False)
            beta = _field(parser, "beta", BETA, positive=False)
            while parser.parse_optional_punctuation(",") is not None:
                kind = parser.parse_identifier()
                parser.parse_punctuation("=")
                if kind == "points":
                    pairs = partial(_squared, read=partial(_pair, one=BYTES, other=SECONDS))
                    points = [(name, *point) for name, curve in _entries(parser, pairs, quotes=True) for point in curve]
                else:
                    measured.append((kind, *_pair(parser, SECONDS, BETA, positive=False)))
        try:
            return Link(axis, alpha, beta, tuple(measured), tuple(points))
        except ValueError as error:
            parser.raise_error(str(error), at)

    def print_parameter(self, printer: Printer) -> None:
        link, points = self.data, ""
        if link.points:
            curves = groupby(link.points, key=lambda point: point[0])
            entries = (f"{quoted(name)} = {_pairs_text(point[1:] for point in curve)}" for name, curve in curves)
            points = f"{{{', '.join(entries)}}}"
        measured = (f"{kind} = {_pair_text((alpha, beta))}" for kind, alpha, beta in link.measured)
        line = _fields_text(alpha=float_text(link.alpha), beta=float_text(link.beta))
        texts = (quoted(link.axis), line, *measured, _fields_text(points=points))
        printer.print_string(f"<{', '.join(filter(None, texts))}>")


@irdl_attr_definition
class TopologyAttr(Data[Topology]):
    """
    The network levels of a cluster, and its hosts (`ir/topology.py`):

    `#spmd.topology<levels = [<"nvlink", latency = 2.0e-6, bandwidth = 3.0e11>, <"nic", latency = 2.0e-5,
    bandwidth = 1.25e10, start = 1.0e-5, efficiency = {all_gather = 0.7}>], hosts = [2 x <8, inside = "nvlink",
    nic = "nic", nics = 1>], switch = <1, 3.0>, devices = [8, 9]>`

    A level may be `shared`. `switch` gives the number of hosts on each switch, and the oversubscription of its uplink.
    `devices` lists the device of each rank; it is absent where the ranks are all devices in order.
    """

    name = "spmd.topology"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Topology:
        with parser.in_angle_brackets():
            at = parser.pos
            _keyword_and_equals(parser, "levels")
            levels = _squared(parser, _level)
            _comma_and(parser, "hosts")
            hosts = _squared(parser, _host)
            devices = partial(_count, most=DEVICES, least=0)
            others = _others(parser, switch=lambda: _switch(parser), devices=lambda: _squared(parser, devices))
        try:
            return Topology(levels, hosts, **others)
        except ValueError as error:
            parser.raise_error(str(error), at)

    def print_parameter(self, printer: Printer) -> None:
        topology = self.data
        text = f"<levels = [{', '.join(map(_level_text, topology.levels))}]"
        text += f", hosts = [{', '.join(map(_host_text, topology.hosts))}]"
        if topology.switch is not None:
            text += f", switch = <{topology.switch.hosts}, {float_text(topology.switch.oversubscription)}>"
        if topology.devices is not None:
            text += f", devices = {list(topology.devices)}"
        printer.print_string(text + ">")


@irdl_attr_definition
class InterferenceAttr(Data[Interference]):
    """
    The slowdown of computing and communicating at the same time, as factors: `#spmd.interference<compute = 1.1,
    communication = 1.2>`. Pairs of seconds may follow, `delays = [(1.0e-3, 5.0e-4)]`: the time computed before a wait,
    and the extra time between the wait completing and the rank resuming.
    """

    name = "spmd.interference"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Interference:
        delays: tuple[tuple[float, float], ...] = ()
        with parser.in_angle_brackets():
            at = parser.pos
            _keyword_and_equals(parser, "compute")
            factors = _number(parser, PART), _field(parser, "communication", PART)
            if parser.parse_optional_punctuation(",") is not None:
                _keyword_and_equals(parser, "delays")
                delays = _squared(parser, partial(_pair, one=SECONDS, other=SECONDS))
        try:
            return Interference(*factors, delays)
        except ValueError as error:
            parser.raise_error(str(error), at)

    def print_parameter(self, printer: Printer) -> None:
        compute, communication = float_text(self.data.compute), float_text(self.data.communication)
        delays = f", delays = {_pairs_text(self.data.delays)}" if self.data.delays else ""
        printer.print_string(f"<compute = {compute}, communication = {communication}{delays}>")


def _level(parser: AttrParser) -> Level:
    with parser.in_angle_brackets():
        name = parser.parse_str_literal()
        latency = _field(parser, "latency", SECONDS, positive=False)
        bandwidth = _field(parser, "bandwidth", BANDWIDTH)
        others = _others(
            parser,
            start=lambda: _number(parser, SECONDS, positive=False),
            shared=None,
            efficiency=lambda: _entries(parser, partial(_number, unit=PART)),
        )
    return Level(name, latency, bandwidth, **others)


def _level_text(level: Level) -> str:
    text = f"<{quoted(level.name)}, latency = {float_text(level.latency)}, bandwidth = {float_text(level.bandwidth)}"
    text += f", start = {float_text(level.start)}" if level.start else ""
    text += ", shared" if level.shared else ""
    return text + (f", efficiency = {_entries_text(level.efficiency)}>" if level.efficiency else ">")


def _host(parser: AttrParser) -> Host:
    count = _count(parser, DEVICES)
    parser.parse_keyword("x")
    with parser.in_angle_brackets():
        devices, name = _count(parser, DEVICES), parser.parse_str_literal
        return Host(devices, count=count, **_others(parser, inside=name, nic=name, nics=lambda: _count(parser, NICS)))


def _host_text(host: Host) -> str:
    inside, nic = (quoted(name) if name else "" for name in (host.inside, host.nic))
    return f"{host.count} x <{host.devices}, {_fields_text(inside=inside, nic=nic, nics=str(host.nics))}>"


def _switch(parser: AttrParser) -> Switch:
    with parser.in_angle_brackets():
        hosts = _count(parser, DEVICES)
        parser.parse_punctuation(",")
        return Switch(hosts, _number(parser, PART))


def _rate(parser: AttrParser) -> OpRate:
    with parser.in_angle_brackets():
        family = parser.parse_str_literal()
        parser.parse_punctuation(",")
        dtype = parser.parse_str_literal()
        flops, bandwidth = _field(parser, "flops", FLOPS), _field(parser, "bandwidth", BANDWIDTH)
        launch = _field(parser, "launch", SECONDS, positive=False)
        curve = partial(_squared, parser, partial(_pair, one=PLAIN, other=PART))
        return OpRate(family, dtype, flops, bandwidth, launch, **_others(parser, curve=curve, moving_curve=curve))


def _rate_text(rate: OpRate) -> str:
    text = _fields_text(
        flops=float_text(rate.flops),
        bandwidth=float_text(rate.bandwidth),
        launch=float_text(rate.launch),
        curve=_pairs_text(rate.curve) if rate.curve else "",
        moving_curve=_pairs_text(rate.moving_curve) if rate.moving_curve else "",
    )
    return f"<{quoted(rate.family)}, {quoted(rate.dtype)}, {text}>"


def _pair(parser: AttrParser, one: Unit, other: Unit, *, positive: bool = True) -> tuple[float, float]:
    parser.parse_punctuation("(")
    first = _number(parser, one, positive=positive)
    parser.parse_punctuation(",")
    second = _number(parser, other, positive=positive)
    parser.parse_punctuation(")")
    return first, second


def _pair_text(pair: tuple[float, float]) -> str:
    return f"({float_text(pair[0])}, {float_text(pair[1])})"


def _pairs_text(pairs: Iterable[tuple[float, float]]) -> str:
    return f"[{', '.join(map(_pair_text, pairs))}]"


def _entries_text(entries: Iterable[tuple[str, float]]) -> str:
    return f"{{{', '.join(f'{name} = {float_text(number)}' for name, number in entries)}}}"


def _fields_text(**fields: str) -> str:
    """Join the fields that have a text as `name = text`."""
    return ", ".join(f"{name} = {text}" for name, text in fields.items() if text)


def quoted(text: str) -> str:
    """Return a string literal that MLIR and xDSL both read; characters outside ASCII are kept, not escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\{ord(c):02X}" if c.isascii() else c for c in escaped) + '"'


def _others(parser: AttrParser, **readers: Callable[[], Any] | None) -> dict[str, Any]:
    """Read optional fields in any order, each by its reader; a field without a reader is a flag."""
    fields: dict[str, Any] = {}
    while parser.parse_optional_punctuation(",") is not None:
        at = parser.pos
        if (name := parser.parse_identifier()) not in readers:
            parser.raise_error(f"found {name}, expected one of {', '.join(readers)}", at)
        if (reader := readers[name]) is not None:
            parser.parse_punctuation("=")
        fields[name] = reader() if reader is not None else True
    return fields


def _squared(parser: AttrParser, read: Callable[[AttrParser], Item]) -> tuple[Item, ...]:
    """Read a list in square brackets."""
    return tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: read(parser)))


def _keyword_and_equals(parser: AttrParser, name: str) -> None:
    parser.parse_keyword(name)
    parser.parse_punctuation("=")


def _comma_and(parser: AttrParser, name: str) -> None:
    parser.parse_punctuation(",")
    _keyword_and_equals(parser, name)


def _entries(
    parser: AttrParser, read: Callable[[AttrParser], Item], *, quotes: bool = False
) -> tuple[tuple[str, Item], ...]:
    """Read `{float32 = 1.0e9}`, the names in quotes or not."""

    def entry() -> tuple[str, Item]:
        name = parser.parse_str_literal() if quotes else parser.parse_identifier()
        parser.parse_punctuation("=")
        return name, read(parser)

    return tuple(parser.parse_comma_separated_list(parser.Delimiter.BRACES, entry))


def _field(parser: AttrParser, name: str, unit: Unit, *, positive: bool = True) -> float:
    _comma_and(parser, name)
    return _number(parser, unit, positive=positive)


def _number(parser: AttrParser, unit: Unit, *, positive: bool = True) -> float:
    """Read a number in the range that cluster files allow for `unit`; 0 is allowed too unless `positive`."""
    at, number = parser.pos, parser.parse_number()
    if not (unit.least <= number <= unit.most or (number == 0 and not positive)):
        kind = "a number" if positive else "0 or a number"
        parser.raise_error(f"found {shown(number)}, expected {kind} from {unit.least:g} to {unit.most:g}", at)
    return float(number)


def _count(parser: AttrParser, most: Count, least: int = 1) -> int:
    at, number = parser.pos, parser.parse_integer(allow_boolean=False)
    if not least <= number <= most.most:
        parser.raise_error(f"found {shown(number)}, expected a whole number from {least} to {most.most}", at)
    return number


def float_text(number: float) -> str:
    """Return the shortest text that reads back as `number` and is a float in MLIR's grammar (1e-06 has no dot)."""
    text = repr(float(number))
    return text if "." in text else text.replace("e", ".0e")
