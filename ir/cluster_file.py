"""
Cluster files: the TOML form of a cluster. `docs/cluster-files.md` has every field.

```toml
version = 3
name = "two-nodes"
mesh = ["node=2", "gpu=4"]            # major to minor; may be left out

[device.a100]
flops = { float32 = "19.5TFLOP/s", bfloat16 = "312TFLOP/s" }
memory_bandwidth = "1.5TB/s"
memory = "40GiB"
launch = "5us"                        # per op

[[host]]
count = 2
devices = 4
device = "a100"
inside = "nvlink"
nic = "ethernet"                      # one, which its devices share

[level.nvlink]
latency = "2us"
bandwidth = "300GB/s"                 # of a device, each way
[level.ethernet]
latency = "20us"
bandwidth = "100Gbit/s"               # of a NIC, each way

[link.gpu]                            # measured on the axis, in the place of what follows from the hosts
latency = 5e-6
bandwidth = 280e9
all_reduce = { alpha = 9e-6, beta = 4e-12 }
```

Without hosts every axis needs a link; this was the only form of version 1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from .cluster import Cluster, Device, Link
from .cluster_fields import ClusterFileError, Section, Source
from .cluster_reader import read_cluster
from .plain import did_you_mean
from .text_file import read_text
from .toml_text import read_toml
from .topology import Level, Topology

_SHIPPED = "shardwright.examples.clusters"


def shipped_clusters() -> dict[str, str]:
    """The texts of the cluster files that come with the package, by name."""
    entries = sorted((Path(entry.name), entry) for entry in files(_SHIPPED).iterdir())
    return {path.stem: entry.read_text(encoding="utf-8") for path, entry in entries if path.suffix == ".toml"}


def find_cluster(name: str | Path) -> Cluster:
    """The cluster of a file, or the shipped one of that name; ClusterFileError where there is none or it is wrong."""
    path = Path(name)
    if path.suffix or path.exists():
        return load_cluster(path)
    shipped = shipped_clusters()
    if str(name) not in shipped:
        near = did_you_mean(str(name), shipped)
        known = ", ".join(shipped)
        raise ClusterFileError(f"{name}: neither a cluster file nor the name of a shipped one ({known}){near}")
    return parse_cluster(shipped[str(name)], f"{name}.toml")


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster file; ClusterFileError names the file, the line where it is known, and the field."""
    path = Path(path)
    try:
        text = read_text(path)
    except OSError as error:
        raise ClusterFileError(f"{path}: cannot read the cluster file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ClusterFileError(f"{path}: the cluster file is not UTF-8 text") from error
    return parse_cluster(text, str(path))


def parse_cluster(text: str, source: str = "<cluster>") -> Cluster:
    """Read a cluster from TOML text; see `load_cluster`."""
    try:
        table = read_toml(text)
    except ValueError as error:
        raise ClusterFileError(f"{source}: {error}") from error
    return read_cluster(Section(Source(text, source), (), table))


def cluster_toml(cluster: Cluster) -> str:
    """
    The text form of `cluster`; `parse_cluster` reads it back.

    Raises:
        ValueError: the cluster is a part of another, which alone can be written.
    """
    if cluster.topology is not None and cluster.topology.devices is not None:
        raise ValueError(f"cluster @{cluster.name} is a part of another cluster; write that one")
    lines = ["version = 3", f"name = {_text(cluster.name)}"]
    lines.append("mesh = [" + ", ".join(_text(f"{a.name}={a.size}") for a in cluster.mesh.spatial) + "]")
    for device in cluster.devices:
        lines += ["", *_device_lines(device)]
    if cluster.topology is not None:
        lines += _topology_lines(cluster, cluster.topology)
    if not _kinds_by_host(cluster) and any(cluster.placement):
        for kind, run in groupby(cluster.placement):
            lines += ["", "[[place]]", f"device = {_text(cluster.devices[kind].kind)}", f"count = {len(list(run))}"]
    for link in cluster.links:
        lines += ["", *_link_lines(link)]
    if (found := cluster.interference) != type(found)():
        lines += ["", "[interference]", f"compute = {found.compute!r}", f"communication = {found.communication!r}"]
        if found.delays:
            lines.append(f"delays = [{', '.join(f'[{at!r}, {delay!r}]' for at, delay in found.delays)}]")
    return "\n".join(lines) + "\n"


def _device_lines(device: Device) -> Iterator[str]:
    section = f"device.{_key(device.kind)}"
    yield f"[{section}]"
    yield f"flops = {_inline(device.flops)}"
    for field in ("memory_bandwidth", "memory", "launch"):
        yield f"{field} = {getattr(device, field)!r}"
    if device.overhead:
        yield f"overhead = {device.overhead!r}"
    if device.block != 1.0:
        yield f"block = {device.block!r}"
    for rate in device.rates:
        yield from ("", f"[[{section}.rate]]", f"family = {_text(rate.family)}", f"dtype = {_text(rate.dtype)}")
        yield from (f"{field} = {getattr(rate, field)!r}" for field in ("flops", "bandwidth", "launch"))
        if rate.curve:
            yield f"curve = {_pairs(rate.curve)}"
        if rate.moving_curve:
            yield f"moving_curve = {_pairs(rate.moving_curve)}"
    if device.table:
        yield from ("", f"[{section}.table]")
        yield from (f"{_text(key)} = {seconds!r}" for key, seconds in device.table)


def _topology_lines(cluster: Cluster, topology: Topology) -> Iterator[str]:
    kinds = _kinds_by_host(cluster)
    for index, host in enumerate(topology.hosts):
        yield from ("", "[[host]]", f"count = {host.count}", f"devices = {host.devices}")
        if kinds:
            yield f"device = {_text(cluster.devices[kinds[index]].kind)}"
        yield from (f"{field} = {_text(name)}" for field, name in (("inside", host.inside), ("nic", host.nic)) if name)
        yield f"nics = {host.nics}"
    for level in topology.levels:
        yield from ("", *_level_lines(level))
    if topology.switch is not None:
        yield from ("", "[switch]", f"hosts = {topology.switch.hosts}")
        yield f"oversubscription = {topology.switch.oversubscription!r}"


def _kinds_by_host(cluster: Cluster) -> list[int]:
    """The kind of device of each [[host]]; none where hosts have several kinds, or there are no hosts."""
    kinds: list[int] = []
    begin = 0
    for host in cluster.topology.hosts if cluster.topology is not None else ():
        here = set(cluster.placement[begin : begin + host.count * host.devices])
        if len(here) != 1:
            return []
        kinds += here
        begin += host.count * host.devices
    return kinds


def _level_lines(level: Level) -> Iterator[str]:
    yield from (f"[level.{_key(level.name)}]", f"latency = {level.latency!r}", f"bandwidth = {level.bandwidth!r}")
    if level.start:
        yield f"start = {level.start!r}"
    if level.shared:
        yield "shared = true"
    if level.efficiency:
        yield f"efficiency = {_inline(level.efficiency)}"


def _link_lines(link: Link) -> Iterator[str]:
    yield f"[link.{_key(link.axis)}]"
    if link.beta:
        yield f"latency = {link.alpha!r}"
        # Not every number is the inverse of the number that is nearest to its inverse.
        exact = 1.0 / (1.0 / link.beta) == link.beta
        yield f"bandwidth = {1.0 / link.beta!r}" if exact else f"beta = {link.beta!r}"
    yield from (f"{kind} = {{ alpha = {alpha!r}, beta = {beta!r} }}" for kind, alpha, beta in link.measured)
    if link.points:
        yield from ("", f"[link.{_key(link.axis)}.points]")
        for name, points in groupby(link.points, key=lambda point: point[0]):
            yield f"{_key(name)} = {_pairs((size, seconds) for _, size, seconds in points)}"


def _inline(entries: Iterable[tuple[str, float]]) -> str:
    return "{ " + ", ".join(f"{_key(name)} = {value!r}" for name, value in entries) + " }"


def _pairs(pairs: Iterable[tuple[float, float]]) -> str:
    return "[" + ", ".join(f"[{a!r}, {b!r}]" for a, b in pairs) + "]"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(text: str) -> str:
    """A TOML string: JSON's, but for the one control character that JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
