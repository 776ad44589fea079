"""Counters and timers of a search, by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from time import perf_counter

from .reduction import Graph


class Meter:
    """Statistics of a search: numbers of nodes and states at the start of each step, and the seconds of the steps."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def count(self, step: str, graph: Graph) -> None:
        """Add the numbers of nodes and states of `graph` to the counters of `step`."""
        self._counts[f"times_{step}"] += 1
        self._counts[f"nodes_{step}"] += len(graph.unary)
        self._counts[f"states_{step}"] += graph.total_states()

    @contextmanager
    def timed(self, step: str) -> Generator[None]:
        """Add the seconds of the body to the timer of `step`."""
        start = perf_counter()
        try:
            yield
        finally:
            self._seconds[step] = self._seconds.get(step, 0.0) + perf_counter() - start

    def report(self, computed: Counter[str]) -> dict[str, int | float]:
        """Return everything by name; `computed` counts distinct computations by operation."""
        return {
            **self._counts,
            "computed": computed.total(),
            **{f"computed_{operation}": times for operation, times in sorted(computed.items())},
            **{f"seconds_{step}": seconds for step, seconds in self._seconds.items()},
        }
