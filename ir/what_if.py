"""
What-ifs: a cluster with a changed field, and a range of numbers to try for a field.

A field is named by its place in the cluster file: `link.node.bandwidth`, `device.a100.flops.float32`,
`interference.compute`, `host.0.nics`. If an axis has no link but uses one level of the hosts' wires,
`link.node.bandwidth` stands for `level.NAME.bandwidth`; `link.inter` and `link.intra` are the wires between hosts
and inside them. Values are written as in the file, with or without a unit.

Measurements follow a change: the measured collectives of a link scale with its bandwidth and latency, the fitted rates
of a device with its rates. Measured times of single ops do not scale, and are dropped if a rate changes.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from .cluster import Cluster, Device, Link
from .cluster_file import ClusterFileError, cluster_toml, parse_cluster
from .plain import closest
from .toml_text import inline

_Value: TypeAlias = "bool | int | float | str | list[_Value] | dict[str, _Value]"
_Table: TypeAlias = dict[str, _Value]

_OPTIONAL = ("interference.compute", "interference.communication")
_OF_DEVICES = ("launch", "overhead", "block")
_OF_WIRES = ("latency", "bandwidth")
_KEPT = ("version", "name", "mesh", "place")
_MEASURED = ("rate", "table", "points")
_MOST_VALUES = 1000
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class WhatIfError(ValueError):
    """An error in a change of a cluster; the message names the field."""


@dataclass(frozen=True)
class Sweep:
    """A field and the numbers to try, in the units of the cluster file."""

    path: str
    values: tuple[float, ...]


def changed(cluster: Cluster, path: str, value: str | float) -> Cluster:
    """
    Return the cluster with another value of one field; its name, mesh and placement stay.

    WhatIfError: the field does not exist, or cannot have this value.
    """
    table, aliases = _table(cluster), _aliases(cluster)
    if path not in (known := fields(cluster)):
        close = closest(path, known, cutoff=0.4)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
        raise WhatIfError(f"the cluster has no field {path}; {hint}")
    *sections, field = aliases.get(path, path).split(".")
    _section(table, sections)[field] = _plain(value)
    try:
        parsed = parse_cluster("\n".join(f"{name} = {inline(entry)}" for name, entry in table.items()), "what if")
    except ClusterFileError as error:
        raise WhatIfError(f"{path} cannot be {value}: {str(error).partition(': ')[2]}") from error
    # Measurements of links and devices are scaled by the changes of their numbers.
    after = replace(parsed, name=cluster.name, mesh=cluster.mesh, placement=cluster.placement)
    links = tuple(_link(a, b) for a, b in zip(cluster.links, after.links, strict=True))
    devices = tuple(_device(a, b) for a, b in zip(cluster.devices, after.devices, strict=True))
    return replace(after, links=links, devices=devices)


def fields(cluster: Cluster) -> list[str]:
    """Return the fields that can be changed."""
    optional = [*_OPTIONAL, *(f"device.{device.kind}.{field}" for device in cluster.devices for field in _OF_DEVICES)]
    return list(dict.fromkeys([*_leaves(_table(cluster)), *_aliases(cluster), *optional]))


def number(cluster: Cluster, path: str) -> float:
    """Return the value of a field, in the units of the cluster file; raise WhatIfError unless it is a number."""
    *sections, field = _aliases(cluster).get(path, path).split(".")
    value = _section(_table(cluster), sections).get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WhatIfError(f"{path} is {value!r}, which is not a number")
    return float(value)


def parse_change(text: str) -> tuple[str, str]:
    """Return the field and the value of a change such as `link.node.bandwidth=25GB/s`."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip() or not value.strip():
        raise WhatIfError(f"'{text}' is not a change; expected FIELD=VALUE, as link.node.bandwidth=25GB/s")
    return path.strip(), value.strip()


def parse_sweep(text: str, cluster: Cluster) -> Sweep:
    """Return the field and numbers of `link.node.bandwidth=1GB/s..100GB/s:9`: 9 numbers at equal ratios."""
    path, values = parse_change(text)
    match = re.fullmatch(r"(?P<low>\S+?)\.\.(?P<high>\S+?):(?P<count>[0-9]{1,4})", values)
    if match is None or not 2 <= int(match["count"]) <= _MOST_VALUES:
        expected = f"FIELD=FROM..TO:COUNT with a count of 2 to {_MOST_VALUES}, as link.node.bandwidth=1GB/s..100GB/s:9"
        raise WhatIfError(f"'{text}' is not a sweep; expected {expected}")
    low, high = (number(changed(cluster, path, match[end]), path) for end in ("low", "high"))
    if low <= 0.0 or high <= 0.0:
        raise WhatIfError(f"'{text}' goes from {low:g} to {high:g}; a sweep needs positive numbers")
    count = int(match["count"])
    steps = [math.exp(math.log(low) + (math.log(high) - math.log(low)) * i / (count - 1)) for i in range(1, count - 1)]
    return Sweep(path, (low, *steps, high))


def _table(cluster: Cluster) -> _Table:
    table: _Table = tomllib.loads(cluster_toml(cluster))
    links = table.get("link")
    for link in links.values() if isinstance(links, dict) else ():
        if isinstance(link, dict) and isinstance(beta := link.pop("beta", None), float):
            link["bandwidth"] = 1.0 / beta
    return table


def _section(table: _Table, names: Sequence[str]) -> _Table:
    """Return a section of a table by the names on its path; a missing section is added, empty."""
    section: _Value = table
    for name in names:
        match section:
            case list():
                section = section[int(name)]
            case dict():
                section = section.setdefault(name, {})
            case _:
                break
    return section if isinstance(section, dict) else {}


def _plain(value: str | float) -> str | float:
    """Return a number as the file has it, whole numbers without a point; other text stays as it is."""
    if not _NUMBER.fullmatch(str(value)):
        return value
    parsed = float(value)
    return int(parsed) if parsed.is_integer() else parsed


def _aliases(cluster: Cluster) -> dict[str, str]:
    """
    Return other names of fields: for an axis without a link, the fields of the level that it uses; for `link.inter` and
    `link.intra`, the fields of the wires between hosts and inside them, or, in a cluster without hosts, of its first
    and last axis.
    """
    aliases: dict[str, str] = {}
    if (topology := cluster.topology) is None:
        ends = {"inter": cluster.mesh.spatial[0].name, "intra": cluster.mesh.spatial[-1].name}
        own = {link.axis for link in cluster.links}
        return {
            f"link.{name}.{field}": f"link.{axis}.{field}"
            for name, axis in ends.items()
            for field in _OF_WIRES
            if name not in own and axis in own
        }
    for name, levels in (("inter", {h.nic for h in topology.hosts}), ("intra", {h.inside for h in topology.hosts})):
        if len(levels) == 1 and (level := levels.pop()):
            aliases |= {f"link.{name}.{field}": f"level.{level}.{field}" for field in _OF_WIRES}
    linked = {link.axis for link in cluster.links}
    for axis in cluster.mesh.spatial:
        group = cluster.mesh.group(0, (axis.name,))
        ways = (topology.way(a, b) for a, b in pairwise(group))
        levels = {topology.ports[port].level.name for way in ways for port in way}
        if axis.name not in linked and len(levels) == 1:
            level = levels.pop()
            aliases |= {f"link.{axis.name}.{field}": f"level.{level}.{field}" for field in _OF_WIRES}
    return aliases


def _leaves(table: Mapping[str, _Value], prefix: str = "") -> Iterator[str]:
    for name, value in table.items():
        path = f"{prefix}{name}"
        if name in _MEASURED or (not prefix and name in _KEPT):
            continue
        if isinstance(value, list):
            yield from _leaves({str(index): entry for index, entry in enumerate(value)}, f"{path}.")
        elif isinstance(value, dict):
            yield from _leaves(value, f"{path}.")
        else:
            yield path


def _link(before: Link, after: Link) -> Link:
    alpha, beta = _factor(before.alpha, after.alpha), _factor(before.beta, after.beta)
    if alpha == beta == 1.0:
        return after
    measured = [(kind, a, b) for kind, a, b in after.measured]
    if before.measured == after.measured:
        measured = [(kind, alpha * a, beta * b) for kind, a, b in after.measured]

    def moved(kind: str, seconds: float) -> float:
        fixed = min(before.named_costs(kind.partition(":")[0])[0], seconds)
        return alpha * fixed + beta * (seconds - fixed)

    points = tuple((kind, size, moved(kind, seconds)) for kind, size, seconds in after.points)
    return replace(after, measured=tuple(measured), points=points)


def _device(before: Device, after: Device) -> Device:
    rates = dict(before.flops)
    faster = {dtype: _factor(rates[dtype], rate) for dtype, rate in after.flops}
    moving = _factor(before.memory_bandwidth, after.memory_bandwidth)
    starting = _factor(before.launch, after.launch)
    if moving == starting == 1.0 and set(faster.values()) == {1.0}:
        return after
    fitted = (
        replace(
            rate,
            flops=rate.flops * faster.get(rate.dtype, min(faster.values())),
            bandwidth=rate.bandwidth * moving,
            launch=rate.launch * starting,
        )
        for rate in after.rates
    )
    return replace(after, rates=tuple(fitted), table=())


def _factor(before: float, after: float) -> float:
    return after / before if before else 1.0
