"""
Least squares with less weight on outliers (Huber, Robust Statistics, 1981), by `scipy.optimize.least_squares`.

The loss of a residual r is r^2 up to `large` and 2 large |r| - large^2 beyond: a measurement hardly moves the fit if
its process lost the core meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
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
