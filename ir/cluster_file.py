"""
Cluster files: the TOML form of a cluster.

```toml
version = 1
name = "two-nodes"
mesh = ["node=2", "gpu=4"]            # major to minor

[device.a100]
flops = { float32 = 19.5e12, bfloat16 = 312e12 }
memory_bandwidth = 1.5e12             # bytes/s
memory = "40GiB"
launch = 5e-6                         # seconds per op

[[place]]                             # optional: which kind the ranks have; by default all the first
device = "a100"
count = 8

[link.node]
latency = 20e-6                       # seconds
bandwidth = 12.5e9                    # bytes/s
[link.gpu]
latency = 5e-6
bandwidth = 300e9
all_reduce = { alpha = 9e-6, beta = 4e-12 }   # optional, measured: seconds, seconds per byte
```
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from .cluster import Cluster, Device, Link
from .collectives import CollectiveKind
from .mesh import Axis, Mesh

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)},
    **{f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)},
}
_Table = Mapping[str, Any]
_SHIPPED = "shardwright.examples.clusters"


class ClusterFileError(ValueError):
    """A cluster file that cannot be used; the message names the file, the line and the field."""


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
        raise ClusterFileError(
            f"{name}: neither a cluster file nor the name of a shipped one ({', '.join(shipped)})"
        )
    return parse_cluster(shipped[str(name)], f"{name}.toml")


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster file; ClusterFileError names the file, the line where it can be told, and the field."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterFileError(f"{path}: cannot read the cluster file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ClusterFileError(f"{path}: the cluster file is not UTF-8 text") from error
    return parse_cluster(text, str(path))


def parse_cluster(text: str, source: str = "<cluster>") -> Cluster:
    """Read a cluster from TOML text; see `load_cluster`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClusterFileError(f"{source}: {error}") from error
    return _Reader(text, source).cluster(table)


class _Reader:
    """Reads fields with errors that say where they stand in the text."""

    def __init__(self, text: str, source: str) -> None:
        self.lines, self.source = text.splitlines(), source

    def fail(self, section: str, field: str, message: str) -> ClusterFileError:
        line = self._line(section, field)
        place = f"{self.source}:{line}" if line else self.source
        name = f"[{section}] {field}".strip() if section else field
        return ClusterFileError(f"{place}: {name}: {message}")

    def _line(self, section: str, field: str) -> int:
        """
        The 1-based line of `field` in `[section]`, of the section's header where the field is missing, or 0.
        """
        header, current = 0, ""
        for number, line in enumerate(self.lines, 1):
            if match := re.match(r"\s*\[+([^\]]+)\]", line):
                current = match[1].strip()
                header = number if current == section else header
            elif current == section and re.match(rf"\s*{re.escape(field)}\s*=", line):
                return number
        return header

    def cluster(self, table: _Table) -> Cluster:
        if (version := table.get("version", 1)) != 1:
            raise self.fail("", "version", f"is {version!r}, this release reads version 1")
        known = {"version", "name", "mesh", "device", "place", "link"}
        for name in table:
            if name not in known:
                raise self.fail(
                    "", name, f"is not a field of a cluster file; expected one of {', '.join(sorted(known))}"
                )
        mesh = self._mesh(table)
        kinds = [self._device(kind, fields) for kind, fields in self._tables(table, "device").items()]
        if not kinds:
            raise self.fail("", "device", "missing; describe at least one kind of device, as [device.a100]")
        links = self._links(table, mesh)
        return Cluster(
            str(table.get("name", "cluster")), mesh, tuple(kinds), self._placement(table, kinds, mesh), links
        )

    def _tables(self, table: _Table, name: str) -> dict[str, _Table]:
        found = table.get(name, {})
        if not isinstance(found, dict) or not all(
            isinstance(v, dict) for v in cast(dict[str, Any], found).values()
        ):
            raise self.fail("", name, f"must be sections, as [{name}.NAME]")
        return cast(dict[str, _Table], found)

    def _mesh(self, table: _Table) -> Mesh:
        entries = table.get("mesh")
        if not isinstance(entries, list) or not entries:
            raise self.fail("", "mesh", 'missing; expected axes, major to minor, as ["node=2", "gpu=4"]')
        sizes: list[tuple[str, int]] = []
        for entry in cast(list[Any], entries):
            match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*", str(entry))
            if match is None:
                raise self.fail("", "mesh", f'entry {entry!r} is not of the form "gpu=4"')
            sizes.append((match[1], int(match[2])))
        try:
            return Mesh(tuple(Axis(name, size) for name, size in sizes))
        except ValueError as error:
            raise self.fail("", "mesh", str(error)) from error

    def _device(self, kind: str, fields: _Table) -> Device:
        section = f"device.{kind}"
        self._only(section, fields, {"flops", "memory_bandwidth", "memory", "launch"})
        rates = fields.get("flops")
        if not isinstance(rates, dict) or not rates:
            raise self.fail(section, "flops", "missing; expected FLOP/s by dtype, as { float32 = 19.5e12 }")
        flops = {dtype: self._number(section, "flops", rate) for dtype, rate in cast(_Table, rates).items()}
        bandwidth = self._number(section, "memory_bandwidth", fields.get("memory_bandwidth"))
        launch = self._number(section, "launch", fields.get("launch", 0.0), positive=False)
        return Device(
            kind,
            tuple(flops.items()),
            bandwidth,
            self._bytes(section, "memory", fields.get("memory")),
            launch,
        )

    def _links(self, table: _Table, mesh: Mesh) -> tuple[Link, ...]:
        sections = self._tables(table, "link")
        for axis in sections:
            if axis not in mesh.names:
                raise self.fail(
                    f"link.{axis}", "", f'the mesh has no axis "{axis}"; its axes are {", ".join(mesh.names)}'
                )
        return tuple(self._link(axis.name, sections.get(axis.name)) for axis in mesh.axes)

    def _link(self, axis: str, fields: _Table | None) -> Link:
        section = f"link.{axis}"
        if fields is None:
            raise self.fail(
                "", section, f'missing; mesh axis "{axis}" needs a [{section}] with latency and bandwidth'
            )
        kinds = {"broadcast", *(kind.value for kind in CollectiveKind if not kind.is_local)}
        self._only(section, fields, {"latency", "bandwidth", *kinds})
        measured: list[tuple[str, float, float]] = []
        for kind in sorted(kinds & fields.keys()):
            pair = fields[kind]
            if not isinstance(pair, dict) or set(cast(_Table, pair)) != {"alpha", "beta"}:
                raise self.fail(section, kind, "expected { alpha = seconds, beta = seconds per byte }")
            alpha, beta = (self._number(section, kind, pair[k], positive=False) for k in ("alpha", "beta"))
            measured.append((kind, alpha, beta))
        latency = self._number(section, "latency", fields.get("latency"), positive=False)
        bandwidth = self._number(section, "bandwidth", fields.get("bandwidth"))
        return Link(axis, latency, 1.0 / bandwidth, tuple(measured))

    def _placement(self, table: _Table, kinds: list[Device], mesh: Mesh) -> tuple[int, ...]:
        entries = table.get("place")
        if entries is None:
            return (0,) * mesh.device_count
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in cast(list[Any], entries)):
            raise self.fail("", "place", "must be sections, as [[place]]")
        names = [device.kind for device in kinds]
        placed: list[tuple[int, int]] = []
        for entry in cast(list[_Table], entries):
            kind, count = entry.get("device"), entry.get("count", 1)
            if kind not in names:
                raise self.fail(
                    "place", "device", f"{kind!r} is not one of the kinds described: {', '.join(names)}"
                )
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise self.fail("place", "count", f"is {count!r}, expected a positive whole number")
            placed.append((names.index(kind), count))
        if (total := sum(count for _, count in placed)) != mesh.device_count:
            raise self.fail(
                "place", "count", f"{total} devices placed, the mesh {mesh} has {mesh.device_count}"
            )
        return tuple(kind for kind, count in placed for _ in range(count))

    def _only(self, section: str, fields: _Table, known: set[str]) -> None:
        for name in fields:
            if name not in known:
                raise self.fail(
                    section, name, f"is not a field here; expected one of {', '.join(sorted(known))}"
                )

    def _number(self, section: str, field: str, value: Any, *, positive: bool = True) -> float:
        if value is None:
            raise self.fail(section, field, "missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(section, field, f"is {value!r}, expected a number")
        if not math.isfinite(value) or value < 0 or (positive and value == 0):
            raise self.fail(
                section,
                field,
                f"is {value!r}, expected a {'positive' if positive else 'non-negative'} number",
            )
        return float(value)

    def _bytes(self, section: str, field: str, value: Any) -> float:
        if isinstance(value, str):
            match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(\w*)\s*", value)
            if match is None or match[2] not in _UNITS:
                raise self.fail(
                    section, field, f'is {value!r}, expected a size as "40GiB" or a number of bytes'
                )
            value = float(match[1]) * _UNITS[match[2]]
        return self._number(section, field, value)


def cluster_toml(cluster: Cluster) -> str:
    """The text form of `cluster`; `parse_cluster` reads it back."""
    lines = ["version = 1", f'name = "{cluster.name}"']
    lines.append("mesh = [" + ", ".join(f'"{a.name}={a.size}"' for a in cluster.mesh.spatial) + "]")
    for device in cluster.devices:
        rates = ", ".join(f"{dtype} = {rate!r}" for dtype, rate in device.flops)
        lines += ["", f"[device.{device.kind}]", f"flops = {{ {rates} }}"]
        lines += [
            f"memory_bandwidth = {device.memory_bandwidth!r}",
            f"memory = {device.memory!r}",
            f"launch = {device.launch!r}",
        ]
    if len(cluster.devices) > 1:
        for kind in cluster.placement:
            lines += ["", "[[place]]", f'device = "{cluster.devices[kind].kind}"', "count = 1"]
    for link in cluster.links:
        lines += ["", f"[link.{link.axis}]", f"latency = {link.alpha!r}", f"bandwidth = {1.0 / link.beta!r}"]
        lines += [f"{kind} = {{ alpha = {alpha!r}, beta = {beta!r} }}" for kind, alpha, beta in link.measured]
    return "\n".join(lines) + "\n"
