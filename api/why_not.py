"""The best candidate for each kind of plan that users ask about, and why it lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..ir.units import bytes_text, seconds_text
from ..passes.planning.candidates import Family
from ..passes.planning.summary import Tried
from .plan_report import PlanReport

KINDS: dict[str, Callable[[Family, dict[str, int]], bool]] = {
    "data parallelism": lambda family, _: family["mode"] == "whole" and family["strategy"] == "dp",
    "ZeRO 1": lambda family, _: family["mode"] == "whole" and family["strategy"] == "zero1",
    "ZeRO 3": lambda family, _: family["mode"] == "whole" and family["strategy"].endswith("zero3"),
    "tensor parallelism": lambda family, _: "tp" in family["strategy"].split("+"),
    "a pipeline": lambda family, _: family["mode"] == "pipeline",
    "accumulation": lambda family, _: family["mode"] == "accumulate",
    "duplex": lambda family, _: family["mode"] == "duplex",
    "the cluster's own mesh": lambda family, own: family["mesh"] == own,
    "shares by speed": lambda family, _: family["balanced"],
}
"""The kinds of plans that users ask about, with a test of a candidate's family, given the mesh of the cluster."""


@dataclass(frozen=True)
class WhyNot:
    """
    The best candidate of a kind.

    Args:
        best: the candidate, or None if none was tried.
        why: the reason why it is not the plan, or a note that it is the plan.
        slower: the extra seconds of its step, a lower bound if the step is an estimate, or None if unknown.
    """

    kind: str
    best: Tried | None
    why: str
    slower: float | None = None

    def as_dict(self) -> dict[str, object]:
        """Return all fields, for JSON."""
        fields = {"kind": self.kind, "why": self.why, "slower": self.slower}
        return {**fields, "best": self.best.as_dict() if self.best is not None else None}


def why_not(report: PlanReport) -> list[WhyNot]:
    """Return the best candidate for each kind of plan, from the contents of `plan.json`."""
    # A candidate that was first estimated and later simulated has two entries; the last one counts.
    tried = list({each["name"]: Tried.from_dict(each) for each in report["candidates"]}.values())
    chosen = report["chosen_candidate"]
    own = chosen["own_mesh"] if chosen is not None else {}
    plan = next(each for each in tried if each.name == report["chosen"])
    reasons: list[WhyNot] = []
    for kind, belongs in KINDS.items():
        members = [each for each in tried if each.family is not None and belongs(each.family, own)]
        reasons.append(_best(kind, members, tried, plan))
    return reasons


def _order(given: Tried) -> tuple[int, float]:
    """Return a sort key: possible plans by step time, then plans that exceed memory, then infeasible ones."""
    if given.step is None:
        return 2, 0.0
    return int(given.fits is False), given.step


def _best(kind: str, members: list[Tried], tried: Sequence[Tried], plan: Tried) -> WhyNot:
    """Return the best candidate of a kind; one with the same strategy as another candidate counts as that one."""
    if not members:
        return WhyNot(kind, None, "not tried")
    firsts = {candidate.same_as or candidate.name for candidate in members}
    alike = [candidate for candidate in tried if firsts & {candidate.name, candidate.same_as}]
    best = plan if plan in members else min(alike, key=_order)
    if best == plan:
        return WhyNot(kind, best, "it is the plan" if plan in members else "is the same as the plan", 0.0)
    if best.step is None:
        return WhyNot(kind, best, f"infeasible: {best.why}")
    slower = best.step - plan.step if plan.step is not None else None
    return WhyNot(kind, best, _reason(best, slower, plan.step or best.step), slower)


def _reason(lost: Tried, slower: float | None, step: float) -> str:
    if lost.fits is False:
        missing = (lost.peak_bytes or 0) - (lost.memory_bytes or 0.0)
        return f"does not fit: needs {bytes_text(missing)} more memory"
    if slower is None:
        return lost.why
    by = difference(slower, step)
    if lost.why in ("", "slower"):
        return by
    if lost.exposed is not None:
        return f"{by}, {lost.why}"
    return f"at least {by}, {lost.why}" if slower > 0 else lost.why


def difference(seconds: float, step: float) -> str:
    """Return the difference of a step from another one as text: `slower by 0.1 ms (6.3%)`."""
    if abs(seconds) < 1e-6 * step:
        return "as fast"
    return f"{'slower' if seconds > 0 else 'faster'} by {seconds_text(abs(seconds))} ({abs(seconds) / step:.1%})"


def figures(candidate: Tried) -> tuple[str, str, str]:
    """Return the step of a candidate, the exposed part of it and the peak memory as text, `-` if unknown."""
    step, exposed = (seconds_text(time) if time is not None else "-" for time in (candidate.step, candidate.exposed))
    return step, exposed, bytes_text(candidate.peak_bytes) if candidate.peak_bytes is not None else "-"
