"""The journal of a stage: rank 0 records begun cases and their results, so that a crash loses only one case."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .results import Row


def journal_of(out: Path, stage: str) -> Journal:
    """Return the journal of a stage, in the folder of the report."""
    return Journal(out / "work" / f"{stage}.jsonl")


@dataclass(frozen=True)
class Journal:
    """The journal of a stage. Only one process writes it at a time."""

    path: Path

    def begin(self, case: str) -> None:
        """Record that a case begins."""
        self._note({"begin": case})

    def add(self, row: Row) -> None:
        """Record the result of a case."""
        self._note({"row": asdict(row)})

    def _note(self, entry: object) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def rows(self) -> list[Row]:
        """Return all recorded results."""
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
