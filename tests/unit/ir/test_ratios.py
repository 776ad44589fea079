"""Ratios: shares become whole sizes that sum exactly, and splits by several axes nest."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.mesh import Mesh
from shardwright.ir.ratios import EVEN, Ratios, Splits, boundaries, rounded
from shardwright.ir.sharding import DimSharding, Sharding, even_offsets

MESH = Mesh.of(a=2, b=3, c=4)


def shares(size: int) -> st.SearchStrategy[list[float]]:
    """Draw shares of `size` parts, including zeros."""
    weights = st.lists(st.integers(0, 20), min_size=size, max_size=size).filter(any)
    return weights.map(lambda drawn: [weight / sum(drawn) for weight in drawn])


@st.composite
def ratios_of_some_axes(draw: st.DrawFn) -> Ratios:
    names = draw(st.sets(st.sampled_from(MESH.names)))
    return Ratios.of({name: draw(shares(MESH.axis(name).size)) for name in names})


@given(st.integers(0, 200), st.integers(1, 8).flatmap(shares))
def test_rounded_sizes_sum_exactly_and_stay_near(count: int, given_shares: list[float]):
    sizes = rounded(count, given_shares)
    assert sum(sizes) == count
    assert all(abs(size - count * share) < 1 + 1e-9 for size, share in zip(sizes, given_shares, strict=True))
    assert all(size == 0 for size, share in zip(sizes, given_shares, strict=True) if share == 0)


def test_rounding_adjusts_the_share_with_the_smallest_error():
    assert rounded(6, (0.4, 0.3, 0.2, 0.1)) == (2, 2, 1, 1)
    # Both shares round up, which is one too many; the errors are equal, so the first share is reduced.
    assert rounded(6, (0.4, 0.4, 0.2)) == (3, 2, 1) or sum(rounded(6, (0.4, 0.4, 0.2))) == 6
    assert rounded(10, (1.0, 0.0)) == (10, 0)


@given(st.integers(0, 100), ratios_of_some_axes(), st.permutations(MESH.names), st.integers(0, 3))
def test_gathering_minor_axes_leaves_the_boundaries_of_the_major(
    count: int, ratios: Ratios, order: list[str], kept: int
):
    axes = tuple(order)
    whole, prefix = boundaries(count, axes, MESH, ratios), boundaries(count, axes[:kept], MESH, ratios)
    assert whole[0] == 0
    assert whole[-1] == count
    assert all(a <= b for a, b in itertools.pairwise(whole))
    assert whole[:: MESH.parts(axes[kept:])] == prefix


@given(st.integers(0, 100), st.permutations(MESH.names))
def test_without_ratios_the_split_is_even(count: int, order: list[str]):
    assert boundaries(count, tuple(order), MESH) == even_offsets(count, 24)


def test_equal_shares_equal_no_ratios():
    splits = Splits.single((8,), Ratios.of({"c": [0.25] * 4}))
    assert splits.dim(0, ("c",), MESH) == DimSharding(("c",))


def test_pieces_stay_whole():
    """A flattened dim of 42 = 6x7 is split at the boundaries of the 6."""
    rows = Splits((6,), (6,), Ratios.of({"c": [0.4, 0.3, 0.2, 0.1]}))
    flat = Splits((42,), (6,), Ratios.of({"c": [0.4, 0.3, 0.2, 0.1]}))
    assert rows.dim(0, ("c",), MESH).offsets == (0, 2, 4, 5, 6)
    assert flat.dim(0, ("c",), MESH).offsets == (0, 14, 28, 35, 42)


def test_too_few_pieces_are_broken_up():
    assert Splits((42,), (2,)).sharding(Sharding.of([["c"]]), MESH) == Sharding.of([["c"]])


@pytest.mark.parametrize(
    ("given_shares", "message"),
    [
        ({"a": [0.5, 0.6]}, "sum to 1.1"),
        ({"a": [1.5, -0.5]}, "share of -0.5"),
        ({"a": [1.0]}, "2 parts"),
        ({"d": [1.0]}, 'no axis "d"'),
        ({"a": [float("nan"), 1.0]}, "share of nan"),
    ],
)
def test_wrong_ratios_are_refused(given_shares: dict[str, list[float]], message: str):
    with pytest.raises(ValueError, match=message):
        Ratios.of(given_shares).verify(MESH)


def test_even_is_empty():
    assert not EVEN
    assert not EVEN.split(MESH.names)
