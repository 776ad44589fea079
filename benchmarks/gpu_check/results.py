"""The results of stages: rows with figures and verdicts, and the journal that keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

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


@dataclass(frozen=True)
class Journal:
    """
    The journal of a stage: rank 0 records begun cases and their results, so that a crash loses only one case.
    """

    path: Path

    @staticmethod
    def of(out: Path, stage: str) -> Journal:
        """Return the journal of a stage, in the folder of the report."""
        return Journal(out / "work" / f"{stage}.jsonl")

    def begin(self, case: str) -> None:
        self._note({"begin": case})

    def add(self, row: Row) -> None:
        self._note({"row": asdict(row)})

    def _note(self, entry: object) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def rows(self) -> list[Row]:
        return [Row(**entry["row"]) for entry in self._entries() if "row" in entry]

    def open_case(self) -> str:
        """Return the case that began last if it has no result, or ""."""
        entries = self._entries()
        return entries[-1].get("begin", "") if entries else ""

    def _entries(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        # The last line may be incomplete, if its writer died while writing.
        complete = [line for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in complete]
