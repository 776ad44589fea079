"""
`algorithm=random`: draw random signatures of all products repeatedly (AutoDDL, section 4.6).

A step of the budget is one draw for all layers, with all other nodes completed at least cost.
"""

from __future__ import annotations

import numpy as np

from ..within_memory import ConstrainedSolution
from .interface import SearchTask
from .layered_search import LayerWalk, search_layers
from .layered_space import PARTS as PARTS

BUDGET = 2000
"""The number of draws by default."""

_AT_ONCE = 256
"""The maximum number of draws that are completed together."""

_ENTRIES = 1 << 20
"""The maximum number of entries of a table for all of these draws."""


def search(task: SearchTask) -> ConstrainedSolution:
    """Return the cheapest strategy drawn."""
    return search_layers(task, _walk, BUDGET)


def _walk(walk: LayerWalk) -> None:
    space = walk.space
    at_once = max(1, min(_AT_ONCE, _ENTRIES // space.completion.widest))
    walk.start()
    while not walk.is_over:
        draws = [space.draw(walk.random) for _ in range(min(at_once, walk.budget - walk.counts["visited"]))]
        columns = {node: np.array([draw[node] for draw in draws], np.int64) for node in space.decided}
        for cost, draw in zip(space.completion.costs(columns).tolist(), draws, strict=True):
            walk.visit(cost, draw)
