"""The alpha-beta line through measured times (AutoDDL 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .robust_fit import Numbers, robust_fit

_HUBER = 1.345
"""Beyond this many standard deviations an error counts linearly, not by its square (Huber)."""

_DEVIATION = 1.4826
"""The standard deviation of normally distributed errors, in units of their median absolute value."""

_LEAST_DEVIATION = 1e-9
_ROUNDS = 10


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

    An absolute error would make latency noise of the largest size. Neither number is negative. Measurements of one
    size give latency alone. Which errors are large follows from the median error of the line, so it is fitted several
    times.
    """
    counts, seconds = np.array(points).T
    if np.ptp(counts) == 0:
        counts = np.zeros_like(counts)
    # Relative errors are `scaled @ (columns * (alpha, beta)) - 1`.
    matrix = np.stack([1.0 / seconds, counts / seconds], axis=1)
    columns = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(float).tiny)
    scaled = matrix / columns
    found = np.maximum(np.linalg.lstsq(scaled, np.ones(len(points)), rcond=None)[0], 0.0)
    for _ in range(_ROUNDS):
        found = _robust(scaled, found)
    errors = np.abs(scaled @ found - 1.0)
    alpha, beta = map(float, found / columns)
    return Line(alpha, beta, float(np.median(errors)), float(errors.max()))


def _robust(matrix: Numbers, start: Numbers) -> Numbers:
    """
    The numbers, none negative, for which `matrix @ numbers - 1` has the least Huber loss, given the deviation of the
    errors at `start`.
    """
    deviation = _DEVIATION * float(np.median(np.abs(matrix @ start - 1.0)))
    return robust_fit(
        lambda numbers: matrix @ numbers - 1.0,
        start,
        measured=len(matrix),
        large=max(_HUBER * deviation, _LEAST_DEVIATION),
        bounds=(0.0, np.inf),
    ).unknowns
