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

from collections.abc import Iterator
from dataclasses import asdict
from importlib.resources import files
from itertools import groupby
from pathlib import Path

from .cluster import Cluster, Device, Interference, Link
from .cluster_fields import ClusterFileError, Section, Source
from .cluster_reader import read_cluster
from .plain import Plain, did_you_mean
from .text_file import read_text
from .toml_text import inline, key, read_toml
from .topology import Topology

_SHIPPED = "shardwright.examples.clusters"


def shipped_clusters() -> dict[str, str]:
    """Return the texts of the cluster files that come with the package, by name."""
    entries = sorted((Path(entry.name), entry) for entry in files(_SHIPPED).iterdir())
    return {path.stem: entry.read_text(encoding="utf-8") for path, entry in entries if path.suffix == ".toml"}


def find_cluster(name: str | Path) -> Cluster:
    """Return the cluster of a file, or the shipped cluster of that name; raise ClusterFileError for a faulty one."""
    path = Path(name)
    if path.suffix or path.exists():
        return load_cluster(path)
    shipped = shipped_clusters()
    if str(name) not in shipped:
        near = did_you_mean(str(name), shipped)
        known = ", ".join(shipped)
        raise ClusterFileError(f"{name}: is not a cluster file, expected a file or a shipped cluster ({known}){near}")
    return parse_cluster(shipped[str(name)], f"{name}.toml")


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster file; ClusterFileError names the file, the line if it is known, and the field."""
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
    Return the text form of `cluster`, which `parse_cluster` reads back.

    Raises:
        ValueError: the cluster is a part of another cluster; only whole clusters have a text form.
    """
    if cluster.topology is not None and cluster.topology.devices is not None:
        raise ValueError(f"cluster @{cluster.name} is a part of another cluster; write the whole cluster")
    mesh = [f"{axis.name}={axis.size}" for axis in cluster.mesh.spatial]
    lines = [*_fields(version=3, name=cluster.name, mesh=mesh)]
    for device in cluster.devices:
        lines += _device_lines(device)
    if cluster.topology is not None:
        lines += _topology_lines(cluster, cluster.topology)
    if not _kinds_by_host(cluster) and any(cluster.placement):
        for kind, run in groupby(cluster.placement):
            lines += ["", "[[place]]", *_fields(device=cluster.devices[kind].kind, count=len(list(run)))]
    for link in cluster.links:
        lines += _link_lines(link)
    if (interference := cluster.interference) != Interference():
        factors = _fields(
            compute=interference.compute, communication=interference.communication, delays=interference.delays or None
        )
        lines += ["", "[interference]", *factors]
    return "\n".join(lines) + "\n"


def _fields(**values: Plain) -> Iterator[str]:
    """Yield the lines of fields, except fields whose value is None."""
    yield from (f"{name} = {inline(value)}" for name, value in values.items() if value is not None)


def _device_lines(device: Device) -> Iterator[str]:
    section = f"device.{key(device.kind)}"
    yield from ("", f"[{section}]")
    yield from _fields(
        flops=dict(device.flops),
        memory_bandwidth=device.memory_bandwidth,
        memory=device.memory,
        launch=device.launch,
        overhead=device.overhead or None,
        block=device.block if device.block != 1.0 else None,
    )
    for rate in device.rates:
        numbers = {name: value for name, value in asdict(rate).items() if value != ()}
        yield from ("", f"[[{section}.rate]]", *_fields(**numbers))
    if device.table:
        yield from ("", f"[{section}.table]")
        yield from (f"{inline(name)} = {seconds!r}" for name, seconds in device.table)


def _topology_lines(cluster: Cluster, topology: Topology) -> Iterator[str]:
    kinds = _kinds_by_host(cluster)
    for index, host in enumerate(topology.hosts):
        kind = cluster.devices[kinds[index]].kind if kinds else None
        names = {"device": kind, "inside": host.inside or None, "nic": host.nic or None}
        yield from ("", "[[host]]", *_fields(count=host.count, devices=host.devices, **names, nics=host.nics))
    for level in topology.levels:
        yield from ("", f"[level.{key(level.name)}]")
        yield from _fields(
            latency=level.latency,
            bandwidth=level.bandwidth,
            start=level.start or None,
            shared=level.shared or None,
            efficiency=dict(level.efficiency) or None,
        )
    if (switch := topology.switch) is not None:
        yield from ("", "[switch]", *_fields(hosts=switch.hosts, oversubscription=switch.oversubscription))


def _kinds_by_host(cluster: Cluster) -> list[int]:
    """Return the kind of device of each [[host]]; empty if hosts have several kinds, or there are no hosts."""
    kinds: list[int] = []
    begin = 0
    for host in cluster.topology.hosts if cluster.topology is not None else ():
        here = set(cluster.placement[begin : begin + host.count * host.devices])
        if len(here) != 1:
            return []
        kinds += here
        begin += host.count * host.devices
    return kinds


def _link_lines(link: Link) -> Iterator[str]:
    yield from ("", f"[link.{key(link.axis)}]")
    if link.beta:
        # The inverse of a number may round so that its inverse is another number.
        exact = 1.0 / (1.0 / link.beta) == link.beta
        yield from _fields(latency=link.alpha, **({"bandwidth": 1.0 / link.beta} if exact else {"beta": link.beta}))
    yield from _fields(**{kind: {"alpha": alpha, "beta": beta} for kind, alpha, beta in link.measured})
    if link.points:
        yield from ("", f"[link.{key(link.axis)}.points]")
        for name, points in groupby(link.points, key=lambda point: point[0]):
            yield f"{key(name)} = {inline([point[1:] for point in points])}"
