"""
Fitting a few physical constants to measured times.

Constants and times are taken by their logarithms: rates, sizes and latencies span orders of magnitude and are above
zero, and an error is a part of a time. Measurements that no constants explain count less (`robust_fit`).
What a data sheet says of a constant counts as one measurement more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.runtime.profile.robust_fit import Numbers, RobustFit, robust_fit

Model = Callable[[Mapping[str, float]], Sequence[float]]
"""Seconds of all that was measured, by the constants."""

_DIFFERENCE = 1e-3
"""What is added to a logarithm to estimate a derivative: simulated times are smooth only on that scale."""

_ENOUGH = 3e-3
"""The part of the loss that a step must gain to be followed by others: models may be slow."""

_STEPS = 40


@dataclass(frozen=True)
class Constant:
    """
    A number to find: what it is expected to be, and by what factor it may well be off; no factor holds it fixed.
    """

    name: str
    expected: float
    factor: float = 3.0


@dataclass(frozen=True)
class FittedConstants:
    """The constants found, and by measurement the logarithm of predicted over measured."""

    constants: Mapping[str, float]
    errors: tuple[float, ...]


def fit_constants(
    model: Model, measured: Sequence[float], constants: Sequence[Constant], *, noise: float = 0.05
) -> FittedConstants:
    """
    The constants that explain `measured` seconds best.

    Args:
        noise: the part of a time that measurements are uncertain by; errors beyond it count less and less.

    Raises:
        ValueError: nothing was measured, or not in a time above zero.
    """
    if not measured or min(measured) <= 0:
        raise ValueError(f"expected measured times above 0 s, found {min(measured, default='none')}")
    free = [constant for constant in constants if constant.factor > 1.0]
    uncertain = np.array([math.log(constant.factor) for constant in free])
    logarithms = np.log(measured)

    def named(unknowns: Numbers) -> dict[str, float]:
        """The constants, by the logarithms of found over expected."""
        factors = dict(zip((constant.name for constant in free), map(math.exp, unknowns), strict=True))
        return {constant.name: constant.expected * factors.get(constant.name, 1.0) for constant in constants}

    def errors(unknowns: Numbers) -> Numbers:
        return np.log(model(named(unknowns))) - logarithms

    def residuals(unknowns: Numbers) -> Numbers:
        """In units of how far each may well be off."""
        return np.concatenate([errors(unknowns) / noise, np.asarray(unknowns) / uncertain])

    def fitted(start: Numbers, measured: int) -> RobustFit:
        return robust_fit(
            residuals, start, measured=measured, scale="jac", difference=_DIFFERENCE, enough=_ENOUGH, steps=_STEPS
        )

    expected = np.zeros(len(free))
    # From what is expected, errors far off hardly pull; from plain least squares, outliers may have pulled too far.
    starts = (expected, fitted(expected, measured=0).unknowns)
    found = min((fitted(start, len(measured)) for start in starts), key=lambda fit: fit.loss).unknowns
    return FittedConstants(named(found), tuple(map(float, errors(found))))
