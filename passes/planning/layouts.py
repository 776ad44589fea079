"""The layouts that a plan may have: factorisations of the devices, stages, and parts of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.cluster import Cluster
from ...ir.mesh import Axis, Mesh
from ...ir.submesh import divisions, is_division
from .candidates import Layout

MOST_PARTS = 64
"""Largest number of parts of a batch."""

MOST_STAGES = 64

MOST_CHUNKS = 2
"""Largest number of chunks of layers in a stage."""

DUPLEX_PARTS = (2, 3, 4)
"""Numbers of parts that take turns; with more parts, kernels and messages become too small."""

_FEW = 8
"""Stages may have different numbers of devices on up to this many devices; more devices have too many divisions."""

AXES = ("outer", "inner")
FINER_AXES = ("outer", "middle", "inner")


@dataclass(frozen=True)
class LayoutConstraints:
    """
    The decisions of the user; the search decides each field that is None.

    Args:
        mesh: the sizes of the axes.
        stages: number of stages; 1 for no pipeline.
        micro_batches: number of parts of the batch, by a pipeline or by accumulation; 1 for a whole batch.
        duplex: whether parts of the batch take turns.
        keep: fraction of activations that is kept; 1 for all.
        balanced: whether devices that differ have shares by their speed.
        idle: whether devices may idle.
    """

    mesh: Mesh | None = None
    stages: int | None = None
    micro_batches: int | None = None
    duplex: bool | None = None
    keep: float | None = None
    balanced: bool | None = None
    idle: bool = True

    def __str__(self) -> str:
        """Return the decisions as options of `search-plan`: `stages=4 micro_batches=8`."""
        sizes = "x".join(str(axis.size) for axis in self.mesh.axes) if self.mesh is not None else None
        duplex = {None: None, True: "yes", False: "no"}[self.duplex]
        options = {
            "mesh": sizes,
            "stages": self.stages,
            "micro_batches": self.micro_batches,
            "duplex": duplex,
            "keep_activations": self.keep,
            "ratios": {None: None, True: "balanced", False: "even"}[self.balanced],
            "idle": None if self.idle else "no",
        }
        return " ".join(f"{name}={value}" for name, value in options.items() if value is not None)

    @property
    def is_one_layout(self) -> bool:
        """Return whether only the strategy is left to the search."""
        return self.mesh is not None and self.stages == 1 and self.micro_batches == 1 and self.duplex is False

    def allows(self, layout: Layout) -> bool:
        """Return whether a layout has these decisions; `keep` is not compared, since any layout can have any `keep`."""
        if layout.ranks is not None and not self.idle:
            return False
        if self.stages is not None and layout.stages != self.stages:
            return False
        if self.duplex is not None and (layout.mode == "duplex") != self.duplex:
            return False
        parts = 1 if layout.mode == "duplex" else layout.parts
        return self.micro_batches is None or parts == self.micro_batches


def impossible(fixed: LayoutConstraints, devices: int, rows: int, layers: int) -> str | None:
    """Return why the decisions are infeasible for every layout and strategy, or None if they are feasible."""
    stages, parts = fixed.stages or 1, fixed.micro_batches or 1
    reasons = {
        "duplex=yes cuts the batch by itself: leave out stages and micro_batches": fixed.duplex
        and max(stages, parts) > 1,
        "a pipeline needs at least two micro-batches": stages > 1 and fixed.micro_batches == 1,
        f"a stage needs a device of its own, and the cluster has {devices}": stages > devices,
        f"a stage needs a layer of its own, and the model has {layers}": stages > layers,
        f"a micro-batch needs a row, and the batch has {rows}": parts > rows,
    }
    return next((why for why, holds in reasons.items() if holds), None)


def meshes(cluster: Cluster) -> list[Mesh]:
    """
    Return the factorisations of the devices into one or two axes, the cluster's own mesh first.

    Links are measured along existing axes, so a cluster with measured links keeps its mesh. A cluster of several axes
    with unknown hosts keeps its mesh too, since the links between arbitrary ranks are unknown.
    """
    own = Mesh(cluster.mesh.spatial, cluster.mesh.name)
    count, names = own.device_count, own.names
    if any(link.points for link in cluster.links) or (cluster.topology is None and len(own.axes) > 1) or count == 1:
        return [own]
    pair = names if len(names) == 2 else AXES
    found = [own, Mesh((Axis(names[-1], count),), own.name)]
    found += [Mesh((Axis(pair[0], a), Axis(pair[1], count // a)), own.name) for a in divisors(count) if 1 < a < count]
    by_sizes: dict[tuple[int, ...], Mesh] = {}
    for mesh in found:
        by_sizes.setdefault(tuple(axis.size for axis in mesh.axes), mesh)
    return list(by_sizes.values())


def finer_meshes(mesh: Mesh) -> list[Mesh]:
    """Return the meshes of three axes that divide an axis of a mesh of two."""
    if len(mesh.spatial) != 2:
        return []
    outer, inner = (axis.size for axis in mesh.spatial)
    sizes = [(part, outer // part, inner) for part in divisors(outer)[1:-1]]
    sizes += [(outer, part, inner // part) for part in divisors(inner)[1:-1]]
    return [Mesh(tuple(map(Axis, FINER_AXES, shape)), mesh.name) for shape in dict.fromkeys(sizes)]


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def cuts(rows: int) -> list[int]:
    """Return the numbers of equal parts that a batch may be cut into: powers of two, else the smallest divisors."""
    usual = [parts for parts in divisors(rows) if 1 < parts <= MOST_PARTS and parts & (parts - 1) == 0]
    return usual or [parts for parts in divisors(rows) if 1 < parts <= MOST_PARTS][:4]


def accumulations(mesh: Mesh, rows: int, fixed: LayoutConstraints = LayoutConstraints()) -> Iterator[Layout]:
    """Yield the layouts with the batch in parts, one after the other, on all devices."""
    yield from (Layout(mesh, "accumulate", parts) for parts in _parts(rows, fixed))


def pipelines(mesh: Mesh, rows: int, layers: int, fixed: LayoutConstraints = LayoutConstraints()) -> Iterator[Layout]:
    """
    Yield pipelines whose stages have equally many devices (few devices may be divided unevenly) and one or two chunks
    of layers, with one to eight micro-batches for each stage.

    Fixed decisions are taken as they are, if there are enough layers and devices.
    """
    count = mesh.device_count
    for stages in range(2, min(count, layers, MOST_STAGES) + 1):
        asked = stages == fixed.stages
        equal = count % stages == 0 and is_division(mesh, (count // stages,) * stages)
        if not equal and ((count > _FEW and not asked) or not divisions(mesh, stages)):
            continue
        most = 8 * stages if fixed.micro_batches is None else rows
        least = stages if fixed.micro_batches is None else 2
        for chunks in range(1, min(MOST_CHUNKS, layers // stages) + 1):
            cuts = (n for n in _parts(rows, fixed) if least <= n <= most)
            yield from (Layout(mesh, "pipeline", n, stages, chunks=chunks) for n in cuts)


def duplexes(mesh: Mesh, rows: int, fixed: LayoutConstraints = LayoutConstraints()) -> Iterator[Layout]:
    """Yield the layouts with the batch in parts that take turns, with equally many rows if possible."""
    even = [parts for parts in DUPLEX_PARTS if rows % parts == 0]
    layouts = (Layout(mesh, "duplex", parts) for parts in even or DUPLEX_PARTS[:1] if parts <= rows)
    yield from (layout for layout in layouts if fixed.allows(layout))


def _parts(rows: int, fixed: LayoutConstraints) -> list[int]:
    asked = cuts(rows) if fixed.micro_batches is None else [fixed.micro_batches]
    return [parts for parts in asked if parts > 1]
