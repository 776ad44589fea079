"""The alpha-beta line through measured times (AutoDDL 3)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_HUBER = 1.345
"""From so many deviations on, an error counts by its size and not by its square."""

_ITERATIONS = 30


@dataclass(frozen=True)
class Line:
    """
    Seconds of latency and seconds per byte, and how far the line is from the points: of the relative errors the
    middle one and the largest.
    """

    alpha: float
    beta: float
    middle_error: float = 0.0
    worst_error: float = 0.0

    def seconds(self, count: float) -> float:
        """The time of `count` bytes."""
        return self.alpha + self.beta * count


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """
    The line through (bytes, seconds) by least squares of *relative* errors, of which large ones count less (Huber).

    An absolute error would make latency noise of the largest size. Neither number is negative: where the best line
    has one that is, the other alone is fitted.
    """
    weights = [1.0] * len(points)
    line = Line(0.0, 0.0)
    for _ in range(_ITERATIONS):
        line = _weighted(points, weights)
        errors = [abs(line.seconds(count) / seconds - 1) for count, seconds in points]
        scale = 1.4826 * statistics.median(errors)
        renewed = [1.0 if error <= _HUBER * scale else _HUBER * scale / error for error in errors]
        if all(abs(a - b) < 1e-6 for a, b in zip(renewed, weights, strict=True)):
            break
        weights = renewed
    errors = [abs(line.seconds(count) / seconds - 1) for count, seconds in points]
    return Line(line.alpha, line.beta, statistics.median(errors), max(errors))


def _weighted(points: Sequence[tuple[float, float]], weights: Sequence[float]) -> Line:
    rows = [(w / seconds, w * count / seconds, w) for (count, seconds), w in zip(points, _roots(weights), strict=True)]
    aa, ab, bb = (sum(x[i] * x[j] for x in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(x[i] * x[2] for x in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    # Relative to its terms: one size alone, or none that differ, leaves the line open.
    if determinant <= 1e-12 * aa * bb:
        return Line(a / aa, 0.0)
    alpha, beta = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if alpha < 0:
        return Line(0.0, b / bb)
    return Line(alpha, beta) if beta >= 0 else Line(a / aa, 0.0)


def _roots(weights: Sequence[float]) -> list[float]:
    return [weight**0.5 for weight in weights]
