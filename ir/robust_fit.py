"""
Fitting a few physical constants to measured times.

Constants and times are taken by their logarithms: rates, sizes and latencies span orders of magnitude and are above
zero, and an error is a part of a time. Measurements that no constants explain count less: Huber's loss, by iteratively
reweighted least squares, with the steps of Levenberg and Marquardt. Derivatives are differences, so that any model of
time will do; they are kept up by Broyden's rule, for a model may be slow, and taken anew where that leads nowhere. What
a data sheet says of a constant counts as one measurement more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Model = Callable[[Mapping[str, float]], Sequence[float]]
"""Seconds of all that was measured, by the constants."""

_DIFFERENCE = 1e-3
_LONGEST = 1.0
_STEPS = 40
_WORTH = 3e-3
"""The part of the loss that a step must gain to be followed by others."""


@dataclass(frozen=True)
class Constant:
    """
    A number to find: what it is expected to be, and by what factor it may well be off; no factor holds it fixed.
    """

    name: str
    expected: float
    factor: float = 3.0


@dataclass(frozen=True)
class Fitted:
    """The constants found, and by measurement the logarithm of predicted over measured."""

    constants: Mapping[str, float]
    errors: tuple[float, ...]


def fit_constants(
    model: Model, measured: Sequence[float], constants: Sequence[Constant], *, noise: float = 0.05
) -> Fitted:
    """
    The constants that explain `measured` seconds best.

    Args:
        noise: the part of a time that measurements are uncertain by; errors beyond it count less and less.

    Raises:
        ValueError: nothing was measured, or not in a time above zero.
    """
    if not measured or min(measured) <= 0:
        raise ValueError(f"expected measured times above 0 s, found {min(measured, default='none')}")
    search = _Search(model, [math.log(seconds) for seconds in measured], constants, noise)
    found = search.run()
    return Fitted(search.named(found), tuple(search.errors(found)))


class _Search:
    """Goes downhill from what is expected; the unknowns are logarithms of found over expected."""

    def __init__(
        self, model: Model, measured: Sequence[float], constants: Sequence[Constant], noise: float
    ) -> None:
        self.model, self.measured, self.noise = model, measured, noise
        self.constants = constants
        self.free = [constant for constant in constants if constant.factor > 1.0]

    def named(self, unknowns: Sequence[float]) -> dict[str, float]:
        """The constants at a point."""
        found = {constant.name: constant.expected for constant in self.constants}
        for constant, unknown in zip(self.free, unknowns, strict=True):
            found[constant.name] *= math.exp(unknown)
        return found

    def errors(self, unknowns: Sequence[float]) -> list[float]:
        """By measurement."""
        seconds = self.model(self.named(unknowns))
        return [math.log(s) - m for s, m in zip(seconds, self.measured, strict=True)]

    def loss(self, unknowns: Sequence[float], errors: Sequence[float]) -> float:
        """Huber's, in units of the noise, and the squares of how far constants are from what is expected."""
        scaled = (abs(error) / self.noise for error in errors)
        return sum(e * e if e < 1.0 else 2.0 * e - 1.0 for e in scaled) + sum(
            (unknown / math.log(constant.factor)) ** 2 for constant, unknown in zip(self.free, unknowns, strict=True)
        )

    def run(self) -> list[float]:
        """The point with the least loss that is downhill."""
        at = [0.0] * len(self.free)
        errors = self.errors(at)
        loss, damping = self.loss(at, errors), 1e-2
        slopes, fresh = self.slopes(at, errors), True
        for _ in range(_STEPS):
            step = [min(max(s, -_LONGEST), _LONGEST) for s in self.step(at, errors, slopes, damping)]
            tried = [a + s for a, s in zip(at, step, strict=True)]
            new_errors = self.errors(tried)
            gained = loss - self.loss(tried, new_errors)
            if gained > 0.0:
                slopes = _updated(slopes, step, errors, new_errors)
                at, errors, loss, damping = tried, new_errors, loss - gained, max(damping / 10.0, 1e-6)
            if gained < _WORTH * loss and not fresh:
                slopes, fresh = self.slopes(at, errors), True
            elif gained <= 0.0 and damping < 1e4:
                damping *= 10.0
            elif gained < _WORTH * loss:
                break
            else:
                fresh = False
        return at

    def slopes(self, at: Sequence[float], errors: Sequence[float]) -> list[list[float]]:
        """By unknown and measurement, the derivative of the error."""
        found: list[list[float]] = []
        for index in range(len(at)):
            beside = list(at)
            beside[index] += _DIFFERENCE
            found.append([(b - a) / _DIFFERENCE for a, b in zip(errors, self.errors(beside), strict=True)])
        return found

    def step(
        self, at: Sequence[float], errors: Sequence[float], slopes: Sequence[Sequence[float]], damping: float
    ) -> list[float]:
        """Where the model, taken as linear, has the least loss; damped."""
        weights = [min(1.0, self.noise / (abs(error) + 1e-12)) / self.noise**2 for error in errors]
        trusted = [math.log(constant.factor) ** -2 for constant in self.free]
        matrix = [
            [sum(w * a * b for w, a, b in zip(weights, one, other, strict=True)) for other in slopes] for one in slopes
        ]
        wanted = [-sum(w * s * e for w, s, e in zip(weights, one, errors, strict=True)) for one in slopes]
        for i, trust in enumerate(trusted):
            wanted[i] -= trust * at[i]
            matrix[i][i] = (matrix[i][i] + trust) * (1.0 + damping)
        return solved(matrix, wanted)


def _updated(
    slopes: Sequence[Sequence[float]], step: Sequence[float], before: Sequence[float], after: Sequence[float]
) -> list[list[float]]:
    """The slopes changed as little as explains what a step did to the errors."""
    length = sum(s * s for s in step)
    expected = [sum(s * slope for s, slope in zip(step, column, strict=True)) for column in zip(*slopes, strict=True)]
    missed = [a - b - e for a, b, e in zip(after, before, expected, strict=True)]
    return [
        [slope + miss * s / length for slope, miss in zip(row, missed, strict=True)]
        for row, s in zip(slopes, step, strict=True)
    ]


def solved(matrix: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float]:
    """The solution of a small symmetric positive definite system."""
    count = len(wanted)
    rows = [[*row, value] for row, value in zip(matrix, wanted, strict=True)]
    for i in range(count):
        for k in range(i + 1, count):
            times = rows[k][i] / rows[i][i]
            rows[k] = [x - times * y for x, y in zip(rows[k], rows[i], strict=True)]
    solution = [0.0] * count
    for i in reversed(range(count)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, count))
        solution[i] = (rows[i][count] - known) / rows[i][i]
    return solution
