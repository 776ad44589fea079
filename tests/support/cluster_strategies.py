"""Hypothesis strategies that draw clusters, for properties of all clusters."""

import string

from hypothesis import strategies as st

from shardwright.ir.cluster import Cluster, Device, Interference, Link
from shardwright.ir.mesh import Axis, Mesh
from shardwright.ir.op_rate import OpRate
from shardwright.ir.topology import Host, Level, Switch, Topology

_POSITIVE = st.floats(1e-12, 1e15)
_RATES = st.floats(1, 1e15)
_PARTS = st.floats(1e-6, 1e6)
_BETAS = st.floats(1e-15, 1)
_TIMES = st.floats(1e-12, 10)
_SECONDS = st.just(0.0) | _TIMES
_ASCII = string.ascii_letters + string.digits + " .-'#[]="
# xDSL cannot parse a string with both a non-ASCII character and an escaped one.
_NAMES = st.text(_ASCII + '"\\', min_size=1, max_size=8) | st.text(_ASCII + "µ", min_size=1, max_size=8)
_RISING = st.lists(_RATES, unique=True, max_size=3).map(sorted)
_CURVES = st.dictionaries(_POSITIVE, _PARTS, max_size=3).map(lambda curve: tuple(sorted(curve.items())))


@st.composite
def _devices(draw: st.DrawFn, kind: str) -> Device:
    flops = draw(st.dictionaries(st.sampled_from(["float32", "bfloat16", "int64"]), _RATES, min_size=1))
    rates = [
        OpRate(draw(_NAMES), draw(st.just("") | _NAMES), draw(_RATES), draw(_RATES), draw(_SECONDS), *curves)
        for curves in draw(st.lists(st.tuples(_CURVES, _CURVES), max_size=2))
    ]
    table = draw(st.dictionaries(_NAMES, _SECONDS, max_size=2))
    numbers = draw(_RATES), draw(_RATES), draw(_SECONDS)
    step = draw(_SECONDS), draw(st.sampled_from([1.0, 512.0]))
    return Device(kind, tuple(flops.items()), *numbers, tuple(rates), tuple(table.items()), *step)


@st.composite
def _links(draw: st.DrawFn, axis: str, *, plain: bool) -> Link:
    kinds = st.sampled_from(["all_reduce", "all_gather", "broadcast"])
    measured = draw(st.dictionaries(kinds, st.tuples(_SECONDS, st.just(0.0) | _BETAS), max_size=2))
    sizes = draw(st.dictionaries(kinds | st.just("all_gather:padded"), _RISING.filter(bool), max_size=2))
    points = [(name, size, draw(_TIMES)) for name, each in sizes.items() for size in each]
    alpha, beta = (0.0, 0.0) if plain and draw(st.booleans()) else (draw(_SECONDS), draw(_BETAS))
    return Link(axis, alpha, beta, tuple((kind, *costs) for kind, costs in measured.items()), tuple(points))


@st.composite
def _topologies(draw: st.DrawFn) -> Topology:
    names = draw(st.lists(_NAMES, unique=True, min_size=1, max_size=3))
    efficiency = st.dictionaries(st.sampled_from(["all_reduce", "broadcast"]), _PARTS, max_size=2)
    levels = [
        Level(name, draw(_SECONDS), draw(_RATES), draw(_SECONDS), draw(st.booleans()), tuple(draw(efficiency).items()))
        for name in names
    ]
    wires, few = st.sampled_from(names), st.integers(1, 3)
    hosts = [Host(draw(few), draw(wires), draw(wires), draw(few), draw(few)) for _ in range(draw(st.integers(1, 2)))]
    switch = draw(st.none() | st.builds(Switch, few, _PARTS))
    return Topology(tuple(levels), tuple(hosts), switch)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Draw a cluster of a few devices with links, hosts, or both, and with any values that a profile may measure."""
    topology = draw(st.none() | _topologies())
    axes = (Axis("node", 2), Axis("gpu", 3)) if topology is None else (Axis("gpu", topology.size),)
    mesh = Mesh(axes)
    kinds = draw(st.lists(_NAMES, unique=True, min_size=1, max_size=2))
    devices = tuple(draw(_devices(kind)) for kind in kinds)
    places = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=mesh.device_count, max_size=mesh.device_count))
    if topology is not None and draw(st.booleans()):
        places = places[:1] * mesh.device_count
    links = [draw(_links(axis.name, plain=topology is not None)) for axis in axes]
    if topology is not None and draw(st.booleans()):
        links = []
    interference = Interference(draw(_PARTS), draw(_PARTS))
    return Cluster(draw(_NAMES), mesh, devices, tuple(places), tuple(links), interference, topology)
