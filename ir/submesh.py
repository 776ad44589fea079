"""Sub-meshes: consecutive ranks of a mesh that fill whole rows, or a part of one row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from .cluster import Cluster, Link
from .mesh import Axis, Mesh

MOST = 32
"""Upper limit of the divisions of a mesh into unequal parts that are considered."""


def submesh(mesh: Mesh, first: int, count: int, name: str) -> Mesh | None:
    """
    Return the mesh `name` of the ranks `first` .. `first + count - 1` of `mesh`, or None if they form no mesh.

    It keeps the names of its axes; axes that are minor to the axis that it cuts keep their sizes.
    """
    sizes = [axis.size for axis in mesh.spatial]
    if count < 1 or first < 0 or first + count > mesh.device_count:
        return None
    for index in reversed(range(len(sizes))):
        row = math.prod(sizes[index + 1 :])
        rows, rest = divmod(count, row)
        if not rest and first % row == 0 and first // row % sizes[index] + rows <= sizes[index]:
            cut = Axis(mesh.spatial[index].name, rows)
            return Mesh((cut, *mesh.spatial[index + 1 :]), name)
    return None


def subcluster(cluster: Cluster, mesh: Mesh, ranks: Sequence[int]) -> Cluster:
    """
    Return some ranks of a cluster, with their devices and links, as a cluster on another mesh.

    Times that were measured along an axis hold for a part of the axis only in a cluster without a topology.
    """
    topology = cluster.topology.part(ranks) if cluster.topology is not None else None
    return replace(
        cluster,
        name=f"{cluster.name}.{mesh.name}",
        mesh=mesh,
        placement=tuple(cluster.placement[rank] for rank in ranks),
        links=_links_on(cluster, mesh),
        topology=topology,
    )


def _links_on(cluster: Cluster, mesh: Mesh) -> tuple[Link, ...]:
    """Return the kept links, and the slowest link for each new axis if the cluster has no topology."""
    links = kept_links(cluster, mesh)
    if cluster.topology is not None:
        return links
    slowest = max(cluster.links, key=lambda link: link.beta)
    known = {link.axis for link in links}
    return links + tuple(replace(slowest, axis=axis.name, points=()) for axis in mesh.spatial if axis.name not in known)


def kept_links(cluster: Cluster, mesh: Mesh) -> tuple[Link, ...]:
    """
    Return the links of `cluster` that hold on another mesh of its devices: links of axes that keep their sizes.

    Without a topology a single axis may have another size; its measured times are dropped.
    """
    sizes = {axis.name: axis.size for axis in cluster.mesh.spatial}
    here = {axis.name: axis.size for axis in mesh.spatial}
    links: list[Link] = []
    for link in cluster.links:
        if all(here.get(axis) == sizes[axis] for axis in link.axis.split("-")):
            links.append(link)
        elif cluster.topology is None and link.axis in here:
            links.append(replace(link, points=()))
    return tuple(links)


def divisions(mesh: Mesh, parts: int) -> list[tuple[int, ...]]:
    """
    Return the ways to divide all ranks, in order, among `parts` meshes, as numbers of ranks.

    The parts are equal if possible, or differ by one. If rows of the mesh forbid both, a few divisions with sizes near
    the mean are returned.
    """
    low, more = divmod(mesh.device_count, parts)
    places = itertools.combinations(range(parts), more)
    nearly = (tuple(low + (index in chosen) for index in range(parts)) for chosen in places)
    even = [counts for counts in nearly if is_division(mesh, counts)]
    return even or sorted(itertools.islice(_any(mesh, 0, parts), MOST))


def is_division(mesh: Mesh, counts: Sequence[int]) -> bool:
    """Whether consecutive groups of `counts` ranks are meshes, and cover all ranks."""
    pairs = zip(itertools.accumulate(counts, initial=0), counts, strict=False)
    return sum(counts) == mesh.device_count and all(submesh(mesh, *pair, "part") is not None for pair in pairs)


def _any(mesh: Mesh, first: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield the divisions of the ranks from `first` on, by the distance of the first part's size from the mean."""
    left = mesh.device_count - first
    if parts == 1:
        if submesh(mesh, first, left, "part") is not None:
            yield (left,)
        return
    for count in sorted(range(1, left - parts + 2), key=lambda count: abs(count - left / parts)):
        if submesh(mesh, first, count, "part") is not None:
            yield from ((count, *rest) for rest in _any(mesh, first + count, parts - 1))


def on_mesh(cluster: Cluster, mesh: Mesh, name: str | None = None) -> Cluster:
    """
    Return the cluster's devices and links on another mesh, for checks and what-ifs, with another name if one is given.

    Devices and their hosts are repeated or cut to the number of ranks. Links stay where axes do; if the cluster has no
    hosts, a new axis takes the slowest link.
    """
    topology = cluster.topology.resized(mesh.device_count) if cluster.topology is not None else None
    links = _links_on(cluster, mesh)
    placement = tuple(cluster.placement[rank % len(cluster.placement)] for rank in range(mesh.device_count))
    return replace(cluster, name=name or cluster.name, mesh=mesh, placement=placement, links=links, topology=topology)
