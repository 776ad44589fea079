"""
Least squares with less weight on outliers (Huber, Robust Statistics, 1981), by `scipy.optimize.least_squares`.

The loss of a residual r is r^2 up to `large` and 2 large |r| - large^2 beyond: a measurement hardly moves the fit if
its process lost the core meanwhile. `fit_line` fits the alpha-beta line of a link (AutoDDL 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class RobustFit:
    """Unknowns at a local minimum of the loss, with the loss."""

    unknowns: Numbers
    loss: float


def robust_fit(
    residuals: Callable[[Numbers], Numbers],
    start: Numbers,
    *,
    measured: int,
    large: float = 1.0,
    bounds: tuple[Numbers | float, Numbers | float] | None = None,
    scale: float | Literal["jac"] = 1.0,
    difference: float | None = None,
    enough: float = 1e-8,
    steps: int = 100,
) -> RobustFit:
    """
    Minimise the loss of `residuals(unknowns)` from `start`.

    Args:
        measured: the number of residuals, the first ones, that are measurements; the others always count squared.
        large: a larger residual of a measurement counts linearly.
        bounds: the lower and upper bound of each unknown.
        scale: order of magnitude of the first change of an unknown; "jac" for the inverse of its
            derivatives.
        difference: the step for the estimate of derivatives, relative to an unknown; scipy's default if None.
        enough: the fit ends at a step that reduces the loss by less than this fraction.
        steps: upper bound on evaluations, apart from derivatives.
    """
    # Imported late: scipy takes long to load, and only the fit of a profile needs it.
    from scipy.optimize import least_squares

    # A step to residuals that are not finite is taken back.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        optimum = least_squares(
            residuals,
            start,
            bounds=bounds or (-np.inf, np.inf),
            # "trf" shortens its steps near a bound, and would end at once if it started there.
            method="dogbox" if bounds else "trf",
            x_scale=scale,
            loss=lambda squares: _huber(squares, measured),  # pyright: ignore[reportArgumentType]  # scipy has no types
            f_scale=large,
            diff_step=difference,
            ftol=enough,
            max_nfev=steps,
        )
    return RobustFit(optimum.x, 2.0 * float(optimum.cost))


def _huber(squares: Numbers, measured: int) -> Numbers:
    """Return, by residual, given its square in units of `large`, the loss and its first two derivatives."""
    outliers = (squares > 1.0) & (np.arange(len(squares)) < measured)
    roots = np.sqrt(np.where(outliers, squares, 1.0))
    return np.stack([np.where(outliers, 2.0 * roots - 1.0, squares), 1.0 / roots, -0.5 * outliers / roots**3])


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
        # The threshold of the Huber loss follows from the errors so far.
        deviation = _DEVIATION * float(np.median(np.abs(scaled @ solution - 1.0)))
        solution = robust_fit(
            lambda numbers: scaled @ numbers - 1.0,
            solution,
            measured=len(scaled),
            large=max(_HUBER * deviation, _LEAST_DEVIATION),
            bounds=(0.0, np.inf),
        ).unknowns
    errors = np.abs(scaled @ solution - 1.0)
    alpha, beta = map(float, solution / columns)
    return Line(alpha, beta, float(np.median(errors)), float(errors.max()))
