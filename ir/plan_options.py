"""
The options of a plan as one table: the values that each takes, and the ways of planning that obey it.

`PlanOptions`, `parallelize` and the command line refuse by it what they could not obey, and `docs/options.md` is
written from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from .mesh import parse_mesh

Way = Literal["search", "candidate", "strategy", "passes"]

WAYS: Mapping[Way, str] = {
    "search": "the search over whole plans",
    "candidate": "a candidate that is made again",
    "strategy": "the search for a strategy on the cluster's own mesh",
    "passes": "a pipeline of the user's own",
}
"""The ways of planning, in words."""


@dataclass(frozen=True)
class PlanOption:
    """
    What is known of an option.

    Args:
        ways: the ways of planning that obey it, or that it asks for.
        expected: the values that it takes, in words.
        takes: whether a value is one of them.
        narrowed: the ways for one value, where that leaves fewer than `ways`.
    """

    ways: frozenset[Way]
    expected: str
    takes: Callable[[Any], bool]
    narrowed: Callable[[Any], frozenset[Way]] | None = None

    def ways_of(self, value: object) -> frozenset[Way]:
        """The ways of planning that obey a value."""
        return self.narrowed(value) if self.narrowed is not None else self.ways


def are_shares(ratios: str) -> bool:
    """Whether ratios are numbers, one for each device."""
    return ratios not in _NAMED_RATIOS


def refusal(given: Mapping[str, object], names: Mapping[str, str] | None = None) -> str | None:
    """
    Why options cannot be obeyed: a value that is none, or two options that no way of planning obeys both of; None where
    all can.

    Args:
        given: those that are not left at their default, by name; what the table lacks is not looked at.
        names: what to call them in messages; by default by their names.
    """
    known = {name: value for name, value in given.items() if name in OPTIONS}
    said = {name: f"{(names or {}).get(name, name)}={_shown(value)}" for name, value in known.items()}
    for name, value in known.items():
        if not OPTIONS[name].takes(value):
            return f"{said[name]}, expected {OPTIONS[name].expected}"
    ways = {name: OPTIONS[name].ways_of(value) for name, value in known.items()}
    if known.get("adapt"):
        # The candidate is where a search begins.
        ways["candidate"] = ways["adapt"]
    for one, other in combinations(ways, 2):
        if not ways[one] & ways[other]:
            return (
                f"{said[one]} and {said[other]} exclude each other: the first is for {_ways(ways[one])}, the second for"
                f" {_ways(ways[other])}; leave one out"
                + (', or write the passes that do so into the pipeline (pins: add-pins{pins="..."})')
                * ("pipeline" in (one, other))
            )
    return None


def _ways(ways: frozenset[Way]) -> str:
    return " or ".join(text for way, text in WAYS.items() if way in ways)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


_MOST_SHOWN = 60
_NAMED_RATIOS = ("auto", "even", "balanced")

_ANY: frozenset[Way] = frozenset(WAYS)
_PLAN: frozenset[Way] = frozenset({"search", "candidate"})
_STRATEGY: frozenset[Way] = frozenset({"strategy"})
_SEARCH: frozenset[Way] = frozenset({"search"})
_OURS = _PLAN | _STRATEGY


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_mesh(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(parse_mesh(value))
    except ValueError:
        return False


def _is_ratios(value: object) -> bool:
    try:
        return isinstance(value, str) and (
            value in _NAMED_RATIOS or all(float(share) >= 0 for share in value.split(","))
        )
    except ValueError:
        return False


def _anything(value: object) -> bool:
    return True


def _one_of(*values: str) -> tuple[str, Callable[[object], bool]]:
    return " or ".join(map(repr, values)), lambda value: isinstance(value, str) and value in values


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_FLAG = ("True or False", _is_flag)
_COUNT = ("a whole number above 0", _is_count)

OPTIONS: Mapping[str, PlanOption] = {
    "algorithm": PlanOption(
        _OURS,
        *_one_of("auto", "eliminate", "fixed", "exhaustive"),
        lambda value: _PLAN if value == "auto" else _STRATEGY,
    ),
    "pins": PlanOption(_OURS, "a pin file, the name of a preset, or pins as TOML text", _anything),
    "dtype": PlanOption(_ANY, "a dtype of torch", _anything),
    "gradients": PlanOption(_ANY, *_FLAG),
    "pipeline": PlanOption(frozenset({"passes"}), "passes", _anything),
    "ratios": PlanOption(
        _OURS,
        "'auto', 'even', 'balanced', or shares as '0.7,0.3'",
        _is_ratios,
        lambda value: _STRATEGY if are_shares(value) else _OURS,
    ),
    "random": PlanOption(_OURS, *_one_of("exact", "independent")),
    "probe": PlanOption(_ANY, *_FLAG),
    "mesh": PlanOption(_PLAN, "sizes as '2x4' or named axes as 'dp=2,tp=4'", _is_mesh),
    "stages": PlanOption(_PLAN, *_COUNT),
    "micro_batches": PlanOption(_PLAN, *_COUNT),
    "duplex": PlanOption(_PLAN, *_one_of("auto", "yes", "no")),
    "keep_activations": PlanOption(
        _OURS, "a fraction between 0 and 1", lambda value: _is_number(value) and 0 <= value <= 1
    ),
    "budget": PlanOption(_SEARCH, "seconds, at least 0", lambda value: _is_number(value) and value >= 0),
    "candidate": PlanOption(frozenset({"candidate"}), "the file or the text of a candidate", _anything),
    "adapt": PlanOption(_SEARCH, *_FLAG),
    "compile": PlanOption(_ANY, *_FLAG),
    "processes": PlanOption(_ANY, *_COUNT),
    "measure": PlanOption(_SEARCH, *_COUNT),
    "seed": PlanOption(
        _ANY, "a whole number, or None", lambda value: isinstance(value, int) and not isinstance(value, bool)
    ),
    "compared": PlanOption(_ANY, "a number of steps, 0 for none", lambda value: value == 0 or _is_count(value)),
    "replan_from": PlanOption(_SEARCH, "a folder", _anything),
}
"""The options of `PlanOptions`, and of `parallelize` those that are not about the step or the job, by name."""
