"""
The options of a plan as one table: their values, defaults and meanings, their commands, and conflicts between options.

`PlanOptions` and `search-plan` take their options and defaults from this table, and the command line its flags; these
and `parallelize` check options against it. `docs/options.md` is generated from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

from .cluster_fields import DURATION, quantity
from .mesh import parse_mesh

Way = Literal["search", "candidate", "strategy", "passes"]

WAYS: Mapping[Way, str] = {
    "search": "the search over whole plans",
    "candidate": "a candidate that is rebuilt",
    "strategy": "the search for a strategy on the cluster's own mesh",
    "passes": "a pipeline that the user gives",
}
"""Maps each way of planning to its description."""


@dataclass(frozen=True)
class Values:
    """
    The values that an option takes.

    Args:
        text: their description, for messages and the manual.
        takes: a test of a value.
        flag: keyword arguments of `argparse` for the flag; the type `int` means a whole number above 0.
    """

    text: str
    takes: Callable[[Any], bool]
    flag: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Option:
    """
    An option of a plan.

    Args:
        ways: the ways of planning that obey it.
        values: the values that it takes.
        default: the default value.
        help: its meaning, for the command line.
    """

    ways: frozenset[Way]
    values: Values
    default: Any = None
    help: str = ""


def are_shares(ratios: str) -> bool:
    """Whether ratios are numbers, one for each device."""
    return ratios not in ("auto", "even", "balanced")


def refusal(given: Mapping[str, object], names: Mapping[str, str] | None = None) -> str | None:
    """
    Return why options cannot be obeyed, or None if they can: a value that its option does not take, or a pair that
    excludes each other.

    Args:
        given: values by name; names outside the table and values that are defaults are ignored.
        names: the names for messages; by default the keys of `given`.
    """
    given = differing(given)
    known = {name: value for name, value in given.items() if name in OPTIONS}
    said = {name: f"{(names or {}).get(name, name)}={str(value)[:60]}" for name, value in known.items()}
    for name, value in known.items():
        values = OPTIONS[name].values
        if not values.takes(value):
            return f"{said[name]}, expected {values.text}"
    ways = {name: ways_of(name, value) for name, value in known.items()}
    if known.get("adapt"):
        del ways["candidate"]  # A search starts from the candidate.
    for one, other in combinations(ways, 2):
        if not ways[one] & ways[other]:
            first, second = (" or ".join(WAYS[way] for way in WAYS if way in ways[option]) for option in (one, other))
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
    return _STRATEGY if name == "ratios" and are_shares(str(value)) else OPTIONS[name].ways


def differing(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values that are not the defaults of their options."""
    return {name: value for name, value in values.items() if name not in OPTIONS or value != OPTIONS[name].default}


def taken_by(taker: str) -> dict[str, Option]:
    """Return the options of a command of `shardwright`, or of the pass `search-plan`, by name."""
    return {name: OPTIONS[name] for name in _TAKEN.get(taker, ())}


def _one_of(*values: str) -> Values:
    return Values(" or ".join(map(repr, values)), values.__contains__, {"choices": values})


def _number(text: str, least: float, most: float = float("inf"), kind: type = int, metavar: str = "N") -> Values:
    def takes(value: Any) -> bool:
        return isinstance(value, int | kind) and value is not True and least <= value <= most

    return Values(text, takes, {"type": kind, "metavar": metavar})


def _text(expected: str, metavar: str, read: Callable[[str], object]) -> Values:
    """Return the values that are texts which `read` accepts without a ValueError."""

    def takes(value: object) -> bool:
        try:
            return isinstance(value, str) and bool(read(value))
        except ValueError:
            return False

    return Values(expected, takes, {"metavar": metavar})


def seconds_of(text: str) -> float:
    """Return the seconds of a duration on a command line, such as `90`, `90s` or `2min`."""
    return quantity(text, DURATION, positive=False)


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
"""The algorithms that find a plan: first the algorithms of `search-plan`, then of `search-strategy`."""

_ANY: frozenset[Way] = frozenset(WAYS)
WHOLE_PLANS: frozenset[Way] = frozenset({"search", "candidate"})
"""The ways that decide the mesh, stages, micro-batches and duplex."""
_STRATEGY: frozenset[Way] = frozenset({"strategy"})
_SEARCH: frozenset[Way] = frozenset({"search"})
_OURS = WHOLE_PLANS | _STRATEGY
_ANYTHING = Values("", lambda value: True)
_DTYPE = Values("", _ANYTHING.takes, {"choices": ("float32", "float64", "bfloat16", "float16")})
_FILE, _PASSES = (Values("", _ANYTHING.takes, {"metavar": name}) for name in ("FILE", "PASSES"))
_FLAG = Values("True or False", lambda value: isinstance(value, bool))
_COUNT = _number("a whole number above 0", 1)
_SECONDS = replace(_number("seconds, at least 0", 0, kind=float), flag={"type": seconds_of, "metavar": "DURATION"})
_FRACTION = _number("a fraction between 0 and 1", 0, 1, float, "FRACTION")
_SHARES = _text("'auto', 'even', 'balanced', or shares as '0.7,0.3'", "SHARES", _read_ratios)
_MESH = _text("sizes as '2x4' or named axes as 'dp=2,tp=4'", "MESH", parse_mesh)

OPTIONS: Mapping[str, Option] = {
    "pins": Option(_OURS, _FILE, None, "a file of pins, or one of the presets dp, zero1, zero2, zero3 and tp"),
    "algorithm": Option(
        _OURS, _one_of(*ALGORITHMS), None, "auto and anneal search whole plans, others strategies on the cluster's mesh"
    ),
    "ratios": Option(
        _OURS, _SHARES, "auto", "the devices' shares: even, balanced, given, or auto: balanced where devices differ"
    ),
    "keep_activations": Option(
        _OURS, _FRACTION, None, "fraction of activations kept for backward, by bytes; by default as many as fit"
    ),
    "mesh": Option(
        WHOLE_PLANS, _MESH, None, "mesh of all devices, as 4x16 or node=4,gpu=16; by default it is searched"
    ),
    "stages": Option(WHOLE_PLANS, _COUNT, None, "stages of a pipeline, 1 for none; by default the search decides"),
    "micro_batches": Option(
        WHOLE_PLANS, _COUNT, None, "micro-batches, accumulated or sent through stages; by default the search decides"
    ),
    "duplex": Option(
        WHOLE_PLANS,
        _one_of("auto", "yes", "no"),
        "auto",
        "whether parts of the batch compute while others communicate; auto: if simulated faster",
    ),
    "idle": Option(
        WHOLE_PLANS,
        _one_of("auto", "no"),
        "auto",
        "whether devices may idle; auto: if the step is faster without them",
    ),
    "budget": Option(_SEARCH, _SECONDS, None, "time limit of the search, as 90, 90s or 2min; by default none"),
    "measure": Option(_SEARCH, _COUNT, 1, "run the N best plans of different kinds on this machine, take the fastest"),
    "candidate": Option(
        frozenset({"candidate"}), _FILE, None, "rebuild the plan of this plan.json instead of searching"
    ),
    "processes": Option(
        _ANY, _COUNT, 1, "how many processes try candidates (one per core, at most 8); the plan is the same"
    ),
    "random": Option(
        _OURS,
        _one_of("exact", "independent"),
        "exact",
        "random numbers: the same as on one device, or drawn by each rank for itself",
    ),
    "compile": Option(
        _ANY, _FLAG, False, "compile the computation between collectives, as by torch.compile, or plan for that"
    ),
    "dtype": Option(_ANY, _DTYPE, None, "dtype of all floating-point tensors; by default each keeps its dtype"),
    "gradients": Option(_ANY, _FLAG, False, "return the gradients too"),
    "pipeline": Option(frozenset({"passes"}), _PASSES, None, "the passes to run instead of the usual passes"),
    "probe": Option(_ANY, _FLAG, True, "do not infer the rules of unknown ops: replicate them on every device"),
    "adapt": Option(WHOLE_PLANS, _FLAG, False),
    "replan_from": Option(_SEARCH, _ANYTHING),
    "seed": Option(_ANY, _number("a whole number, or None", -float("inf")), 0),
    "compared": Option(_ANY, _number("a number of steps, 0 for none", 0), 10),
}
"""Maps each option of `PlanOptions`, and each planning option of `parallelize`, to its entry for all interfaces."""

_STRATEGY_OPTIONS = ("pins", "algorithm", "ratios", "keep_activations")
_SEARCH_OPTIONS = ("mesh", "stages", "micro_batches", "duplex", "idle", "budget", "candidate", "processes")
_TAKEN: Mapping[str, Sequence[str]] = {
    "import": ("dtype", "gradients", "probe"),
    "plan": (*_STRATEGY_OPTIONS, *_SEARCH_OPTIONS, "measure", "random", "compile", "dtype", "pipeline", "probe"),
    "run": (*_SEARCH_OPTIONS, "measure", "compile"),
    "simulate": (*_STRATEGY_OPTIONS, "compile"),
    "check": (*_STRATEGY_OPTIONS, "compile", "pipeline"),
    "search-plan": (*_SEARCH_OPTIONS, "keep_activations", "ratios", "adapt"),
}
"""Maps each command, and the pass `search-plan`, to the options that it takes."""
