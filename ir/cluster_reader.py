"""Read a cluster file; every error names the line, the field and the expected value."""

from __future__ import annotations

import re

from .cluster import Cluster, Device, Interference, Link
from .cluster_fields import (
    AXES,
    BANDWIDTH,
    BETA,
    BLOCK,
    BYTES,
    DEVICES,
    FLOPS,
    MOST_KEY,
    NICS,
    PART,
    PLAIN,
    SECONDS,
    Section,
    shown,
)
from .collectives import CollectiveKind
from .mesh import Axis, Mesh, axis_name_fault
from .op_cost import MULTIPLYING
from .op_rate import OpRate
from .plain import Plain
from .topology import Host, Level, Switch, Topology

VERSIONS = (1, 2, 3)
_FIELDS = ("version", "name", "mesh", "device", "place", "link")
_FIELDS_OF_2 = ("host", "level", "switch", "interference")
_COLLECTIVES = ("broadcast", *(kind.value for kind in CollectiveKind if not kind.is_local))


def read_cluster(file: Section) -> Cluster:
    """Return the cluster that a file describes; raise ClusterFileError at its first fault."""
    version = file.table.get("version", 1)
    if isinstance(version, bool) or version not in VERSIONS:
        raise file.fail("version", f"is {shown(version)}, this release reads versions {', '.join(map(str, VERSIONS))}")
    file.only((*_FIELDS, *_FIELDS_OF_2), "of a cluster file")
    for name in _FIELDS_OF_2:
        if version == 1 and name in file.table:
            raise file.fail(name, "is not allowed in version 1 of this format; write version = 3")
    devices = [_device(section, version) for section in file.sections("device").values()]
    if not devices:
        raise file.fail("device", "missing; describe at least one kind of device, as [device.a100]")
    topology = _topology(file)
    mesh = _mesh(file, topology)
    return Cluster(
        file.text("name", "cluster"),
        mesh,
        tuple(devices),
        _placement(file, [device.kind for device in devices], mesh, topology),
        tuple(_links(file, mesh, topology)),
        _interference(file),
        topology,
    )


def _mesh(file: Section, topology: Topology | None) -> Mesh:
    entries = file.table.get("mesh")
    if entries is None and topology is not None:
        return _mesh_of_hosts(topology)
    if not isinstance(entries, list) or not entries:
        raise file.fail("mesh", 'missing; expected axes, major to minor, as ["node=2", "gpu=4"]')
    if len(entries) > AXES.most:
        raise file.fail("mesh", f"has {len(entries)} axes, expected at most {AXES.most}")
    try:
        mesh = Mesh(tuple(_axis(file, entry) for entry in entries))
    except ValueError as error:
        raise file.fail("mesh", str(error)) from error
    if topology is not None and topology.size != mesh.device_count:
        raise file.fail("mesh", f"{mesh} has {mesh.device_count} devices, the hosts have {topology.size}")
    return mesh


def _axis(file: Section, entry: Plain) -> Axis:
    """Return the axis of an entry of `mesh`; raise ClusterFileError, or ValueError, at a fault."""
    match = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9]{1,18})\s*", entry) if isinstance(entry, str) else None
    if match is None:
        raise file.fail("mesh", f'entry {shown(entry)} is not of the form "gpu=4"')
    if (fault := axis_name_fault(match[1])) is not None:
        raise file.fail("mesh", fault)
    return Axis(match[1], int(match[2]))


def _mesh_of_hosts(topology: Topology) -> Mesh:
    """Return a mesh of hosts and of the devices of each, if hosts have equally many devices; else of one axis."""
    sizes = {host.devices for host in topology.hosts}
    inside = sizes.pop() if len(sizes) == 1 else 1
    axes = [Axis("node", topology.size // inside), Axis("gpu", inside)] if inside > 1 else [Axis("gpu", topology.size)]
    return Mesh(tuple(axis for axis in axes if axis.size > 1 or axis.name == "gpu"))


def _device(section: Section, version: int) -> Device:
    section.only(("flops", "memory_bandwidth", "memory", "launch", "overhead", "block", "rate", "table"))
    if not isinstance(section.table.get("flops"), dict) or not section.table["flops"]:
        raise section.fail("flops", 'missing; expected FLOP/s by dtype, as { float32 = "19.5TFLOP/s" }')
    launch = section.number("launch", SECONDS, default=0.0, positive=False)
    rates = section.numbers("flops", FLOPS)
    if odd := next((dtype for dtype in rates if re.fullmatch("[a-z][a-z0-9_]*", dtype) is None), None):
        raise section.fail("flops", f"{shown(odd)} is not the name of a dtype, as float32 or bfloat16")
    if (block := section.number("block", BLOCK, default=1.0)) % 1:
        raise section.fail("block", f"is {shown(block)}, expected a whole number of bytes")
    return Device(
        str(section.path[-1]),
        tuple(rates.items()),
        section.number("memory_bandwidth", BANDWIDTH),
        section.number("memory", BYTES),
        launch,
        tuple(_rate(entry, launch, version) for entry in section.listed("rate")),
        tuple(section.numbers("table", SECONDS, positive=False, most=MOST_KEY).items()),
        section.number("overhead", SECONDS, default=0.0, positive=False),
        block,
    )


def _rate(section: Section, launch: float, version: int) -> OpRate:
    section.only(("family", "dtype", "flops", "bandwidth", "launch", "curve", "moving_curve"))
    family, example, units = section.text("family"), "[[1e6, 0.2], [1e9, 0.9]]", (PLAIN, PART)
    curve, moving = (section.pairs(name, example, units) for name in ("curve", "moving_curve"))
    if version < 3 and family not in MULTIPLYING:
        # Version 2 had one curve for both terms; the sizes of memory-bound ops were nearly all in bytes.
        moving = moving or curve
    return OpRate(
        family,
        section.text("dtype"),
        section.number("flops", FLOPS),
        section.number("bandwidth", BANDWIDTH),
        section.number("launch", SECONDS, default=launch, positive=False),
        curve,
        moving,
    )


def _topology(file: Section) -> Topology | None:
    hosts = file.listed("host")
    if not hosts:
        for name in ("level", "switch"):
            if name in file.table:
                raise file.fail(name, "requires hosts, but there is no [[host]]")
        return None
    levels = {name: _level(section) for name, section in file.sections("level").items()}
    read = tuple(_host(section, levels, alone=len(hosts) == 1) for section in hosts)
    if sum(host.count * host.devices for host in read) > DEVICES.most:
        raise hosts[0].fail("count", f"the hosts have more than {DEVICES.most} devices in all")
    return Topology(tuple(levels.values()), read, _switch(file))


def _level(section: Section) -> Level:
    section.only(("latency", "bandwidth", "start", "shared", "efficiency"))
    if (given := section.section("efficiency")) is not None:
        given.only(_COLLECTIVES)
    return Level(
        str(section.path[-1]),
        section.number("latency", SECONDS, positive=False),
        section.number("bandwidth", BANDWIDTH),
        section.number("start", SECONDS, default=0.0, positive=False),
        section.flag("shared"),
        tuple(section.numbers("efficiency", PART).items()),
    )


def _host(section: Section, levels: dict[str, Level], *, alone: bool) -> Host:
    """Read a [[host]]; it must name the levels between its devices and between hosts, if there are several."""
    section.only(("count", "devices", "device", "inside", "nic", "nics"))
    count, devices = section.count("count", DEVICES, 1), section.count("devices", DEVICES, 1)
    inside, nic = (section.one_of(field, ("", *levels)) for field in ("inside", "nic"))
    if devices > 1 and not inside:
        raise section.fail("inside", f"missing; name the [level.NAME] between the {devices} devices")
    if not nic and (count > 1 or not alone):
        raise section.fail("nic", "missing; name the [level.NAME] between hosts")
    return Host(devices, inside, nic, section.count("nics", NICS, 1), count)


def _switch(file: Section) -> Switch | None:
    if (section := file.section("switch")) is None:
        return None
    section.only(("hosts", "oversubscription"))
    return Switch(section.count("hosts", DEVICES), section.number("oversubscription", PART))


def _placement(file: Section, kinds: list[str], mesh: Mesh, topology: Topology | None) -> tuple[int, ...]:
    """Return the kind of device of each rank: from its [[place]], else from its [[host]], else the first kind."""
    if "place" not in file.table:
        if topology is None:
            return (0,) * mesh.device_count
        named = [kinds.index(section.one_of("device", kinds, kinds[0])) for section in file.listed("host")]
        pairs = zip(named, topology.hosts, strict=True)
        return tuple(kind for kind, host in pairs for _ in range(host.count * host.devices))
    placed: list[tuple[int, int]] = []
    places = file.listed("place")
    for entry in places:
        entry.only(("device", "count"))
        placed.append((kinds.index(entry.one_of("device", kinds)), entry.count("count", DEVICES, 1)))
    if (total := sum(count for _, count in placed)) != mesh.device_count:
        raise places[0].fail("count", f"{total} devices placed, the mesh {mesh} has {mesh.device_count}")
    return tuple(kind for kind, count in placed for _ in range(count))


def _links(file: Section, mesh: Mesh, topology: Topology | None) -> list[Link]:
    sections = file.sections("link")
    for name, section in sections.items():
        axes = name.split("-")
        for axis in axes:
            if axis not in mesh.names:
                raise section.fail("", f'the mesh has no axis "{axis}"; its axes are {", ".join(mesh.names)}')
        if len(set(axes)) < len(axes) or tuple(axes) != mesh.in_order(axes):
            raise section.fail("", f"expected axes in the mesh's order, which is {', '.join(mesh.names)}")
    for axis in mesh.names:
        if axis not in sections and topology is None:
            raise file.fail(
                f"link.{axis}", f'missing; mesh axis "{axis}" needs a [link.{axis}] with latency and bandwidth'
            )
    return [_link(section, topology) for section in sections.values()]


def _link(section: Section, topology: Topology | None) -> Link:
    section.only(("latency", "bandwidth", "beta", "points", *_COLLECTIVES))
    measured: list[tuple[str, float, float]] = []
    for kind in sorted(set(_COLLECTIVES) & section.table.keys()):
        pair = section.table[kind]
        if not isinstance(pair, dict) or set(pair) != {"alpha", "beta"}:
            raise section.fail(kind, "expected { alpha = seconds, beta = seconds per byte }")
        inner = Section(section.source, (*section.path, kind), pair)
        alpha, beta = inner.number("alpha", SECONDS, positive=False), inner.number("beta", BETA, positive=False)
        measured.append((kind, alpha, beta))
    alpha, beta = _line(section, required=topology is None)
    return Link(str(section.path[-1]), alpha, beta, tuple(measured), _points(section))


def _line(section: Section, *, required: bool) -> tuple[float, float]:
    """Return alpha and beta of a link; 0 if they are optional and absent."""
    if {"bandwidth", "beta"} <= section.table.keys():
        raise section.fail("beta", "is 1 / bandwidth; give one of the two")
    if not required and not {"latency", "bandwidth", "beta"} & section.table.keys():
        return 0.0, 0.0
    alpha = section.number("latency", SECONDS, positive=False)
    if "beta" in section.table:
        return alpha, section.number("beta", BETA)
    return alpha, 1.0 / section.number("bandwidth", BANDWIDTH)


def _points(section: Section) -> tuple[tuple[str, float, float], ...]:
    if (inner := section.section("points")) is None:
        return ()
    points: list[tuple[str, float, float]] = []
    for name in inner.table:
        kind, _, method = name.partition(":")
        if kind not in _COLLECTIVES or (method and re.fullmatch("[a-z_]+", method) is None):
            raise inner.fail(name, f"is not a collective or `collective:method`; expected {', '.join(_COLLECTIVES)}")
        points += [(name, *pair) for pair in inner.pairs(name, "[[1024, 2e-5], [1048576, 9e-4]]", (BYTES, SECONDS))]
    return tuple(points)


def _interference(file: Section) -> Interference:
    if (section := file.section("interference")) is None:
        return Interference()
    section.only(("compute", "communication", "delays"))
    compute, communication = (section.number(name, PART, default=1.0) for name in ("compute", "communication"))
    delays = section.pairs("delays", "[[0.001, 5e-4], [0.01, 2e-3]]", (SECONDS, SECONDS))
    return Interference(compute, communication, delays)
