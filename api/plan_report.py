"""What `plan.json` holds of a plan."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from ..ir.units import seconds_text
from ..passes.planning.records import CandidateRecord
from ..passes.planning.summary import TriedRecord


class RatiosReport(TypedDict):
    """The shares of the devices along an axis, in a segment of the model."""

    mesh: str
    segment: int
    axis: str
    shares: list[float]


class HeldReport(TypedDict):
    """The bytes of a value."""

    value: str
    bytes: int


class PeakReport(TypedDict):
    """Where memory is fullest: during which op, and what is held there, by what it is for and by value."""

    bytes: int
    at: str
    roles: dict[str, int]
    largest: list[HeldReport]


class MeasuredReport(TypedDict):
    """A plan that was run to be compared."""

    plan: str | None
    predicted_step_s: float
    measured_step_s: float


def step_text(report: PlanReport) -> str:
    """Return the predicted step as text, with the range of it if one is known: `314 ms (283 ms to 413 ms)`."""
    text, expected = seconds_text(report["predicted_step_s"]), report.get("predicted_range_s")
    return f"{text} ({' to '.join(map(seconds_text, expected))})" if expected else text


class PlanReport(TypedDict):
    """A plan: times in seconds, sizes in bytes."""

    name: str
    step: str | None
    mesh: dict[str, int]
    ranks: int
    cluster: str
    stages: list[int]
    ratios: list[RatiosReport]
    pass_seconds: dict[str, float]
    predicted_step_s: float
    predicted_range_s: list[float] | None
    predicted_compute_s: float
    predicted_exposed_communication_s: float
    chosen: str | None
    bound_s: float | None
    bound_of: str | None
    gap: float | None
    chosen_candidate: CandidateRecord | None
    runners_up: list[CandidateRecord]
    candidates: list[TriedRecord]
    search: dict[str, float | None]
    peak_bytes: list[int]
    peak: PeakReport
    collective_bytes: dict[str, float]
    versions: dict[str, str]
    pipeline: NotRequired[str]
    total_seconds: NotRequired[float]
    measured: NotRequired[list[MeasuredReport]]
    replan: NotRequired[dict[str, Any]]
