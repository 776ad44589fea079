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
    A line of seconds of latency plus seconds per byte, with the median and the largest relative error of its points.
    """

    alpha: float
    beta: float
    middle_error: float = 0.0
    worst_error: float = 0.0

    def seconds(self, count: float) -> float:
        """Return the seconds for `count` bytes."""
        return self.alpha + self.beta * count


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """
    Fit a line to (bytes, seconds) by least squares of *relative* errors, with less weight on large errors (Huber).

    An absolute error would turn the noise of the largest size into latency. Alpha and beta are at least 0. Measurements
    of a single size give latency alone. The threshold of large errors follows from the median error of the line, so the
    fit is repeated.
    """
    counts, seconds = np.array(points).T
    if np.ptp(counts) == 0:
        counts = np.zeros_like(counts)
    # Relative errors are `scaled @ (columns * (alpha, beta)) - 1`.
    matrix = np.stack([1.0 / seconds, counts / seconds], axis=1)
    columns = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(float).tiny)
    scaled = matrix / columns
    solution = np.maximum(np.linalg.lstsq(scaled, np.ones(len(points)), rcond=None)[0], 0.0)
    for _ in range(_ROUNDS):
        solution = _robust(scaled, solution)
    errors = np.abs(scaled @ solution - 1.0)
    alpha, beta = map(float, solution / columns)
    return Line(alpha, beta, float(np.median(errors)), float(errors.max()))


def _robust(matrix: Numbers, start: Numbers) -> Numbers:
    """
    Return nonnegative numbers that minimize the Huber loss of `matrix @ numbers - 1`, with the threshold from the
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
