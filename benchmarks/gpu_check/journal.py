"""The file in which rank 0 of a stage notes what it begins and what it found, so that a crash loses one case alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .results import Row


def journal_of(out: Path, stage: str) -> Journal:
    """The journal of a stage, in the folder of the report."""
    return Journal(out / "work" / f"{stage}.jsonl")


@dataclass(frozen=True)
class Journal:
    """The journal of a stage; one process writes it at a time."""

    path: Path

    def begin(self, case: str) -> None:
        """Note that a case begins."""
        self._note({"begin": case})

    def add(self, row: Row) -> None:
        """Note what a case came to."""
        self._note({"row": asdict(row)})

    def _note(self, entry: object) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def rows(self) -> list[Row]:
        """What was found so far."""
        return [Row.read(entry["row"]) for entry in self._entries() if "row" in entry]

    def open_case(self) -> str:
        """The case that began last, if nothing is known of it; otherwise empty."""
        entries = self._entries()
        return entries[-1].get("begin", "") if entries else ""

    def _entries(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        # Whoever wrote the last line may have died in the middle of it.
        whole = [line for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in whole]
