"""Shardings: the parts of a value cover it once, even splits nest, and the text form reads back."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.mesh import Mesh
from shardwright.ir.sharding import (
    DimSharding,
    Reduction,
    Sharding,
    dim_sharding,
    even_offsets,
    largest_local_shape,
    local_shape,
    local_slices,
    parse_sharding,
)

MESH = Mesh.of(a=2, b=3, c=2)


@st.composite
def spreads(draw: st.DrawFn) -> tuple[tuple[int, ...], Sharding]:
    """Draw a shape and a sharding of it on MESH, with uneven dims and partial sums."""
    rank = draw(st.integers(0, 3))
    places = draw(st.lists(st.sampled_from([None, "partial", *range(rank)]), min_size=3, max_size=3))
    pairs = list(zip(MESH.names, places, strict=True))
    axes = [tuple(name for name, place in pairs if place == dim) for dim in range(rank)]
    partial = tuple((name, draw(st.sampled_from(Reduction))) for name, place in pairs if place == "partial")
    shape: list[int] = []
    dims: list[DimSharding] = []
    for names in axes:
        parts = MESH.parts(names)
        uneven = bool(names) and draw(st.booleans())
        size = draw(st.integers(0 if uneven else parts, 20))
        cuts = sorted(draw(st.lists(st.integers(0, size), min_size=parts - 1, max_size=parts - 1)))
        shape.append(size)
        dims.append(dim_sharding(names, (0, *cuts, size), size, MESH) if uneven else DimSharding(names))
    return tuple(shape), Sharding(tuple(dims), partial)


@given(spreads())
def test_the_text_form_reads_back(spread: tuple[tuple[int, ...], Sharding]):
    assert parse_sharding(str(spread[1])) == spread[1]


@given(spreads())
def test_the_parts_cover_the_value_once(spread: tuple[tuple[int, ...], Sharding]):
    shape, sharding = spread
    sharding.verify(MESH, shape)
    distinct = {tuple((s.start, s.stop) for s in _slices(shape, sharding, rank)) for rank in _one_of_each(sharding)}
    sizes = [math.prod(b - a for a, b in part) for part in distinct]
    assert sum(sizes) == math.prod(shape)


def _slices(shape: tuple[int, ...], sharding: Sharding, rank: int) -> tuple[slice, ...]:
    return local_slices(shape, sharding, MESH, rank)


def _one_of_each(sharding: Sharding) -> list[int]:
    """Return one rank for each part of the value."""
    others = [name for name in MESH.names if name not in sharding.split_axes]
    return [group[0] for group in MESH.groups(others)]


@given(spreads(), st.integers(0, MESH.device_count - 1))
def test_no_part_is_larger_than_the_largest(spread: tuple[tuple[int, ...], Sharding], rank: int):
    shape, sharding = spread
    largest = largest_local_shape(shape, sharding, MESH)
    assert all(a <= b for a, b in zip(local_shape(shape, sharding, MESH, rank), largest, strict=True))


@given(st.integers(0, 200), st.integers(1, 12), st.integers(1, 12))
def test_gathering_the_minor_axis_leaves_the_majors_boundaries(size: int, major: int, minor: int):
    assert even_offsets(size, major * minor)[::minor] == even_offsets(size, major)


@given(st.integers(0, 200), st.integers(1, 12))
def test_even_parts_differ_by_one_at_most(size: int, parts: int):
    offsets = even_offsets(size, parts)
    sizes = {b - a for a, b in itertools.pairwise(offsets)}
    assert max(sizes) - min(sizes) <= 1


def test_an_even_split_has_one_form():
    assert dim_sharding(("a",), (0, 3, 6), 6, MESH) == DimSharding(("a",))
    assert dim_sharding(("a",), (0, 2, 6), 6, MESH) == DimSharding(("a",), (0, 2, 6))


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ('[{"z"}]', (4,), 'has no axis "z"; its axes are "a"=2, "b"=3, "c"=2'),
        ('[{"a"}, {"a"}]', (4, 4), 'uses axis "a" 2 times, expected once'),
        ('[{"a"}], unreduced={"a"}', (4,), 'uses axis "a" 2 times, expected once'),
        ('[{"a"}]', (4, 4), "has 1 dims, the value has 2"),
        ('[{"a", "b"}]', (5,), "splits dim 0 of size 5 evenly into 6 parts; an even split needs a size of at least 6"),
        ('[{"a"}], offsets={0: [0, 4]}', (4,), r"offsets \[0, 4\] of dim 0 must be 3 ascending numbers from 0"),
        ('[{"a"}], offsets={0: [0, 3, 5]}', (4,), "must be 3 ascending numbers from 0 to the dim's size 4"),
        ('[{"b"}], offsets={0: [0, 3, 2, 4]}', (4,), "must be 4 ascending numbers"),
    ],
)
def test_a_sharding_that_does_not_fit_is_refused(text: str, shape: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        parse_sharding(text).verify(MESH, shape)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[", "[{}", '[{"a}]', "[{a}]", "[{}] x", "[{},]", "[{}], uneven={}", "[{}], offsets={0}"),
        *('[{"class"}]', "[{}], [{}]", '[{"a"}], offsets={1: [0, 2, 4]}'),
    ],
)
def test_invalid_text_of_a_sharding_is_refused(text: str):
    with pytest.raises(ValueError, match=r"sharding '.*expected"):
        parse_sharding(text)


def test_a_split_with_empty_parts_keeps_its_offsets():
    assert even_offsets(1, 2) == (0, 0, 1)
    assert dim_sharding(("a",), (0, 0, 1), 1, MESH) == DimSharding(("a",), (0, 0, 1))


def test_empty_parts_need_explicit_offsets():
    sharding = parse_sharding('[{"b"}], offsets={0: [0, 2, 2, 2]}')
    sharding.verify(MESH, (2,))
    assert [local_shape((2,), sharding, MESH, rank) for rank in (0, 2, 4)] == [(2,), (0,), (0,)]
