"""
`algorithm=metropolis`: a Markov chain of strategies that changes one layer at a time (AutoDDL, section 4.6).

The chain visits a strategy S with a probability that falls with its cost,

    P(S)  ~  exp(-beta Cost(S)),

so it accepts the strategy S_new, which changes one layer of S_old at random, with the probability

    min(1, P(S_new) / P(S_old))  =  min(1, exp(-beta (Cost(S_new) - Cost(S_old)))).

The sign in the exponent matters: with a plus the chain would climb. The paper uses a constant beta without giving its
value; here it is a constant divided by the cost of the first allowed strategy.

To change a layer, one of its products gets a random signature, and the others follow at least cost. Similarly, a tuple
in AutoDDL decides a product and its backward products together. A step of the budget is one strategy.
"""

from __future__ import annotations

from math import exp

from ..within_memory import ConstrainedSolution
from .interface import SearchTask
from .layered_search import LayerWalk, search_layers
from .layered_space import PARTS as PARTS

BUDGET = 2000
"""The number of strategies by default."""

_BETA = 1000.0
"""A strategy that costs 0.1 % of the initial cost more is accepted with probability 1/e."""


def search(task: SearchTask) -> ConstrainedSolution:
    """Return the cheapest strategy of the chain."""
    return search_layers(task, _walk, BUDGET)


def _walk(walk: LayerWalk) -> None:
    space, random = walk.space, walk.random
    cost, choice = walk.start()
    beta = 0.0
    while not walk.is_over:
        if not beta and space.is_allowed(cost) and cost:
            beta = _BETA / abs(cost)
        layer = random.randrange(len(space.layers))
        node = random.choice(space.layers[layer])
        state = random.randrange(space.model.size(node))
        new_cost, new_choice = space.best_of(layer, choice, {node: state})
        walk.visit(new_cost, new_choice)
        # Before the chain has reached an allowed strategy, it accepts only equal or cheaper ones.
        rise = new_cost - cost
        if rise <= 0 or (beta and random.random() < exp(-beta * rise)):
            walk.counts["accepted"] += 1
            walk.counts["accepted_uphill"] += rise > 0
            cost, choice = new_cost, new_choice
