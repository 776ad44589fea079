"""What a stage of the check finds: rows with figures and verdicts, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["passed", "failed", "skipped", "measured"]
"""Of a case or a stage: `measured` where there are figures and no claim that they could break."""

Figure = float | int | str


@dataclass(frozen=True)
class Row:
    """
    What one case came to.

    Args:
        figures: by name, with the unit in the name.
        note: why it failed or was skipped, or what else a reader should know.
    """

    case: str
    verdict: Verdict
    figures: Mapping[str, Figure] = field(default_factory=dict[str, Figure])
    note: str = ""

    @staticmethod
    def read(given: Mapping[str, Any]) -> Row:
        """The row that `asdict` made a mapping of."""
        return Row(given["case"], given["verdict"], given["figures"], given["note"])


@dataclass(frozen=True)
class StageResult:
    """
    What one stage came to.

    Args:
        seconds: that it took, the start of its processes included.
        reason: why it failed or was skipped as a whole; empty where its rows say all.
    """

    name: str
    title: str
    verdict: Verdict
    seconds: float = 0.0
    rows: tuple[Row, ...] = ()
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def count(self, verdict: Verdict) -> int:
        """How many rows have this verdict."""
        return sum(row.verdict == verdict for row in self.rows)


def verdict_of(rows: Sequence[Row]) -> Verdict:
    """Of a stage: failed if one row is; otherwise passed if one is; skipped where nothing was done."""
    found = {row.verdict for row in rows}
    order: tuple[Verdict, ...] = ("failed", "passed", "measured")
    for verdict in order:
        if verdict in found:
            return verdict
    return "skipped"


def exit_status(stages: Iterable[StageResult]) -> int:
    """1 where a stage failed."""
    return int(any(stage.verdict == "failed" for stage in stages))
