"""Sub-meshes of consecutive ranks, and divisions of a mesh among stages."""

import pytest

from shardwright.ir.cluster import Cluster, Device, Link
from shardwright.ir.mesh import Mesh
from shardwright.ir.submesh import divisions, is_division, subcluster, submesh

GRID = Mesh.of(node=3, gpu=4)


@pytest.mark.parametrize(
    ("first", "count", "axes"),
    [
        (0, 12, {"node": 3, "gpu": 4}),
        (4, 8, {"node": 2, "gpu": 4}),
        (4, 4, {"gpu": 4}),
        (6, 2, {"gpu": 2}),
        (11, 1, {"gpu": 1}),
    ],
)
def test_whole_rows_and_parts_of_a_row_are_meshes(first: int, count: int, axes: dict[str, int]):
    found = submesh(GRID, first, count, "part")
    assert found is not None
    assert (found.name, {axis.name: axis.size for axis in found.axes}) == ("part", axes)


@pytest.mark.parametrize(("first", "count"), [(2, 4), (0, 6), (10, 4), (0, 0), (-1, 2)])
def test_other_ranks_are_not_a_submesh(first: int, count: int):
    assert submesh(GRID, first, count, "part") is None


def test_divisions_are_as_equal_as_the_mesh_allows():
    assert divisions(Mesh.of(gpu=4), 2) == [(2, 2)]
    assert divisions(Mesh.of(gpu=5), 2) == [(3, 2), (2, 3)]
    assert divisions(Mesh.of(node=2, gpu=4), 3) == [(1, 3, 4), (2, 2, 4), (3, 1, 4), (4, 1, 3), (4, 2, 2), (4, 3, 1)]
    assert divisions(Mesh.of(gpu=2), 3) == []


def test_a_division_must_have_all_ranks():
    assert is_division(GRID, (4, 8))
    assert not is_division(GRID, (4, 4))
    assert not is_division(GRID, (2, 4, 6))


def test_a_part_of_a_cluster_keeps_its_devices_and_links():
    kinds = tuple(Device(name, (("float32", 1.0),), 1.0, 1.0) for name in ("slow", "fast"))
    links = (Link("node", 1.0, 2.0), Link("gpu", 3.0, 4.0))
    cluster = Cluster("c", GRID, kinds, (0,) * 4 + (1,) * 8, links)
    mesh = submesh(GRID, 2, 2, "stage1")
    assert mesh is not None
    found = subcluster(cluster, mesh, (2, 3))
    assert (found.name, found.placement, found.links) == ("c.stage1", (0, 0), (links[1],))


def test_an_axis_that_the_cluster_does_not_have_takes_its_slowest_link():
    kinds = (Device("kind", (("float32", 1.0),), 1.0, 1.0),)
    cluster = Cluster("c", GRID, kinds, (0,) * 12, (Link("node", 1.0, 2.0), Link("gpu", 3.0, 4.0)))
    part = subcluster(cluster, Mesh.of(outer=2, gpu=4), range(8))
    assert part.links == (Link("gpu", 3.0, 4.0), Link("outer", 3.0, 4.0))
