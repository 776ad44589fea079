"""The overlap of measured steps as a table of plain text, for ranks without better output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .measured_steps import MeasuredSteps, busiest, step_seconds
from .overlap import Overlap
from .units import seconds_text

COLUMNS = ("ranks", "phase", "over", "compute", "communication", "overlapped", "exposed", "overlap ratio")


def cells(overlap: Overlap) -> tuple[str, ...]:
    """Return the cells of a row that describe an overlap."""
    seconds = overlap.compute, overlap.communication, overlap.overlapped, overlap.exposed
    return (*map(seconds_text, seconds), f"{overlap.ratio:.0%}")


def measured_table(measured: MeasuredSteps) -> str:
    """Return the table of the step of median length, with the rank of each stage that computes longest."""
    step = measured.middle
    count = f"the median of {len(measured.steps)} steps" if len(measured.steps) > 1 else "one step"
    title = f"{measured.name}, measured: {seconds_text(step_seconds(step))}, {count}"
    rows = [COLUMNS, *_rows(measured)]
    if len(rows) == 1:
        return f"{title}\nno rank communicates\n"
    return "\n".join([title, *_lines(rows)]) + "\n"


def _rows(measured: MeasuredSteps) -> Iterator[tuple[str, ...]]:
    for stage, rank in busiest(measured.middle).items():
        who = f"rank {rank.rank}" + (f" (stage {stage})" if stage is not None else "")
        for (phase, channel), overlap in rank.overlaps.items():
            yield who, phase, channel, *cells(overlap)


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
