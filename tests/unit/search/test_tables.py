"""Operations on cost tables equal their definitions."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from shardwright.passes.search import tables
from shardwright.passes.search.tables import least_regret, regrets, undominated

ALL_SIZES = pytest.mark.parametrize("small", [0, 1 << 16])
"""Compare tables in some columns first, or in all at once."""


def defined_regret(table: NDArray[np.float64], r: int, s: int) -> float:
    """Return the largest excess of row r over row s among the columns that row s allows."""
    return max((high - low for high, low in zip(table[r], table[s], strict=True) if low < math.inf), default=-math.inf)


def some_table(seed: int, rows: int, columns: int) -> NDArray[np.float64]:
    """Return a table with equal rows, equal columns and forbidden entries."""
    generator = np.random.default_rng(seed)
    table = generator.integers(0, 3, (rows, columns)).astype(np.float64)
    table[generator.random((rows, columns)) < 0.3] = np.inf
    table[generator.integers(rows)] = table[0]
    table[:, generator.integers(columns)] = table[:, 0]
    return table


def finite(regret: float) -> float:
    """Return a regret with inf for the large number that stands for it."""
    return math.inf if regret > 1e290 else regret


@ALL_SIZES
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 7), (9, 3), (12, 12), (20, 30)])
def test_regrets_equal_their_definition_and_exceed_their_lower_bounds(
    rows: int, columns: int, small: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tables, "_SMALL", small)
    for seed in range(20):
        table = some_table(seed, rows, columns)
        expected = [defined_regret(table, r, s) for r in range(rows) for s in range(rows)]
        pairs = np.indices((rows, rows)).reshape(2, -1)
        assert list(map(finite, regrets(table, *pairs).tolist())) == expected
        bounds = list(map(finite, least_regret(table).ravel().tolist()))
        assert all(bound <= regret for bound, regret in zip(bounds, expected, strict=True))
        assert bounds == expected or not small


def defined_states(unary: NDArray[np.float64], edges: list[NDArray[np.float64]]) -> list[int]:
    """Return the states that no other state dominates, dropping the last of equal ones first."""
    states = range(len(unary))
    alive = [s for s in states if unary[s] < math.inf and all(table[s].min() < math.inf for table in edges)]
    for loser in alive[::-1]:
        for r in alive:
            total = unary[r] - unary[loser] + sum(defined_regret(table, r, loser) for table in edges)
            if r != loser and total <= 0:
                alive.remove(loser)
                break
    return alive


@ALL_SIZES
def test_undominated_equals_its_definition(small: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "_SMALL", small)
    dropped = 0
    for seed in range(60):
        generator = np.random.default_rng(seed)
        unary = generator.integers(0, 4, 14).astype(np.float64)
        unary[generator.random(14) < 0.1] = np.inf
        edges = [some_table(100 * seed + edge, 14, 12) for edge in range(seed % 3)]
        kept = undominated(unary, *edges, *map(least_regret, edges)).tolist()
        assert kept == defined_states(unary, edges)
        dropped += 14 - len(kept)
    assert dropped > 60
