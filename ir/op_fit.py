"""
Fitting the roofline of a family of ops to measured times.

The model is `max(flops / F / efficiency(flops), bytes / B / efficiency(bytes)) + launch` (`OpRate`), with a curve of
efficiency for each of the two terms. Errors are of logarithms, for times
span orders of magnitude, and so are the parameters, which keeps them above zero. Measurements that no rate explains (a
process was taken off its core) count less: Huber's loss, by iteratively reweighted least squares, with the steps of
Levenberg and Marquardt.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from .op_cost import MULTIPLYING, VIEWS, OpWork
from .op_rate import OpRate
from .robust_fit import solved

Sample = tuple[float, float, float]
"""FLOPs, bytes and seconds of one op."""

_HUBER = 0.05
"""The error, as a part of the time, from which a measurement counts less."""

_STEPS = 60
_PER_KNOT, _KNOTS = 3, 8
_STIFFNESS = 0.3
"""How much a bend of the curve counts beside the error of a measurement, where few tell its height."""

_WORTH = 0.01
"""How much less a curve must make the loss, per knot, to be kept: noise alone makes it a little less."""

_WORKING = 0.2
"""The part of its time that an op must work, by the rates known so far, to tell of the curve."""

_MATTERS = 0.05
"""The part of a sample's time that a cost must explain to be known by it."""


def fit_rates(measured: Sequence[tuple[OpWork, float]]) -> list[tuple[OpRate, tuple[float, ...]]]:
    """
    The rates that explain the measured seconds of ops of several families, and by what part each misses them.

    For other families there is the rate of all that go over memory (`""`). Views have but a launch.
    """
    groups: dict[tuple[str, str], list[Sample]] = {}
    for work, seconds in measured:
        if work.flops or work.bytes:
            for family in {work.family, work.family if work.family in MULTIPLYING else ""}:
                groups.setdefault((family, work.dtype), []).append((work.flops, work.bytes, seconds))
    found: list[tuple[OpRate, tuple[float, ...]]] = []
    for (family, dtype), group in sorted(groups.items()):
        # The rate of other families comes first: its name is empty.
        others = next((rate for rate, _ in found if (rate.family, rate.dtype) == ("", dtype)), None)
        least = others.bandwidth if others is not None and family in MULTIPLYING else 0.0
        found.append(fit_rate(family, dtype, group, least))
    if launches := [seconds for work, seconds in measured if work.family == VIEWS]:
        launch = statistics.median(launches)
        found.append((OpRate(VIEWS, "", 1e12, 1e12, launch), tuple(launch / each - 1.0 for each in launches)))
    return found


def fit_rate(
    family: str, dtype: str, samples: Sequence[Sample], bandwidth: float = 0.0
) -> tuple[OpRate, tuple[float, ...]]:
    """
    The rate of a family and dtype that explains measured times, and by what part it misses each, in their order.

    A rate that bounds no sample is the highest that one reached.

    Args:
        bandwidth: the bytes/s that are had at least.

    Raises:
        ValueError: there is no sample, or one that did nothing or took no time.
    """
    what = f"{family or 'ops'} in {dtype or 'any dtype'}"
    if not samples:
        raise ValueError(f"no measurements of {what} to fit a rate to")
    if wrong := [each for each in samples if each[2] <= 0 or max(each[:2]) <= 0 or min(each[:2]) < 0]:
        raise ValueError(
            f"a measurement of {what} has (FLOPs, bytes, seconds) = {wrong[0]}; expected some work in a time above 0"
        )
    dearest = -math.log(bandwidth) if bandwidth else math.inf
    straight = [_fitted(start, samples) for start in _starts(samples, dearest)]
    plain = min(straight, key=lambda model: _loss(model, samples))
    bent = [_fitted(start, samples) for start in _with_curves(plain, samples)]
    best = min((plain, *bent), key=lambda model: _loss(model, samples) + _WORTH * sum(map(len, model.knots)))
    rate = _rate(family, dtype, best, samples)
    return rate, tuple(rate.seconds(flops, moved) / seconds - 1.0 for flops, moved, seconds in samples)


_Curve: TypeAlias = tuple[float, ...]
"""Of some knots, the logarithms of sizes, or of efficiencies."""


@dataclass(frozen=True)
class _Model:
    """
    The logarithms of what is fitted: seconds per FLOP, per byte and of a launch, and efficiencies at the knots.

    There is a curve for FLOPs and one for bytes. The last knot's efficiency is held at 0: the largest ops reach the
    rates. A byte costs no more than `dearest`.
    """

    constants: tuple[float, float, float]
    dearest: float
    knots: tuple[_Curve, _Curve] = ((), ())
    heights: tuple[_Curve, _Curve] = ((), ())

    @property
    def first(self) -> tuple[int, int]:
        """By curve, the number of the parameter that is its first height."""
        return (3, 3 + max(len(self.knots[0]) - 1, 0))

    @property
    def parameters(self) -> int:
        """How many there are."""
        return self.first[1] + max(len(self.knots[1]) - 1, 0)

    def moved_by(self, step: Sequence[float]) -> _Model:
        """With a step added to all that is fitted, nothing by more than a factor of e: further off it is not linear."""
        step = [min(max(value, -1.0), 1.0) for value in step]
        flop, byte, launch = (c + s for c, s in zip(self.constants, step[:3], strict=True))
        computing, moving = (
            tuple(h + s for h, s in zip(heights, [*step[at : at + len(heights) - 1], 0.0], strict=True))
            if heights
            else ()
            for at, heights in zip(self.first, self.heights, strict=True)
        )
        return replace(self, constants=(flop, min(byte, self.dearest), launch), heights=(computing, moving))

    def explain(self, sample: Sample) -> tuple[float, dict[int, float]]:
        """The error of the logarithm of a sample's time, and its derivatives by number of parameter."""
        shares = [self._shares(term, sample[term]) for term in (0, 1)]
        reached = [
            sum(share * math.exp(self.heights[term][k]) for k, share in shares[term].items()) or 1.0 for term in (0, 1)
        ]
        times = [sample[term] * math.exp(self.constants[term]) / reached[term] for term in (0, 1)]
        term, launch = (0 if times[0] > times[1] else 1), math.exp(self.constants[2])
        working, total = times[term], times[term] + launch
        slopes = {term: working / total, 2: launch / total}
        for k, share in shares[term].items():
            if k < len(self.heights[term]) - 1:
                height = math.exp(self.heights[term][k])
                slopes[self.first[term] + k] = -working / total * share * height / reached[term]
        return math.log(total / sample[2]), slopes

    def _shares(self, term: int, amount: float) -> dict[int, float]:
        """By number of knot, its part in the efficiency of so many FLOPs, or bytes."""
        knots = self.knots[term]
        if not knots or amount <= 0:
            return {}
        if (size := math.log(amount)) <= knots[0]:
            return {0: 1.0}
        above = next((k for k, knot in enumerate(knots) if knot > size), None)
        if above is None:
            return {len(knots) - 1: 1.0}
        share = (size - knots[above - 1]) / (knots[above] - knots[above - 1])
        return {above - 1: 1.0 - share, above: share}

    def bends(self) -> Iterator[tuple[float, dict[int, float]]]:
        """Like errors of measurements: how far the heights of neighbours differ, made small."""
        for first, heights in zip(self.first, self.heights, strict=True):
            for k, (one, other) in enumerate(itertools.pairwise(heights)):
                slopes = {first + k: -_STIFFNESS}
                if k + 1 < len(heights) - 1:
                    slopes[first + k + 1] = _STIFFNESS
                yield _STIFFNESS * (other - one), slopes


def _loss(model: _Model, samples: Sequence[Sample]) -> float:
    """Huber's: quadratic in small errors, linear in large ones."""
    sizes = (abs(model.explain(sample)[0]) for sample in samples)
    return sum(e * e if e < _HUBER else _HUBER * (2 * e - _HUBER) for e in sizes) + sum(
        bend * bend for bend, _ in model.bends()
    )


def _fitted(model: _Model, samples: Sequence[Sample]) -> _Model:
    """The model with the least loss that is downhill from `model`."""
    loss, damping = _loss(model, samples), 1e-2
    for _ in range(_STEPS):
        step = _step(model, samples, damping)
        tried = model.moved_by(step)
        if (now := _loss(tried, samples)) >= loss:
            damping *= 10
            if damping > 1e6:
                break
            continue
        gained, model, loss, damping = loss - now, tried, now, max(damping / 10, 1e-9)
        if gained < 1e-6 * loss:
            break
    return model


def _step(model: _Model, samples: Sequence[Sample], damping: float) -> list[float]:
    """Where the model, taken as linear, has the least sum of weighted squares; damped."""
    count = model.parameters
    squares = [[0.0] * count for _ in range(count)]
    downhill = [0.0] * count
    errors = [(error, slopes, min(1.0, _HUBER / (abs(error) + 1e-12))) for error, slopes in map(model.explain, samples)]
    for error, slopes, weight in (*errors, *((bend, slopes, 1.0) for bend, slopes in model.bends())):
        for i, slope in slopes.items():
            downhill[i] -= weight * slope * error
            for j, other in slopes.items():
                squares[i][j] += weight * slope * other
    for i in range(count):
        # What no sample tells of stays as it is.
        squares[i][i] = squares[i][i] * (1.0 + damping) + 1e-12
    return solved(squares, downhill)


def _starts(samples: Sequence[Sample], dearest: float) -> Iterator[_Model]:
    """Where to begin: the launch of the fastest sample, the costs of fast ones or of middling ones."""
    per_flop, per_byte = (sorted(s[2] / s[term] for s in samples if s[term]) for term in (0, 1))
    launch = math.log(min(sample[2] for sample in samples) / 2)
    for low, high in ((0.05, 0.05), (0.05, 0.5), (0.5, 0.05)):
        flop, byte = (
            math.log(costs[int(part * len(costs))] if costs else math.exp(-100.0))
            for costs, part in ((per_flop, low), (per_byte, high))
        )
        yield _Model((flop, min(byte, dearest), launch), dearest)


def _with_curves(plain: _Model, samples: Sequence[Sample]) -> Iterator[_Model]:
    """The plain model and ones of smaller launches, with flat curves, or one, over the sizes that tell of them."""
    flop, byte, launch = plain.constants
    for less in (1.0, 4.0, 16.0):
        model = replace(plain, constants=(flop, byte, launch - math.log(less)))
        told = [each for sample in samples if (each := _telling(model, sample)) is not None]
        computing, moving = (_knots(sorted(size for term, size in told if term == each)) for each in (0, 1))
        for knots in dict.fromkeys([(computing, moving), (computing, ()), ((), moving)]):
            if any(knots):
                flat = ((0.0,) * len(knots[0]), (0.0,) * len(knots[1]))
                yield replace(model, knots=knots, heights=flat)


def _knots(sizes: Sequence[float]) -> tuple[float, ...]:
    """Some of the ascending sizes, each at least twice the one before: the least, and equally many between others."""
    count = min(_KNOTS, len(sizes) // _PER_KNOT)
    knots: list[float] = []
    for i in range(count if count > 1 else 0):
        size = sizes[round(i * (len(sizes) - 1) / (count - 1))]
        if not knots or size - knots[-1] >= math.log(2):
            knots.append(size)
    return tuple(knots) if len(knots) > 1 else ()


def _telling(model: _Model, sample: Sample) -> tuple[int, float] | None:
    """Of which term a sample tells, FLOPs or bytes, and the logarithm of its size, if that is more than a launch."""
    slopes = model.explain(sample)[1]
    term = 0 if 0 in slopes else 1
    return (term, math.log(sample[term])) if slopes[term] > _WORKING else None


def _rate(family: str, dtype: str, model: _Model, samples: Sequence[Sample]) -> OpRate:
    """The model as a rate; a cost that matters for no sample is as low as it was seen to be."""
    flop, byte, launch = map(math.exp, model.constants)
    slopes = [model.explain(sample)[1] for sample in samples]
    bound = [term for term in (0, 1) if any(each.get(term, 0.0) > _MATTERS for each in slopes)]
    seen = [max(s[term] / max(s[2] - launch, _MATTERS * s[2]) for s in samples) for term in (0, 1)]
    seen[1] = max(seen[1], math.exp(-model.dearest))
    flops, bandwidth = (1.0 / cost if term in bound else seen[term] for term, cost in enumerate((flop, byte)))
    computing, moving = (
        tuple((math.exp(k), math.exp(h)) for k, h in zip(*pair, strict=True))
        for pair in zip(model.knots, model.heights, strict=True)
    )
    # Work of one sort alone says nothing of the other: an operation is then as good as a byte.
    return OpRate(family, dtype, flops or bandwidth, bandwidth or flops, launch, computing, moving)
