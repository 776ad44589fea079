"""Operations on cost tables equal their definitions."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from shardwright.passes.search import tables
from shardwright.passes.search.tables import regret


def defined_regret(table: NDArray[np.float64], r: int, s: int) -> float:
    """Return the largest excess of row r over row s among the columns that row s allows."""
    return max((high - low for high, low in zip(table[r], table[s], strict=True) if low < math.inf), default=-math.inf)


@pytest.mark.parametrize("small", [0, 1 << 16])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 7), (9, 3), (12, 12)])
def test_regret_is_the_largest_excess_where_the_other_row_is_allowed(
    rows: int, columns: int, small: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tables, "_SMALL", small)
    for seed in range(20):
        generator = np.random.default_rng(seed)
        table = generator.integers(0, 3, (rows, columns)).astype(np.float64)
        table[generator.random((rows, columns)) < 0.3] = np.inf
        table[generator.integers(rows)] = table[0]
        table[:, generator.integers(columns)] = table[:, 0]
        expected = [[defined_regret(table, r, s) for s in range(rows)] for r in range(rows)]
        assert regret(table).tolist() == expected
