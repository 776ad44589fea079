"""
Least squares in which outliers count less (Huber, Robust Statistics, 1981), by `scipy.optimize.least_squares`.

The loss of a residual r is r^2 up to `large` and 2 large |r| - large^2 beyond: a measurement during which a process was
taken off its core hardly moves the fit.
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
    """The unknowns with the least loss downhill from where the fit began, and that loss."""

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
        measured: how many residuals, the first ones, are of measurements; others always count by their squares.
        large: the residual from which on a measurement counts linearly.
        bounds: the least and the largest of each unknown.
        scale: by how much an unknown is changed at first, in the order of magnitude; "jac": by how little its
            derivatives are.
        difference: the step by which derivatives are estimated, as a part of an unknown; scipy's by default.
        enough: the part of the loss that a step must gain to be followed by others.
        steps: the most evaluations, but for those that estimate derivatives.
    """
    # Only who fits a profile waits for scipy to load.
    from scipy.optimize import least_squares

    # Residuals that are not finite take a step back.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        found = least_squares(
            residuals,
            start,
            bounds=bounds or (-np.inf, np.inf),
            # The steps of "trf" are cut at bounds: begun at one, it would end there.
            method="dogbox" if bounds else "trf",
            x_scale=scale,
            loss=lambda squares: _huber(squares, measured),  # pyright: ignore[reportArgumentType]  # scipy has no types
            f_scale=large,
            diff_step=difference,
            ftol=enough,
            max_nfev=steps,
        )
    return RobustFit(found.x, 2.0 * float(found.cost))


def _huber(squares: Numbers, measured: int) -> Numbers:
    """By residual, given its square in units of `large`: the loss and its first two derivatives."""
    outliers = (squares > 1.0) & (np.arange(len(squares)) < measured)
    roots = np.sqrt(np.where(outliers, squares, 1.0))
    return np.stack([np.where(outliers, 2.0 * roots - 1.0, squares), 1.0 / roots, -0.5 * outliers / roots**3])
