"""Repeated ranges: which are found, where they begin, and that they occur in the sequence."""

import random
from collections.abc import Sequence

import pytest

from shardwright.lowering.codegen.repeats import repeated_ranges

LAYER = [*range(20)]


def found(
    items: Sequence[int | None], ends: Sequence[int] | None = None, begins: Sequence[bool] | None = None
) -> list[list[tuple[int, int]]]:
    """Return the repeated ranges; ranges count as equal if their items are equal."""
    ends, begins = ends or [len(items)] * len(items), begins or [False] * len(items)
    return [[(each.start, each.stop) for each in ranges] for ranges in repeated_ranges(items, begins, ends, list)]


def test_successive_layers_are_found():
    assert found([100, *LAYER, *LAYER, *LAYER, 101]) == [[(1, 21), (21, 41), (41, 61)]]


def test_a_layer_that_something_interrupts_is_called_in_parts():
    cut = [*LAYER[:9], 100, *LAYER[9:]]
    items = [*LAYER * 3, *cut * 3]
    begins = [item == 0 for item in items]
    starts = [at for at, begin in enumerate(begins) if begin]
    ends = [next((start for start in starts if start > at), len(items)) for at in range(len(items))]
    assert sorted(found(items, ends, begins)) == [
        [(0, 20), (20, 40), (40, 60)],
        [(60, 81), (81, 102), (102, 123)],
    ]
    items = [None if item == 100 else item for item in items]  # the remaining ranges are too short
    assert found(items, ends, begins) == [[(0, 20), (20, 40), (40, 60)]]


def test_ranges_too_short_for_a_function_are_not_found():
    assert found([1, 2, 3, 9, 1, 2, 3]) == []
    assert found([]) == []
    assert found([None] * 60) == []


def test_ranges_begin_where_layers_do():
    items = LAYER * 4
    begins = [at % 20 == 7 for at in range(len(items))]
    ends = [min(at + 20 - (at - 7) % 20, len(items)) for at in range(len(items))]
    assert found(items, ends, begins) == [[(7, 27), (27, 47), (47, 67)]]


def test_ranges_that_are_not_fully_equal_are_separated():
    items = LAYER * 6

    def alike(ranges: Sequence[range]) -> Sequence[range]:
        return [each for each in ranges if each.start % 40 == ranges[0].start % 40]

    begins, ends = [at % 20 == 0 for at in range(120)], [at - at % 20 + 20 for at in range(120)]
    ranges = repeated_ranges(items, begins, ends, alike)
    assert [[each.start for each in equal] for equal in ranges] == [[0, 40, 80], [20, 60, 100]]


@pytest.mark.parametrize("seed", range(20))
def test_found_ranges_are_equal_and_disjoint(seed: int):
    draw = random.Random(seed)
    blocks = [[draw.randrange(5) for _ in range(draw.randrange(4, 30))] for _ in range(4)]
    items = [item for _ in range(30) for item in draw.choice(blocks)]
    taken: set[int] = set()
    for ranges in repeated_ranges(items, [False] * len(items), [len(items)] * len(items), list):
        assert len({tuple(items[at] for at in each) for each in ranges}) == 1
        for each in ranges:
            assert taken.isdisjoint(each)
            taken.update(each)
