"""Lookups in a part of a dim: the runtime's functions equal their definitions on the full dim."""

from typing import Any, NamedTuple

import pytest
import torch

from shardwright.lowering.fused import indexed_ops
from shardwright.runtime import indexed

PARTS = ((0, 3, 7), (3, 4, 7), (4, 7, 7), (0, 7, 7))
"""Start, stop and size: three parts of unequal sizes, and the full dim."""


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def places(*shape: int, low: int = 0) -> torch.Tensor:
    """Return indices of a dim of 7."""
    return torch.randint(low, 7, shape, generator=torch.Generator().manual_seed(1))


LABELS = torch.tensor([0, 6, 3, 2, 3, -100])


class Held(NamedTuple):
    """A tensor that is split along `dim`, whose size is 7."""

    whole: torch.Tensor
    dim: int

    def part(self, part: tuple[int, int, int]) -> torch.Tensor:
        return self.whole.narrow(self.dim, part[0], part[1] - part[0]).clone()


ROWS, COLUMNS, CLASSES = Held(numbers(7, 4), 0), Held(numbers(6, 7), 1), Held(numbers(7).exp(), 0)

CASES: dict[str, list[tuple[Any, ...]]] = {
    "embedding_part": [(ROWS, places(4, 5), 2)],
    "embedding_dense_backward_part": [
        (numbers(4, 5, 2), places(4, 5), 7, -1, False),
        (numbers(20, 2), places(20), 7, 3, True),
    ],
    "gather_part": [(COLUMNS, 1, places(6, 4)), (Held(numbers(6, 7, 5), 1), -2, places(6, 4, 5))],
    "scatter_value_part": [(ROWS, 0, places(1, 4), 2.5), (COLUMNS, -1, places(6, 1), 0.0)],
    "scatter_src_part": [(COLUMNS, 1, places(6, 1), numbers(6, 4))],
    "scatter_add_part": [(COLUMNS, 1, places(6, 9), numbers(6, 9)), (ROWS, 0, places(9, 2), numbers(10, 4))],
    "index_select_part": [(COLUMNS, 1, places(9)), (ROWS, 0, places())],
    "index_add_part": [(COLUMNS, -1, places(9), numbers(6, 9))],
    "index_tensor_part": [(ROWS, [places(4, 5, low=-7)])],
    "index_put_part": [
        (ROWS, [places(9, low=-7)], numbers(9, 4), True),
        (ROWS, [places(9, low=-7)], numbers(1), False),
    ],
    "nll_loss_forward_part": [
        (COLUMNS, LABELS, None, 2, -100),
        (COLUMNS, LABELS, CLASSES, 0, -100),
        (COLUMNS, LABELS.clamp(min=0), None, 2, 3),
    ],
    "nll_loss_backward_part": [
        (numbers(1)[0], COLUMNS, LABELS, None, 2, -100, numbers(1)[0]),
        (numbers(6), COLUMNS, LABELS.clamp(min=0), CLASSES, 0, 3, numbers(1)[0]),
    ],
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", CASES)
def test_a_part_equals_its_definition(name: str, part: tuple[int, int, int]):
    for case in CASES[name]:
        arguments = [each.part(part) if isinstance(each, Held) else each for each in case]
        before = [each.clone() for each in arguments if isinstance(each, torch.Tensor)]
        found = getattr(indexed, name)(*arguments, part=part)
        torch.testing.assert_close(found, getattr(indexed_ops, name)(*arguments, part=part))
        assert all(map(torch.equal, before, (each for each in arguments if isinstance(each, torch.Tensor))))


def test_every_function_is_compared():
    assert set(CASES) == set(indexed_ops.FUNCTIONS)
    assert set(CASES) == {name for name in vars(indexed) if name.endswith("_part")}


@pytest.mark.parametrize("index", [-1, 7])
def test_an_index_out_of_range_is_an_error(index: int):
    with pytest.raises(RuntimeError, match="an index is not in the range of 0 to 6"):
        indexed.embedding_part(numbers(3, 2), torch.tensor([0, index]), part=(0, 3, 7))
