"""
`algorithm=coordinate-descent`: optimise one layer after another (AutoDDL, section 4.6).

With the layers' decisions S = [s_1, ..., s_L], an update step is, for every layer i,

    S[i]  =  argmin over s_i of  Cost([s_1, ..., s_L]),

with all other layers unchanged, so the cost falls monotonically. At a fixed point, where no layer gains anything, the
strategy is recorded and the descent restarts at random, until the budget is spent. A step of the budget is the
minimum over one layer, or a start.
"""

from __future__ import annotations

from ..within_memory import ConstrainedSolution
from .interface import SearchTask
from .layered_search import LayerWalk, search_layers
from .layered_space import PARTS as PARTS

BUDGET = 500
"""The default number of minima over a layer."""

_GAIN = 1e-12
"""The least gain that counts, relative to the cost; rounding errors are smaller."""


def search(task: SearchTask) -> ConstrainedSolution:
    """Return the cheapest fixed point."""
    return search_layers(task, _walk, BUDGET)


def _walk(walk: LayerWalk) -> None:
    while not walk.is_over:
        # Descend from a random start to a fixed point.
        space = walk.space
        cost, choice = walk.start()
        layer, unchanged = 0, 0
        while unchanged < len(space.layers) and not walk.is_over:
            new_cost, new_choice = space.best_of(layer, choice)
            walk.visit(new_cost, new_choice)
            if cost - new_cost > _GAIN * abs(cost):
                cost, choice, unchanged = new_cost, new_choice, 0
                walk.counts["improved"] += 1
            unchanged += 1
            layer = (layer + 1) % len(space.layers)
        walk.counts["fixed_points"] += unchanged >= len(space.layers)
