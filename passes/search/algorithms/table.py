"""The table of the algorithms that `search-strategy` has, by the value of its option `algorithm`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Literal, cast

from .interface import Algorithm

AlgorithmName = Literal[
    "eliminate", "fixed", "exhaustive", "ilp", "pareto-dp", "astar", "random", "metropolis", "coordinate-descent"
]
"""The values of `search-strategy{algorithm=}`."""

_MODULES: Mapping[AlgorithmName, str] = {
    "eliminate": "eliminate",
    # Pins are completed by the same algorithm under another objective.
    "fixed": "eliminate",
    "exhaustive": "exhaustive",
    "random": "random_search",
    "metropolis": "metropolis",
    "coordinate-descent": "coordinate_descent",
    "ilp": "ilp",
    "astar": "astar",
    "pareto-dp": "pareto_dp",
}


class UnknownPartError(ValueError):
    """The option `without` names a part that the algorithm lacks."""


def find_algorithm(name: AlgorithmName, without: frozenset[str] = frozenset()) -> Algorithm:
    """
    Return an algorithm. Its module is imported only here: some need libraries that take long to load.

    Raises:
        UnknownPartError: the module's `PARTS`, which can be switched off, lack one of `without`.
    """
    module = import_module(f".{_MODULES[name]}", __package__)
    parts = cast("frozenset[str]", module.PARTS)
    if unknown := sorted(without - parts):
        expected = f"expected {', '.join(sorted(parts))}" if parts else "leave `without` out"
        raise UnknownPartError(f"algorithm={name} has no part '{unknown[0]}'; {expected}")
    return cast("Algorithm", module.search)
