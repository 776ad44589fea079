"""
Hash-consed arrays, and the operations on them that elimination needs.

A `Store` keeps one copy of every array and names it by a small integer, its *handle*: equal arrays have equal handles.
`Store.apply` caches every result by operation and operand handles. So equal layers share their work: the elimination of
the first layer is computed, and the results are looked up for all others.

The operations below are pure functions of arrays. Rows belong to the node itself, columns to its neighbour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

from .problem import Costs, States

Handle = NewType("Handle", int)
Array = NDArray[Any]
Operation = Callable[..., Array]

_SMALL = 1 << 16
"""Number of differences that are computed at once. All rows of larger tables are compared in some columns first."""

_SAMPLED = 8
"""The largest number of these columns."""

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

    def apply(self, operation: Operation, *operands: Handle, is_compared: bool = True) -> Handle:
        """
        Return the handle of `operation` applied to the arrays of `operands`, computed on first use.

        Args:
            is_compared: whether other arrays may equal the result, so that it is hashed.
        """
        key = (operation, *operands)
        handle = self._results.get(key)
        if handle is None:
            self.computed[operation.__name__] += 1
            result = operation(*(self._arrays[operand] for operand in operands))
            handle = self._results[key] = self.intern(result) if is_compared else self.adopt(result)
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


def least_regret(table: Costs) -> Costs:
    """
    Return lower bounds on the regret of row r against row s, from some of the columns; shape (rows r, rows s).

    The regret is the maximum, over all columns, of the cost of row r minus the cost of row s, where columns that row s
    forbids do not count. It is about `_FORBIDDEN` if a column allows s and forbids r, and -inf if s allows no column.
    All columns of a small table are used, so its bounds are exact.
    """
    if not _is_small(table):
        # Where one row is the cheapest, most other rows cost more.
        table = table[:, np.unique(table[:: -(-len(table) // _SAMPLED)].argmin(axis=1))]
    columns = np.ascontiguousarray(table.T)
    above, count = _without_inf(columns), columns.shape[1]
    if count * columns.size <= _SMALL:
        return np.max(above[:, :, None] - columns[:, None, :], axis=0, initial=-np.inf)
    worst, difference = np.full((count, count), -np.inf), np.empty((count, count))
    for high, low in zip(above, columns, strict=True):
        np.subtract(high[:, None], low, out=difference)
        np.maximum(worst, difference, out=worst)
    return worst


def regrets(table: Costs, rows: States, others: States) -> Costs:
    """Return the exact regret of each of `rows` against the row at its position in `others` (see `least_regret`)."""
    above, step = _without_inf(table), max(1, _SMALL // table.shape[1])
    slices = (slice(at, at + step) for at in range(0, len(rows), step))
    return np.concatenate([(above[rows[some]] - table[others[some]]).max(axis=1) for some in slices])


def _is_small(table: Costs) -> bool:
    return len(table) * table.size <= _SMALL


def _without_inf(costs: Costs) -> Costs:
    """Return costs where a finite number stands for inf, which avoids inf - inf where both rows are forbidden."""
    return np.where(costs == np.inf, _FORBIDDEN, costs)


def undominated(unary: Costs, *edges: Costs) -> States:
    """
    Return the states worth keeping, ascending.

    State s is dropped if it is forbidden, by itself or by every state of a neighbour, or if some remaining state r
    is never costlier, whatever the states of the neighbours: `unary_r - unary_s + sum_e regret_e[r, s] <= 0`. The first
    of equal states stays.

    Args:
        edges: the table of each edge of the node, then `least_regret` of each.
    """
    tables, bounds = edges[: len(edges) // 2], edges[len(edges) // 2 :]
    possible = np.isfinite(unary)
    for table, least in zip(tables, bounds, strict=True):
        if least.diagonal().min() == -np.inf:
            possible &= table.min(axis=1) < np.inf
    states = np.flatnonzero(possible)
    if len(states) < 2:
        return states
    block = np.ix_(states, states) if len(states) < len(unary) else ...
    costs = unary[states]
    excess = costs[:, None] - costs
    for least in bounds:
        excess += least[block]
    np.fill_diagonal(excess, np.inf)
    winners, losers = (states[places] for places in np.nonzero(excess <= 0))
    beats = np.zeros((len(unary), len(unary)), dtype=bool)
    beats[_confirmed(winners, losers, unary, tables, bounds)] = True
    alive = possible
    for loser in np.flatnonzero(beats.any(axis=0))[::-1]:
        alive[loser] = not (beats[:, loser] & alive).any()
    return np.flatnonzero(alive)


def _confirmed(
    winners: States, losers: States, unary: Costs, tables: Sequence[Costs], bounds: Sequence[Costs]
) -> tuple[States, States]:
    """Return the pairs of states whose first state dominates the second also by exact regrets."""
    terms = [least[winners, losers] for least in bounds]
    for edge in sorted(range(len(tables)), key=lambda edge: tables[edge].shape[1]):
        if not len(winners) or _is_small(tables[edge]):
            continue
        terms[edge] = regrets(tables[edge], winners, losers)
        # The terms are added in the order of `undominated`; so rounding, which is monotonic, cannot hide a winner.
        remains = sum(terms, unary[winners] - unary[losers]) <= 0
        winners, losers, terms = winners[remains], losers[remains], [term[remains] for term in terms]
    return winners, losers


def absorb_leaf(unary: Costs, table: Costs) -> Costs:
    """Return the costs that a node with one neighbour adds to it (R1): `min_x unary[x] + table[x, y]`."""
    return (unary[:, None] + table).min(axis=0)


def bypass(unary: Costs, left: Costs, right: Costs) -> Costs:
    """Return the table that replaces a node of two neighbours (R2): `min_x unary[x] + left[x, y] + right[x, z]`."""
    return ((unary[:, None] + left)[:, :, None] + right[:, None, :]).min(axis=0)


def only_row(table: Costs) -> Costs:
    """Return the single row of the table of a node that has one state left."""
    return table[0]
