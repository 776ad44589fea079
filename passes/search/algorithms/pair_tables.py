"""Tables of edges in whole units, reduced in size, for an integer program (see `ilp_model.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Units = NDArray[np.int64]

FORBIDDEN = -1
"""The marker of a forbidden choice, in place of units."""

_HIGH = 1 << 60


@dataclass(frozen=True)
class PairTable:
    """
    The table of an edge, with equal rows merged and equal columns merged.

    Args:
        costs: costs in units, minus `of_rows` and `of_columns`.
        taken: bytes, by constraint.
        row_of, column_of: number of the row or column of each state.
        of_rows, of_columns: minimum of each state's row, and of its column after `of_rows` is subtracted.
    """

    costs: Units
    taken: tuple[Units, ...]
    row_of: Units
    column_of: Units
    of_rows: Units
    of_columns: Units

    @classmethod
    def of(cls, costs: Units, taken: tuple[Units, ...]) -> PairTable:
        """Return the table of an edge with these costs and bytes."""
        allowed = costs != FORBIDDEN
        high = np.where(allowed, costs, _HIGH)
        of_rows = high.min(axis=1)
        high = np.where(allowed, high - of_rows[:, None], _HIGH)
        of_columns = high.min(axis=0)
        less = np.where(allowed, high - of_columns, FORBIDDEN)
        rows, row_of = _distinct([less, *taken])
        columns, column_of = _distinct([array.T for array in (less, *taken)])
        small = tuple(array[np.ix_(rows, columns)] for array in (less, *taken))
        ends = (np.where(least == _HIGH, FORBIDDEN, least) for least in (of_rows, of_columns))
        return cls(small[0], small[1:], row_of, column_of, *ends)


def _distinct(arrays: Sequence[Units]) -> tuple[Units, Units]:
    """Return the first positions of the distinct rows of several arrays, and the number of each row's distinct row."""
    _, first, inverse = np.unique(np.concatenate(arrays, axis=1), axis=0, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


def plus(units: Units, more: Units) -> Units:
    """Return the sum of two costs; a choice that either forbids stays forbidden."""
    return np.where((units == FORBIDDEN) | (more == FORBIDDEN), FORBIDDEN, units + more)
