"""Meshes: ranks, coordinates and groups agree, and invalid meshes are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.mesh import Axis, AxisKind, Mesh, parse_mesh

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)
meshes = sizes.map(lambda each: Mesh(tuple(Axis(f"a{i}", size) for i, size in enumerate(each))))

NODES = Mesh.of(node=2, gpu=3)


@given(meshes, st.data())
def test_ranks_and_coordinates_correspond(mesh: Mesh, data: st.DataObject):
    rank = data.draw(st.integers(0, mesh.device_count - 1))
    assert mesh.rank(mesh.coordinates(rank)) == rank
    assert mesh.part(rank, mesh.names) == rank


@given(meshes, st.data())
def test_every_rank_is_in_one_group(mesh: Mesh, data: st.DataObject):
    names = data.draw(st.lists(st.sampled_from(mesh.names), unique=True))
    members = [rank for group in mesh.groups(names) for rank in group]
    assert sorted(members) == list(range(mesh.device_count))
    assert {len(group) for group in mesh.groups(names)} == {mesh.parts(names)}


@given(meshes, st.data())
def test_a_group_lists_its_ranks_in_the_order_of_their_parts(mesh: Mesh, data: st.DataObject):
    names = data.draw(st.lists(st.sampled_from(mesh.names), unique=True))
    rank = data.draw(st.integers(0, mesh.device_count - 1))
    assert [mesh.part(member, names) for member in mesh.group(rank, names)] == list(range(mesh.parts(names)))


def test_the_last_axis_varies_fastest():
    assert NODES.groups(["gpu"]) == ((0, 1, 2), (3, 4, 5))
    assert NODES.groups(["node"]) == ((0, 3), (1, 4), (2, 5))


def test_a_temporal_axis_adds_no_ranks():
    mesh = Mesh((Axis("gpu", 2), Axis("micro", 4, AxisKind.TEMPORAL)))
    assert mesh.device_count == 2
    assert mesh.coordinates(1) == {"gpu": 1, "micro": 0}
    assert str(mesh) == '<["gpu"=2, "micro"=4 temporal]>'


def test_axes_are_sorted_major_to_minor():
    assert NODES.in_order(["gpu", "node"]) == ("node", "gpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dp=2,tp=4", Mesh.of(dp=2, tp=4)),
        (" dp = 2 , tp = 4 ", Mesh.of(dp=2, tp=4)),
        ("2x4", Mesh.of(a0=2, a1=4)),
        ("8", Mesh.of(a0=8)),
    ],
)
def test_meshes_are_parsed_from_a_command_line(text: str, expected: Mesh):
    assert parse_mesh(text) == expected


@pytest.mark.parametrize("text", ["", "dp", "dp=", "2x", "dp=two", "dp=2,tp", "=2", "0x2", "dp=2,dp=4"])
def test_invalid_text_of_a_mesh_is_refused(text: str):
    with pytest.raises(ValueError, match=r"mesh"):
        parse_mesh(text)


def test_errors_list_the_axes_and_sizes():
    with pytest.raises(ValueError, match='mesh @mesh has no axis "gpus"; its axes are "node"=2, "gpu"=3'):
        NODES.axis("gpus")
    with pytest.raises(ValueError, match="rank 6 is outside mesh @mesh of 6 devices"):
        NODES.coordinates(6)
    for size in (2.0, True):
        with pytest.raises(ValueError, match=f'mesh axis "other" has size {size}, expected a whole number'):
            Axis("other", size)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match='mesh axis "gpu" has size 0, expected at least 1'):
        Mesh.of(gpu=0)


def test_time_adds_axes_and_no_devices():
    timed = Mesh.of(gpu=2).over(micro=4, half=2)
    assert str(timed) == '<["micro"=4 temporal, "half"=2 temporal, "gpu"=2]>'
    assert timed.device_count == 2


def test_three_axes_may_split_a_dim_in_a_cyclic_order():
    cube = Mesh.of(x=2, y=2, z=2)
    assert cube.orders(["z", "x"]) == (("x", "z"), ("z", "x"))
    assert cube.orders(["y", "x"]) == (("x", "y"),)
    assert cube.orders(["z", "y", "x"]) == (("x", "y", "z"),)
    assert NODES.orders(NODES.names) == (NODES.names,)


def test_axes_are_merged_in_their_order():
    over_time = Mesh((*Mesh.of(x=2, y=2, z=2).axes, Axis("micro", 4, AxisKind.TEMPORAL)))
    assert over_time.merged(("x", "y"), ["micro"]) == ("x", "y", "micro")
    assert over_time.merged(("z", "x"), ["micro"]) == ("z", "micro", "x")
    assert over_time.merged(("z", "x"), []) == ("z", "x")
