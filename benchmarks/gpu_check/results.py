"""The results of stages: rows with figures and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["passed", "failed", "skipped", "measured"]
"""Verdict on a case or a stage. `measured` has figures but no criterion for failure."""

Figure = float | int | str


@dataclass(frozen=True)
class Row:
    """The result of one case: figures by name, with units, and a note on a failure or a skip, or another remark."""

    case: str
    verdict: Verdict
    figures: Mapping[str, Figure] = field(default_factory=dict[str, Figure])
    note: str = ""


@dataclass(frozen=True)
class StageResult:
    """The result of one stage, with its duration and the reason why it failed or was skipped as a whole."""

    name: str
    title: str
    verdict: Verdict
    seconds: float = 0.0
    rows: tuple[Row, ...] = ()
    reason: str = ""

    def count(self, verdict: Verdict) -> int:
        """Return the number of rows with this verdict."""
        return sum(row.verdict == verdict for row in self.rows)


def verdict_of(rows: Sequence[Row]) -> Verdict:
    """Return a stage's verdict: failed if a row failed, else passed if a row passed, else measured, else skipped."""
    verdicts = {row.verdict for row in rows}
    order: tuple[Verdict, ...] = ("failed", "passed", "measured")
    for verdict in order:
        if verdict in verdicts:
            return verdict
    return "skipped"


def exit_status(stages: Iterable[StageResult]) -> int:
    """Return 1 if a stage failed, else 0."""
    return int(any(stage.verdict == "failed" for stage in stages))
