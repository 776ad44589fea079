"""Shared output of the commands of `shardwright`: progress on a terminal, and numbers as text."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..passes.planning.legend import legend


@contextmanager
def working(what: str) -> Generator[Callable[[str], None], None, None]:
    """
    Show on standard error the work in progress and its duration, if standard error is a terminal.

    Yields:
        A function to call with the name of every phase.
    """
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what)
        yield lambda phase: progress.update(task, description=f"{what}: {phase}")


@contextmanager
def plan_progress(phase: Callable[[str], None]) -> Generator[None, None, None]:
    """Pass the log messages of a search over plans, one line per candidate, to `phase`."""
    logger = logging.getLogger("shardwright.plan")
    handler, level = _Phases(phase), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Phases(logging.Handler):
    def __init__(self, phase: Callable[[str], None]) -> None:
        super().__init__(logging.DEBUG)
        self.phase = phase

    def emit(self, record: logging.LogRecord) -> None:
        self.phase(record.getMessage())


def process_began() -> float:
    """Return the start time of this process, by `time.time()`; the user's wait began then."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ran = time.clock_gettime(time.CLOCK_BOOTTIME) - float(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        ran = time.perf_counter() - _IMPORTED
    return time.time() - ran


_IMPORTED = time.perf_counter()


def print_report(*parts: Table | str, stderr: bool = False) -> None:
    """
    Print tables and lines to standard output: formatted on a terminal, otherwise one line per row, for `grep`.

    Args:
        stderr: whether to print to standard error instead.
    """
    is_terminal = Console(stderr=stderr).is_terminal
    console = _Console(stderr=stderr, width=None if is_terminal else _WIDE, markup=False, emoji=False)
    for part in parts:
        if isinstance(part, str):
            console.print(Text(_printable(part)), soft_wrap=True)
            continue
        if not is_terminal:
            if part.title is not None:
                # A title of a table wraps at the width of the table.
                console.print(part.title, soft_wrap=True)
            part.box, part.title, part.pad_edge = None, None, False
        console.print(part)


class _Console(Console):
    """A console that prints the user's names verbatim, without interpreting markup or terminal codes."""

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(_printable(text), **settings)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


_WIDE = 10_000
"""The width of output to files and pipes, large enough that lines do not wrap."""


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
