"""The figures of a plan and its comparison with other kinds of plans, as tables and as text."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..ir.units import seconds_text
from ..passes.planning.legend import legend
from ..passes.planning.summary import Tried
from .plan_report import MeasuredReport, PlanReport, plan_rows
from .why_not import WhyNot, figures, why_not

WIDTH = 100
"""The width of tables in files and pipes, unless the environment variable COLUMNS has another one."""


_WORD = 16
"""The length of a word that may be divided in a narrow column."""


def print_parts(parts: Iterable[Table | str], file: IO[str]) -> None:
    """
    Print tables and lines to a stream.

    On a terminal tables have boxes and the width of the terminal. Elsewhere they have at most `WIDTH` columns and no
    boxes. Cells that are too wide wrap; nothing is cut off. Lines of text do not wrap, so that commands in them can be
    copied.
    """
    is_terminal = Console(file=file).is_terminal
    console = _Console(file=file, width=None if is_terminal else _width(), markup=False, emoji=False)
    for part in parts:
        if isinstance(part, str):
            console.print(Text(_printable(part)), soft_wrap=True)
            continue
        for column in part.columns:
            column.overflow = "fold"
            words = (len(word) for cell in (column.header, *column.cells) for word in str(cell).split())
            # Otherwise Rich cuts words in many columns before it wraps the text in few.
            column.min_width = min(max(words, default=0), _WORD)
        if not is_terminal:
            if part.title is not None:
                # A title of a table wraps at the width of the table.
                console.print(part.title, soft_wrap=True)
            part.box, part.title, part.pad_edge = None, None, False
        console.print(part)


def text_of(parts: Iterable[Table | str]) -> str:
    """Return tables and lines as the text that `print_parts` writes to a file."""
    file = io.StringIO()
    print_parts(parts, file)
    return file.getvalue()


def _width() -> int:
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else WIDTH


class _Console(Console):
    """A console that prints the user's names verbatim, without interpreting markup or terminal codes."""

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(_printable(text), **settings)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def rows_table(title: str, rows: Mapping[str, str]) -> Table:
    """Return a table of names with their values."""
    table = Table(title=title, show_header=False)
    for row in rows.items():
        table.add_row(*row)
    return table


def legend_tables(names: Iterable[str | None]) -> list[Table]:
    """Return the legend of the names of plans as one table, or an empty list if they have no terms to explain."""
    terms = legend(name for name in names if name)
    return [rows_table("terms in the names of plans", terms)] if terms else []


def measured_table(measured: Sequence[MeasuredReport]) -> Table:
    """Return a table of the plans that were run."""
    table = Table("plan", "predicted step", "measured step", title="the plans that were run")
    for each in measured:
        table.add_row(each["plan"], seconds_text(each["predicted_step_s"]), seconds_text(each["measured_step_s"]))
    return table


def plan_parts(report: PlanReport, reasons: Sequence[WhyNot] | None = None) -> list[Table | str]:
    """
    Return the figures of a plan, the best plan of every other kind with the reason why it lost, and the terms in names.

    Args:
        reasons: the result of `why_not`, if it is known already.
    """
    facts = {**plan_rows(report), "of candidates": str(len(report["candidates"]))}
    plan = rows_table(f"{report['name']} on {report['cluster']}", facts)
    if report["chosen_candidate"] is None:
        return [plan, "the plan was not made by a search over plans, so there are no alternatives to compare"]
    kinds = Table("why not", "best of its kind", "step", "exposed", "peak", "because", title="other kinds of plans")
    reasons = why_not(report) if reasons is None else reasons
    for each in reasons:
        best = each.best or Tried("-", each.why)
        kinds.add_row(each.kind, best.name, *figures(best), each.why)
    measured = report.get("measured", [])
    tables = [plan, kinds, *([measured_table(measured)] if measured else [])]
    best = (each.best.name for each in reasons if each.best is not None)
    return [*tables, *legend_tables([report["chosen"], *best, *(run["plan"] for run in measured)])]
