"""Shared output of the commands of `shardwright`: progress on a terminal, and tables."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..api.plan_tables import print_parts


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
    """Print tables and lines to standard output: boxed on a terminal, in its width, otherwise plain (`print_parts`)."""
    print_parts(parts, sys.stderr if stderr else sys.stdout)
