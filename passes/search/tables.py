"""
Hash-consed arrays, and the operations on them that elimination needs.

A `Store` keeps one copy of every array and names it by a small integer, its *handle*: equal arrays have equal handles.
`Store.apply` caches every result by operation and operand handles. So equal layers share their work: the elimination of
the first layer is computed, and the results are looked up for all others.

The operations below are pure functions of arrays. Rows belong to the node itself, columns to its neighbour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

from .problem import Costs, States

Handle = NewType("Handle", int)
Array = NDArray[Any]
Operation = Callable[..., Array]

_SMALL = 1 << 16
"""Number of differences that are computed at once; larger tables are compared column by column, without repeats."""

_FORBIDDEN = 1e300
"""A cost that stands for infinity in differences."""


class Store:
    """Immutable arrays by handle, and a cache of the results computed from them."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._by_content: dict[tuple[object, ...], Handle] = {}
        self._by_identity: dict[int, tuple[Handle, Array]] = {}
        self._results: dict[tuple[object, ...], Handle] = {}
        self.computed: Counter[str] = Counter()
        """The number of times that each operation was computed rather than looked up."""

    def __getitem__(self, handle: Handle) -> Array:
        """Return the array named `handle`; it is read-only."""
        return self._arrays[handle]

    def intern(self, array: Array) -> Handle:
        """Return the handle of `array`, found by content."""
        content = np.ascontiguousarray(array)
        key = (content.shape, content.dtype.char, blake2b(content.data, digest_size=16).digest())
        handle = self._by_content.get(key)
        if handle is None:
            handle = self._by_content[key] = self.adopt(content.copy() if content is array else content)
        return handle

    def intern_shared(self, array: Array) -> Handle:
        """Return the handle of `array`, which others hold too but do not change; each object is hashed once."""
        entry = self._by_identity.get(id(array))
        if entry is None:
            entry = self._by_identity[id(array)] = (self.intern(array), array)
        return entry[0]

    def adopt(self, array: Array) -> Handle:
        """Return a new handle for `array`, which the store owns from now on; it is not compared with other arrays."""
        array.flags.writeable = False
        self._arrays.append(array)
        return Handle(len(self._arrays) - 1)

    def apply(self, operation: Operation, *operands: Handle) -> Handle:
        """Return the handle of `operation` applied to the arrays of `operands`, computed on first use."""
        key = (operation, *operands)
        handle = self._results.get(key)
        if handle is None:
            self.computed[operation.__name__] += 1
            result = operation(*(self._arrays[operand] for operand in operands))
            handle = self._results[key] = self.intern(result)
        return handle

    def transpose(self, table: Handle) -> Handle:
        """Return the handle of `table` with rows and columns exchanged."""
        return self.apply(np.transpose, table)

    def magnitude(self) -> float:
        """Return the largest absolute value among the finite costs in the store."""
        costs = (array for array in self._arrays if array.dtype == np.float64)
        return max((float(np.abs(array[np.isfinite(array)]).max(initial=0)) for array in costs), default=0.0)

    def add(self, left: Handle, right: Handle) -> Handle:
        """Return the handle of the sum of two arrays of one shape."""
        return self.apply(np.add, *sorted((left, right)))


def take_rows(array: Array, keep: States) -> Array:
    """Return the rows `keep` of a vector or table."""
    return array[keep]


def take(table: Costs, rows: States, columns: States) -> Costs:
    """Return the block of `table` at `rows` and `columns`."""
    return table[np.ix_(rows, columns)]


def regret(table: Costs) -> Costs:
    """
    Return the maximum, over all columns, of the cost of row r minus the cost of row s; shape (rows r, rows s).

    Columns that row s forbids do not count. The value is inf if a column allows s but not r, -inf if s allows none.
    """
    if table.shape[0] * table.size <= _SMALL:
        worst = _most_above(np.ascontiguousarray(table.T))
    else:
        (rows, row_of), (columns, _) = _distinct(table), _distinct(table.T)
        worst = _most_above(np.ascontiguousarray(table[np.ix_(rows, columns)].T))[np.ix_(row_of, row_of)]
    worst[worst > _FORBIDDEN / 2] = np.inf
    return worst


def _most_above(columns: Costs) -> Costs:
    """Return `regret` of the transposed table, with values of about `_FORBIDDEN` for inf."""
    # A finite number for the inf of row r avoids inf - inf where row s is forbidden, too: r - s is -inf then.
    above, count = np.where(columns == np.inf, _FORBIDDEN, columns), columns.shape[1]
    if count * columns.size <= _SMALL:
        return np.max(above[:, :, None] - columns[:, None, :], axis=0, initial=-np.inf)
    worst, difference = np.full((count, count), -np.inf), np.empty((count, count))
    for high, low in zip(above, columns, strict=True):
        np.subtract(high[:, None], low, out=difference)
        np.maximum(worst, difference, out=worst)
    return worst


def _distinct(rows: Costs) -> tuple[list[int], States]:
    """Return the index of the first of each group of equal rows, and the group of each row."""
    groups: dict[bytes, int] = {}
    group_of = np.array([groups.setdefault(row.tobytes(), len(groups)) for row in rows], np.intp)
    return np.unique(group_of, return_index=True)[1].tolist(), group_of


def undominated(unary: Costs, *regrets: Costs) -> States:
    """
    Return the states worth keeping, ascending; `regrets` holds one array per edge of the node (see `regret`).

    State s is dropped if it is forbidden, by itself or by every state of a neighbour, or if some remaining state r
    is never costlier, whatever the states of the neighbours: `unary_r - unary_s + sum_e regret_e[r, s] <= 0`. The first
    of equal states stays.
    """
    possible = np.isfinite(unary)
    for worst in regrets:
        possible &= worst.diagonal() > -np.inf
    states = np.flatnonzero(possible)
    if len(states) < 2:
        return states
    block = np.ix_(states, states)
    costs = unary[states]
    excess = costs[:, None] - costs
    for worst in regrets:
        excess += worst[block]
    beats = excess <= 0
    np.fill_diagonal(beats, False)
    alive = np.ones(len(states), dtype=bool)
    for loser in np.flatnonzero(beats.any(axis=0))[::-1]:
        alive[loser] = not (beats[:, loser] & alive).any()
    return states[alive]


def absorb_leaf(unary: Costs, table: Costs) -> Costs:
    """Return the costs that a node with one neighbour adds to it (R1): `min_x unary[x] + table[x, y]`."""
    return (unary[:, None] + table).min(axis=0)


def bypass(unary: Costs, left: Costs, right: Costs) -> Costs:
    """Return the table that replaces a node of two neighbours (R2): `min_x unary[x] + left[x, y] + right[x, z]`."""
    return ((unary[:, None] + left)[:, :, None] + right[:, None, :]).min(axis=0)


def only_row(table: Costs) -> Costs:
    """Return the single row of the table of a node that has one state left."""
    return table[0]
