"""
The options of a plan as one table: the values that each takes, and the ways of planning that obey it.

`PlanOptions`, `parallelize` and the command line refuse options by this table, and `docs/options.md` is generated from
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Literal, TypeAlias

from .mesh import parse_mesh

Way = Literal["search", "candidate", "strategy", "passes"]

WAYS: Mapping[Way, str] = {
    "search": "the search over whole plans",
    "candidate": "a candidate that is made again",
    "strategy": "the search for a strategy on the cluster's own mesh",
    "passes": "a pipeline of the user's own",
}
"""Map each way of planning to its description."""

Values: TypeAlias = tuple[str, Callable[[Any], bool]]
"""A description of the values that an option takes, and a test of a value."""


def are_shares(ratios: str) -> bool:
    """Return whether ratios are numbers, one for each device."""
    return ratios not in ("auto", "even", "balanced")


def refusal(given: Mapping[str, object], names: Mapping[str, str] | None = None) -> str | None:
    """
    Return why options cannot be obeyed, or None if they can: a value that its option does not take, or a pair that
    excludes each other.

    Args:
        given: the values that differ from their defaults, by name; names outside the table are ignored.
        names: the names for messages; by default the keys of `given`.
    """
    known = {name: value for name, value in given.items() if name in OPTIONS}
    said = {name: f"{(names or {}).get(name, name)}={str(value)[:60]}" for name, value in known.items()}
    for name, value in known.items():
        expected, takes = OPTIONS[name][1]
        if not takes(value):
            return f"{said[name]}, expected {expected}"
    ways = {name: ways_of(name, value) for name, value in known.items()}
    if known.get("adapt"):
        del ways["candidate"]  # A search begins there.
    for one, other in combinations(ways, 2):
        if not ways[one] & ways[other]:
            first, second = (" or ".join(WAYS[way] for way in WAYS if way in ways[each]) for each in (one, other))
            passes = ', or write the passes that do so into the pipeline (pins: add-pins{pins="..."})'
            return (
                f"{said[one]} and {said[other]} exclude each other: the first is for {first}, the second for {second};"
                f" leave one out{passes if 'pipeline' in (one, other) else ''}"
            )
    return None


def ways_of(name: str, value: object) -> frozenset[Way]:
    """Return the ways of planning that obey an option with this value."""
    if name == "algorithm":
        return WHOLE_PLANS if value in _WHOLE else _STRATEGY
    return _STRATEGY if name == "ratios" and are_shares(str(value)) else OPTIONS[name][0]


def _one_of(*values: str) -> Values:
    return " or ".join(map(repr, values)), lambda value: isinstance(value, str) and value in values


def _number(expected: str, least: float, most: float = float("inf"), kind: type = int) -> Values:
    kinds = (int, kind)
    return expected, lambda value: isinstance(value, kinds) and value is not True and least <= value <= most


def _text(expected: str, read: Callable[[str], object]) -> Values:
    """Describe the texts that a function reads without a ValueError."""

    def takes(value: object) -> bool:
        try:
            return isinstance(value, str) and bool(read(value))
        except ValueError:
            return False

    return expected, takes


def _read_ratios(text: str) -> object:
    return not are_shares(text) or [float(share) for share in text.split(",")]


_WHOLE = ("auto", "anneal")
ALGORITHMS = (
    *_WHOLE,
    "eliminate",
    "fixed",
    "exhaustive",
    "ilp",
    "pareto-dp",
    "astar",
    "random",
    "metropolis",
    "coordinate-descent",
)
"""The algorithms that find a plan: first `search-plan`'s, then `search-strategy`'s."""

_ANY: frozenset[Way] = frozenset(WAYS)
WHOLE_PLANS: frozenset[Way] = frozenset({"search", "candidate"})
"""The ways that decide on mesh, stages, micro-batches and duplex."""
_STRATEGY: frozenset[Way] = frozenset({"strategy"})
_SEARCH: frozenset[Way] = frozenset({"search"})
_OURS = WHOLE_PLANS | _STRATEGY
_ANYTHING: Values = "", lambda value: True
_FLAG: Values = "True or False", lambda value: isinstance(value, bool)
_COUNT = _number("a whole number above 0", 1)

OPTIONS: Mapping[str, tuple[frozenset[Way], Values]] = {
    "algorithm": (_OURS, _one_of(*ALGORITHMS)),
    "pins": (_OURS, _ANYTHING),
    "dtype": (_ANY, _ANYTHING),
    "gradients": (_ANY, _FLAG),
    "pipeline": (frozenset({"passes"}), _ANYTHING),
    "ratios": (_OURS, _text("'auto', 'even', 'balanced', or shares as '0.7,0.3'", _read_ratios)),
    "random": (_OURS, _one_of("exact", "independent")),
    "probe": (_ANY, _FLAG),
    "mesh": (WHOLE_PLANS, _text("sizes as '2x4' or named axes as 'dp=2,tp=4'", parse_mesh)),
    "stages": (WHOLE_PLANS, _COUNT),
    "micro_batches": (WHOLE_PLANS, _COUNT),
    "duplex": (WHOLE_PLANS, _one_of("auto", "yes", "no")),
    "idle": (WHOLE_PLANS, _one_of("auto", "no")),
    "keep_activations": (_OURS, _number("a fraction between 0 and 1", 0, 1, float)),
    "budget": (_SEARCH, _number("seconds, at least 0", 0, kind=float)),
    "candidate": (frozenset({"candidate"}), _ANYTHING),
    "adapt": (WHOLE_PLANS, _FLAG),
    "compile": (_ANY, _FLAG),
    "processes": (_ANY, _COUNT),
    "measure": (_SEARCH, _COUNT),
    "replan_from": (_SEARCH, _ANYTHING),
    "seed": (_ANY, _number("a whole number, or None", -float("inf"))),
    "compared": (_ANY, _number("a number of steps, 0 for none", 0)),
}
"""Map each option of `PlanOptions`, and each of `parallelize` about planning, to its ways and its values."""
