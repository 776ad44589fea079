"""Parts of the batch on one rank."""

import pytest
import torch

from shardwright.runtime.pieces import Sums, part_of


@pytest.mark.parametrize("parts", [1, 2, 3, (2, 0, 5), (4, 3)])
@pytest.mark.parametrize("dim", [0, 1])
def test_parts_make_up_the_whole(parts: int | tuple[int, ...], dim: int):
    x = torch.arange(49).reshape(7, 7)
    count = parts if isinstance(parts, int) else len(parts)
    found = [part_of(x, dim, part, parts) for part in range(count)]
    assert torch.equal(torch.cat(found, dim), x)
    assert all(part.is_contiguous() for part in found)


def test_parts_are_reduced_in_place_or_kept():
    sums = Sums()
    first = [torch.tensor([1.0, 5.0]) for _ in range(4)]
    for values in (first, [torch.tensor([3.0, 2.0]) for _ in range(4)]):
        sums.next_part()
        for value, how in zip(values, ("sum", "max", "min", "list"), strict=True):
            sums.add(value, how=how)
    totals = sums.totals()
    for total, own, expected in zip(totals[:3], first, ([4.0, 7.0], [3.0, 5.0], [1.0, 2.0]), strict=False):
        assert total is own
        assert own.tolist() == expected
    assert [part.tolist() for part in totals[3]] == [[1.0, 5.0], [3.0, 2.0]]
