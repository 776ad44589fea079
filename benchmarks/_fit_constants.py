"""
Fit a few physical constants to measured times.

The fit uses logarithms of constants and times, since rates, sizes and latencies are positive and span orders of
magnitude, and errors are relative. Measurements that no constants explain weigh less (`robust_fit`). The value in a
data sheet counts as one more measurement of a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.runtime.profile.fit import Numbers, RobustFit, robust_fit

Model = Callable[[Mapping[str, float]], Sequence[float]]
"""A function from constants to the predicted seconds of all measurements."""

_DIFFERENCE = 1e-3
"""Step in a logarithm for numerical derivatives; simulated times are smooth only at this scale."""

_ENOUGH = 3e-3
"""Relative decrease of the loss below which the fit stops, since evaluating a model may be slow."""

_STEPS = 40


@dataclass(frozen=True)
class Constant:
    """A number to fit, with its expected value and a factor for its uncertainty. A factor of 1 keeps it fixed."""

    name: str
    expected: float
    factor: float = 3.0


@dataclass(frozen=True)
class FittedConstants:
    """The fitted constants, and log(predicted / measured) of each measurement."""

    constants: Mapping[str, float]
    errors: tuple[float, ...]


def fit_constants(
    model: Model, measured: Sequence[float], constants: Sequence[Constant], *, noise: float = 0.05
) -> FittedConstants:
    """
    Return the constants that explain `measured` seconds best.

    `noise` is the relative uncertainty of a measurement; errors beyond it weigh less and less. Raises ValueError if
    nothing was measured, or a measured time is zero or negative.
    """
    if not measured or min(measured) <= 0:
        raise ValueError(f"expected measured times above 0 s, found {min(measured, default='none')}")
    free = [constant for constant in constants if constant.factor > 1.0]
    uncertain = np.array([math.log(constant.factor) for constant in free])
    logarithms = np.log(measured)

    def named(unknowns: Numbers) -> dict[str, float]:
        """Return the constants; `unknowns` are the logarithms of value over expectation of the free ones."""
        factors = dict(zip((constant.name for constant in free), map(math.exp, unknowns), strict=True))
        return {constant.name: constant.expected * factors.get(constant.name, 1.0) for constant in constants}

    def errors(unknowns: Numbers) -> Numbers:
        return np.log(model(named(unknowns))) - logarithms

    def residuals(unknowns: Numbers) -> Numbers:
        """Return all errors, each divided by its uncertainty."""
        return np.concatenate([errors(unknowns) / noise, np.asarray(unknowns) / uncertain])

    def fitted(start: Numbers, measured: int) -> RobustFit:
        return robust_fit(
            residuals, start, measured=measured, scale="jac", difference=_DIFFERENCE, enough=_ENOUGH, steps=_STEPS
        )

    expected = np.zeros(len(free))
    # Two starts: at the expected values large errors have little weight; least squares may follow outliers too far.
    starts = (expected, fitted(expected, measured=0).unknowns)
    best = min((fitted(start, len(measured)) for start in starts), key=lambda fit: fit.loss).unknowns
    return FittedConstants(named(best), tuple(map(float, errors(best))))
