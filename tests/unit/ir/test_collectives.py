"""Steps between shardings: exactly the proposed steps are recognised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.collectives import CollectiveKind, find_step, single_step, steps_from
from shardwright.ir.mesh import Axis, AxisKind, Mesh
from shardwright.ir.sharding import Reduction, Sharding, parse_sharding

MESH = Mesh.of(node=2, gpu=2, lane=2)

GATHER, SCATTER, TO_ALL = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL
REDUCE, SLICE, PARTIAL = CollectiveKind.ALL_REDUCE, CollectiveKind.SLICE, CollectiveKind.PARTIAL


@st.composite
def even_shardings(draw: st.DrawFn) -> Sharding:
    """Draw an even sharding of a value of up to three dims; each dim lists its axes in an order of the mesh."""
    rank = draw(st.integers(1, 3))
    places = draw(st.lists(st.sampled_from([None, *Reduction, *range(rank)]), min_size=3, max_size=3))
    pairs = list(zip(MESH.names, places, strict=True))
    split = [[name for name, place in pairs if place == dim] for dim in range(rank)]
    dims = [draw(st.sampled_from(MESH.orders(axes))) for axes in split]
    return Sharding.of(dims, {name: place for name, place in pairs if isinstance(place, Reduction)})


@given(even_shardings())
def test_every_step_is_found_by_its_source_and_target(source: Sharding):
    for step in steps_from(source, MESH):
        assert step.source == source
        assert find_step(step.kind, source, step.target, MESH) == step
        found = single_step(source, step.target, MESH)
        assert found is not None
        assert found.target == step.target


@given(even_shardings())
def test_steps_lead_to_valid_shardings(source: Sharding):
    for step in steps_from(source, MESH):
        step.target.verify(MESH, [8] * len(source.dims))
        assert step.target != source
        assert all(dim.axes in MESH.orders(dim.axes) for dim in step.target.dims)


@pytest.mark.parametrize("axes", [("gpu",), ("node", "gpu"), ("node", "lane"), ("node", "gpu", "lane")])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_replicated_value_is_one_step_from_a_split_of_one_dim(axes: tuple[str, ...], dim: int):
    target = Sharding.of([axes if i == dim else () for i in range(2)])
    whole = Sharding.replicated(2)
    there, back = single_step(whole, target, MESH), single_step(target, whole, MESH)
    assert there is not None
    assert back is not None
    assert (there.kind, back.kind) == (SLICE, GATHER)


@pytest.mark.parametrize(
    ("source", "target", "kind", "axes"),
    [
        ('[{"gpu"}, {}]', "[{}, {}]", GATHER, ("gpu",)),
        ('[{"node", "gpu"}, {}]', '[{"node"}, {}]', GATHER, ("gpu",)),
        ('[{"node", "gpu"}, {}]', "[{}, {}]", GATHER, ("node", "gpu")),
        ('[{"gpu"}, {}]', '[{}, {"gpu"}]', TO_ALL, ("gpu",)),
        ('[{"node", "gpu"}, {}]', '[{"node"}, {"gpu"}]', TO_ALL, ("gpu",)),
        ("[{}, {}]", '[{}, {"node", "gpu"}]', SLICE, ("node", "gpu")),
        ('[{}, {}], unreduced={"gpu"}', "[{}, {}]", REDUCE, ("gpu",)),
        ('[{}, {}], unreduced={"node", "gpu"}', '[{}, {}], unreduced={"node"}', REDUCE, ("gpu",)),
        ('[{}, {}], unreduced={"gpu" max}', '[{}, {"gpu"}]', SCATTER, ("gpu",)),
        ('[{"gpu"}, {}]', '[{"gpu"}, {}], unreduced={"node"}', PARTIAL, ("node",)),
        ('[{"gpu"}, {}], offsets={0: [0, 1, 8]}', "[{}, {}]", GATHER, ("gpu",)),
        ('[{"gpu"}, {}], offsets={0: [0, 1, 8]}', '[{}, {"gpu"}], offsets={1: [0, 5, 8]}', TO_ALL, ("gpu",)),
        ('[{"gpu"}, {}], offsets={0: [0, 1, 8]}', '[{"gpu"}, {}]', TO_ALL, ("gpu",)),
        ('[{"node", "gpu"}], offsets={0: [0, 1, 4, 5, 8]}', '[{"node", "gpu"}]', TO_ALL, ("gpu",)),
        ('[{"node", "gpu"}], offsets={0: [0, 1, 3, 5, 8]}', '[{"node", "gpu"}]', TO_ALL, ("node", "gpu")),
        ('[{"node", "gpu"}], offsets={0: [0, 1, 4, 5, 8]}', '[{"node"}]', GATHER, ("gpu",)),
        ('[{"node"}], offsets={0: [0, 3, 8]}', '[{"node", "gpu"}], offsets={0: [0, 1, 3, 5, 8]}', SLICE, ("gpu",)),
    ],
)
def test_one_collective_changes_the_sharding(source: str, target: str, kind: CollectiveKind, axes: tuple[str, ...]):
    step = single_step(parse_sharding(source), parse_sharding(target), MESH)
    assert step is not None
    assert (step.kind, step.axes) == (kind, axes)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ('[{"node", "gpu"}, {}]', '[{"gpu"}, {}]'),  # only the minor axes can be gathered
        ('[{"node"}, {}]', '[{"gpu"}, {}]'),  # another axis
        ('[{"node"}, {"gpu"}]', '[{"gpu"}, {"node"}]'),
        ('[{}, {}], unreduced={"node"}', '[{}, {}], unreduced={"gpu"}'),
        ('[{}, {}], unreduced={"node", "gpu" max}', "[{}, {}]"),  # a sum and a maximum at once
        ('[{}, {}], unreduced={"gpu"}', '[{"node"}, {}]'),  # scattered over other axes than those reduced
        ("[{}, {}]", '[{}, {}], unreduced={"gpu" max}'),  # zeros are not an identity of a maximum
        ('[{"gpu", "node"}, {}], offsets={0: [0, 1, 2, 3, 8]}', '[{"gpu"}, {}]'),  # even, and not where the parts end
        ('[{"gpu"}, {}], offsets={0: [0, 1, 8]}', '[{"gpu"}, {}], unreduced={"node"}'),
        ("[{}, {}]", "[{}]"),
    ],
)
def test_no_single_collective_changes_the_sharding(source: str, target: str):
    assert single_step(parse_sharding(source), parse_sharding(target), MESH) is None


def test_collectives_without_messages_are_local():
    assert [kind for kind in CollectiveKind if kind.is_local] == [SLICE, PARTIAL]


def test_no_step_uses_a_temporal_axis():
    mesh = Mesh((Axis("gpu", 2), Axis("micro", 2, AxisKind.TEMPORAL)))
    assert {axis for step in steps_from(Sharding.replicated(1), mesh) for axis in step.axes} == {"gpu"}
