"""Why a plan is not of another kind: of each kind that people ask for, the best candidate and why it lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..api.plan_report import PlanReport
from ..ir.units import bytes_text, seconds_text
from ..passes.planning.candidates import Family
from ..passes.planning.summary import Tried

KINDS: dict[str, Callable[[Family, dict[str, int]], bool]] = {
    "data parallelism": lambda family, _: family["mode"] == "whole" and family["strategy"] == "dp",
    "ZeRO 1": lambda family, _: family["mode"] == "whole" and family["strategy"] == "zero1",
    "ZeRO 3": lambda family, _: family["mode"] == "whole" and family["strategy"].endswith("zero3"),
    "tensor parallelism": lambda family, _: "tp" in family["strategy"],
    "a pipeline": lambda family, _: family["mode"] == "pipeline",
    "accumulation": lambda family, _: family["mode"] == "accumulate",
    "duplex": lambda family, _: family["mode"] == "duplex",
    "the cluster's own mesh": lambda family, own: family["mesh"] == own,
    "shares by speed": lambda family, _: family["balanced"],
}
"""What people ask for, and which candidates are of that kind, for the mesh of the cluster."""


@dataclass(frozen=True)
class WhyNot:
    """
    The best candidate of a kind.

    Args:
        best: None where none was tried.
        why: it is not the plan; that it is where it is.
        slower: seconds by which its step is longer, at the least where that is an estimate; None where not known.
    """

    kind: str
    best: Tried | None
    why: str
    slower: float | None = None

    def as_dict(self) -> dict[str, object]:
        """All of it, for JSON."""
        found = {"kind": self.kind, "why": self.why, "slower": self.slower}
        return {**found, "best": self.best.as_dict() if self.best is not None else None}


def why_not(report: PlanReport) -> list[WhyNot]:
    """For each kind of plan the best candidate, by what `plan.json` holds."""
    # What was first judged by less than its program has a second entry.
    tried = list({each["name"]: Tried.from_dict(each) for each in report["candidates"]}.values())
    chosen = report["chosen_candidate"]
    own = chosen["own_mesh"] if chosen is not None else {}
    plan = next(each for each in tried if each.name == report["chosen"])
    found: list[WhyNot] = []
    for kind, belongs in KINDS.items():
        members = [each for each in tried if each.family is not None and belongs(each.family, own)]
        found.append(_best(kind, members, tried, plan))
    return found


def _order(given: Tried) -> tuple[int, float]:
    """What may be fastest comes first, then what does not fit, then what cannot be."""
    if given.step is None:
        return 2, 0.0
    return int(given.fits is False), given.step


def _best(kind: str, members: list[Tried], tried: Sequence[Tried], plan: Tried) -> WhyNot:
    """The best candidate of a kind; one that came to the same as another counts as that."""
    if not members:
        return WhyNot(kind, None, "not tried")
    firsts = {candidate.same_as or candidate.name for candidate in members}
    alike = [candidate for candidate in tried if firsts & {candidate.name, candidate.same_as}]
    best = plan if plan in members else min(alike, key=_order)
    if best == plan:
        return WhyNot(kind, best, "it is the plan" if plan in members else "comes to the same as the plan", 0.0)
    if best.step is None:
        return WhyNot(kind, best, f"cannot be: {best.why}")
    slower = best.step - plan.step if plan.step is not None else None
    return WhyNot(kind, best, _reason(best, slower, plan.step or best.step), slower)


def _reason(lost: Tried, slower: float | None, step: float) -> str:
    """Why a candidate with a step lost."""
    if lost.fits is False:
        missing = (lost.peak_bytes or 0) - (lost.memory_bytes or 0.0)
        return f"does not fit: needs {bytes_text(missing)} more than there is"
    if slower is None:
        return lost.why
    by = difference(slower, step)
    if lost.why in ("", "slower"):
        return by
    if lost.exposed is not None:
        return f"{by}, {lost.why}"
    return f"at least {by}, {lost.why}" if slower > 0 else lost.why


def difference(seconds: float, step: float) -> str:
    """How much longer or shorter than a step another one is: `slower by 0.1 ms (6.3%)`."""
    if abs(seconds) < 1e-6 * step:
        return "as fast"
    return f"{'slower' if seconds > 0 else 'faster'} by {seconds_text(abs(seconds))} ({abs(seconds) / step:.1%})"
