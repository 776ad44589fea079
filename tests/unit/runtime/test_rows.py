"""Rows of the library's all-gather and reduce-scatter: results are right, and large operands are not copied."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from shardwright.ir.collectives import ALONE_FROM_BYTES
from shardwright.runtime.groups import RankGroup
from shardwright.runtime.pieces import Sizes
from shardwright.runtime.rows import RowLayout, Rows

Operand = tuple[tuple[int, ...], int, Sizes]
"""Full shape, split dim, and sizes of its parts."""

LARGE: Operand = ((3 * 64, ALONE_FROM_BYTES // 256), 0, (64, 64, 64))
LARGE_INNER: Operand = ((ALONE_FROM_BYTES // 256, 3 * 64), 1, (64, 64, 64))
SMALL: Operand = ((6, 4), 0, (2, 2, 2))
INNER: Operand = ((5, 9), 1, (3, 3, 3))
LEADING_ONE: Operand = ((1, 6, 2), 1, (2, 2, 2))
UNEVEN: Operand = ((7, 3), 0, (4, 0, 3))
UNEVEN_INNER: Operand = ((2, 5), 1, (1, 3, 1))
EMPTY: Operand = ((0, 4), 0, (0, 0, 0))

BUCKETS = {
    "one in blocks": [LARGE],
    "one along an inner dim": [INNER],
    "one of uneven parts": [UNEVEN],
    "small ones in blocks": [SMALL, LEADING_ONE, SMALL],
    "small ones of any kind": [SMALL, UNEVEN, INNER, UNEVEN_INNER, EMPTY],
    "equal parts along any dim": [SMALL, INNER, EMPTY],
    "large ones among small ones": [SMALL, LARGE, INNER, LARGE_INNER],
}


def layouts(bucket: Sequence[Operand], ranks: tuple[int, ...]) -> list[RowLayout]:
    """Return the layout of each part."""
    shapes, dims, sizes = zip(*bucket, strict=True)
    groups = [RankGroup(("x",), ranks, part) for part in range(3)]
    return [RowLayout(group, shapes, dims, sizes, 4) for group in groups]


def in_wire_order(ranks: tuple[int, ...], made: Sequence[Sequence[Rows]], index: int) -> list[Rows]:
    """Return the rows of call `index` on all ranks, in the order of the library."""
    return [each[index] for _, each in sorted(zip(ranks, made, strict=True), key=lambda pair: pair[0])]


@pytest.mark.parametrize("ranks", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("name", BUCKETS)
def test_all_ranks_gather_the_full_values(name: str, ranks: tuple[int, ...]):
    bucket = BUCKETS[name]
    whole = [torch.rand(shape) for shape, _, _ in bucket]
    parts = [w.split(sizes, dim) for w, (_, dim, sizes) in zip(whole, bucket, strict=True)]
    places = layouts(bucket, ranks)
    made = [place.to_gather([each[part] for each in parts]) for part, place in enumerate(places)]
    for index, rows in enumerate(made[0]):
        sent = torch.cat([each.sent for each in in_wire_order(ranks, made, index)])
        assert sent.numel() == rows.received.numel()
        for each in made:
            each[index].received.copy_(sent)
    for place, mine in zip(places, made, strict=True):
        found = place.gathered(mine)
        assert all(map(torch.equal, found, whole))
        assert all(each.is_contiguous() for each in found)


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("ranks", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("name", BUCKETS)
def test_each_rank_scatters_its_part(name: str, ranks: tuple[int, ...], permuted: bool):
    bucket = BUCKETS[name]
    whole = [torch.rand(shape) for shape, _, _ in bucket]
    if permuted:
        whole = [each.transpose(0, 1).contiguous().transpose(0, 1) for each in whole]
    places = layouts(bucket, ranks)
    made = [place.to_scatter(whole) for place in places]
    for index in range(len(made[0])):
        for row, rows in enumerate(in_wire_order(ranks, made, index)):
            rows.received.copy_(rows.sent.view(3, rows.length)[row])
    for part, (place, mine) in enumerate(zip(places, made, strict=True)):
        expected = [w.split(sizes, dim)[part] for w, (_, dim, sizes) in zip(whole, bucket, strict=True)]
        assert all(map(torch.equal, place.scattered(mine), expected))


def test_large_tensors_whose_parts_are_blocks_are_not_copied():
    bucket = [SMALL, LARGE]
    place = layouts(bucket, (0, 1, 2))[0]
    small, large = (torch.rand(shape) for shape, _, _ in bucket)
    sent = {each.members: each.sent.data_ptr() for each in place.to_scatter([small, large])}
    assert sent[1,] == large.data_ptr()
    assert sent[0,] == small.data_ptr()
    made = place.to_gather([small[:2], large[:64]])
    assert {each.sent.data_ptr() for each in made} == {small.data_ptr(), large.data_ptr()}
    received = {each.received.data_ptr() for each in made}
    assert received == {each.data_ptr() for each in place.gathered(made)}
