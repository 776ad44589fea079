"""The table of the algorithms that `search-strategy` has, by the value of its option `algorithm`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Literal, cast

from .interface import Algorithm

AlgorithmName = Literal["eliminate", "fixed", "exhaustive", "pareto-dp"]
"""The values of `search-strategy{algorithm=}`."""

_MODULES: Mapping[AlgorithmName, str] = {
    "eliminate": "eliminate",
    # Pins are completed by the same algorithm under another objective.
    "fixed": "eliminate",
    "exhaustive": "exhaustive",
    "pareto-dp": "pareto_dp",
}


def find_algorithm(name: AlgorithmName) -> Algorithm:
    """Return an algorithm. Its module is imported only here: some need libraries that take long to load."""
    return cast("Algorithm", import_module(f".{_MODULES[name]}", __package__).search)
