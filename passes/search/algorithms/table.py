"""The table of the algorithms of `search-strategy`, by the value of the option `algorithm`."""

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
    # This completes pins by the same algorithm, under another objective.
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
    """The option `without` names an unknown part of the algorithm."""


def find_algorithm(name: AlgorithmName, without: frozenset[str] = frozenset()) -> Algorithm:
    """
    Return an algorithm. Its module is imported only here, as some algorithms need libraries that load slowly.

    Raises:
        UnknownPartError: an entry of `without` is not in the module's `PARTS`, the parts that can be switched off.
    """
    module = import_module(f".{_MODULES[name]}", __package__)
    parts = cast("frozenset[str]", module.PARTS)
    if unknown := sorted(without - parts):
        expected = f"expected {', '.join(sorted(parts))}" if parts else "leave `without` out"
        raise UnknownPartError(f"algorithm={name} has no part '{unknown[0]}'; {expected}")
    return cast("Algorithm", module.search)
