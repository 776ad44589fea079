"""
Fit of the roofline of a family of ops to measured times.

The model is `max(flops / F / efficiency(flops), bytes / B / efficiency(bytes)) + launch` (`OpRate`). Each of the two
terms has a curve of efficiency, linear in the logarithm of the size between knots and constant beyond. The residuals
(`_residuals`) are of logarithms, because times span orders of magnitude. The parameters are also logarithms, which
keeps the constants positive. The fit is robust (`robust_fit`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ...ir.cluster_fields import SECONDS
from ...ir.op_cost import MULTIPLYING, VIEWS, OpWork
from ...ir.op_rate import OpRate
from .fit import Numbers, robust_fit

Sample = tuple[float, float, float]
"""FLOPs, bytes and seconds of one op."""

_HUBER = 0.05
"""A measurement with a larger relative error counts less."""

_ENOUGH = 1e-6
"""The fit ends at a step that reduces the loss by less than this fraction."""

_PER_KNOT, _KNOTS = 3, 8
_STIFFNESS = 0.3
"""The weight of a bend of the curve relative to the error of a measurement, if measurements are few."""

_WORTH = 0.01
"""The least reduction of the loss per knot that justifies a curve; noise alone gives a small reduction."""

_WORKING = 0.2
"""The least part of its time that an op must work, by the present rates, to count as a measurement of the curve."""

_MATTERS = 0.05
"""The least part of a sample's time that a cost must explain for the sample to determine the cost."""


def fit_rates(measured: Sequence[tuple[OpWork, float]]) -> list[tuple[OpRate, tuple[float, ...]]]:
    """
    Fit rates to the measured seconds of ops of several families; return each rate with its relative errors.

    Other families share the rate of all memory-bound ops (family `""`). Views have only a launch time.
    """
    groups: dict[tuple[str, str], list[Sample]] = {}
    for work, seconds in measured:
        if work.flops or work.bytes:
            for family in {work.family, work.family if work.family in MULTIPLYING else ""}:
                groups.setdefault((family, work.dtype), []).append((work.flops, work.bytes, seconds))
    rates: list[tuple[OpRate, tuple[float, ...]]] = []
    for (family, dtype), group in sorted(groups.items()):
        # The rate of other families comes first: its name is empty.
        others = next((rate for rate, _ in rates if (rate.family, rate.dtype) == ("", dtype)), None)
        least = others.bandwidth if others is not None and family in MULTIPLYING else 0.0
        rates.append(fit_rate(family, dtype, group, least))
    if launches := [seconds for work, seconds in measured if work.family == VIEWS]:
        launch = statistics.median(launches)
        rates.append((OpRate(VIEWS, "", 1e12, 1e12, launch), tuple(launch / seconds - 1.0 for seconds in launches)))
    return rates


def fit_rate(
    family: str, dtype: str, samples: Sequence[Sample], bandwidth: float = 0.0
) -> tuple[OpRate, tuple[float, ...]]:
    """
    Fit the rate of a family and dtype to measured times; return it with its relative errors, in the order of samples.

    A rate that bounds no sample is the highest rate that a sample reached.

    Args:
        bandwidth: a lower bound on the bandwidth, bytes/s.

    Raises:
        ValueError: the list of samples is empty, or a sample lacks work or time.
    """
    what = f"{family or 'ops'} in {dtype or 'any dtype'}"
    if not samples:
        raise ValueError(f"there are no measurements of {what} to fit a rate to")
    if wrong := [sample for sample in samples if sample[2] <= 0 or max(sample[:2]) <= 0 or min(sample[:2]) < 0]:
        raise ValueError(
            f"a measurement of {what} has (FLOPs, bytes, seconds) = {wrong[0]}; expected some work in a time above 0"
        )
    dearest = -math.log(bandwidth) if bandwidth else math.inf
    table = np.array(samples)
    plain = min((_fitted(start, table) for start in _starts(samples, dearest)), key=lambda fit: fit.loss)
    bent = [_fitted(start, table) for start in _with_curves(plain.model, table)]
    best = min((plain, *bent), key=lambda fit: fit.loss + _WORTH * sum(map(len, fit.model.knots)))
    rate = _rate(family, dtype, best.model, table)
    return rate, tuple(rate.seconds(flops, moved) / seconds - 1.0 for flops, moved, seconds in samples)


_Curve: TypeAlias = tuple[float, ...]
"""Logarithms of sizes or of efficiencies, one per knot."""


@dataclass(frozen=True)
class _Model:
    """
    The fitted logarithms: of seconds per FLOP, per byte and per launch, and of efficiencies at the knots.

    There is a curve for FLOPs and another for bytes. The last knot's efficiency is fixed at log 1 = 0: the largest ops
    reach the rates. The cost of a byte is at most `dearest`.
    """

    constants: tuple[float, float, float]
    dearest: float
    knots: tuple[_Curve, _Curve] = ((), ())
    heights: tuple[_Curve, _Curve] = ((), ())

    @property
    def parameters(self) -> int:
        """The number of parameters: the constants, and the heights of both curves without their last ones."""
        return 3 + sum(max(len(heights) - 1, 0) for heights in self.heights)

    def moved_by(self, offsets: Numbers) -> _Model:
        """Return the model with an offset added to each parameter."""
        flop, byte, launch = (c + float(o) for c, o in zip(self.constants, offsets[:3], strict=True))
        first = 3 + max(len(self.heights[0]) - 1, 0)
        computing, moving = (
            (*(h + float(o) for h, o in zip(heights, added, strict=False)), 0.0) if heights else ()
            for heights, added in zip(self.heights, (offsets[3:first], offsets[first:]), strict=True)
        )
        return replace(self, constants=(flop, byte, launch), heights=(computing, moving))

    def terms(self, samples: Numbers) -> tuple[Numbers, Numbers, float]:
        """Return the seconds of computing and of moving bytes of each sample, and the seconds of a launch."""
        computing, moving = (self._term(term, samples[:, term]) for term in (0, 1))
        return computing, moving, float(np.exp(self.constants[2]))

    def _term(self, term: int, amounts: Numbers) -> Numbers:
        """Return the seconds for numbers of FLOPs (term 0) or bytes (term 1)."""
        seconds = amounts * np.exp(self.constants[term])
        if not self.knots[term]:
            return seconds
        return seconds / np.interp(_log(amounts), self.knots[term], np.exp(self.heights[term]))

    def residuals(self, samples: Numbers) -> Numbers:
        """
        Return the logarithms of predicted over measured seconds, then the differences in height of neighbouring knots,
        scaled by `_STIFFNESS`.
        """
        computing, moving, launch = self.terms(samples)
        bends = [_STIFFNESS * np.diff(heights) for heights in self.heights if heights]
        return np.concatenate([np.log((np.maximum(computing, moving) + launch) / samples[:, 2]), *bends])


def _log(amounts: Numbers) -> Numbers:
    """Return the logarithms of FLOPs or bytes, 0 for zero."""
    return np.log(np.maximum(amounts, 1.0))


@dataclass(frozen=True)
class _Fit:
    """A model at a local minimum of the loss, with the loss."""

    model: _Model
    loss: float


def _fitted(start: _Model, samples: Numbers) -> _Fit:
    """Fit offsets to the parameters, starting at 0, so that the first steps change costs by at most a factor of e."""
    highest = np.full(start.parameters, np.inf)
    highest[1] = start.dearest - start.constants[1]
    fit = robust_fit(
        lambda offsets: start.moved_by(offsets).residuals(samples),
        np.zeros(start.parameters),
        measured=len(samples),
        large=_HUBER,
        bounds=(-np.inf, highest),
        enough=_ENOUGH,
    )
    return _Fit(start.moved_by(fit.unknowns), fit.loss)


def _starts(samples: Sequence[Sample], dearest: float) -> Iterator[_Model]:
    """Yield start models: the launch time of the fastest sample, with the costs of fast or of median samples."""
    per_flop, per_byte = (sorted(s[2] / s[term] for s in samples if s[term]) for term in (0, 1))
    launch = math.log(min(sample[2] for sample in samples) / 2)
    for low, high in ((0.05, 0.05), (0.05, 0.5), (0.5, 0.05)):
        flop, byte = (
            math.log(costs[int(part * len(costs))] if costs else math.exp(-100.0))
            for costs, part in ((per_flop, low), (per_byte, high))
        )
        yield _Model((flop, min(byte, dearest), launch), dearest)


def _with_curves(plain: _Model, samples: Numbers) -> Iterator[_Model]:
    """Yield the plain model with smaller launches, and flat curves for one or both terms over the sizes they decide."""
    flop, byte, launch = plain.constants
    for less in (1.0, 4.0, 16.0):
        model = replace(plain, constants=(flop, byte, launch - math.log(less)))
        working = _parts(model, samples) > _WORKING
        computing, moving = (_knots(np.sort(_log(samples[working[:, term], term]))) for term in (0, 1))
        for knots in dict.fromkeys([(computing, moving), (computing, ()), ((), moving)]):
            if any(knots):
                flat = ((0.0,) * len(knots[0]), (0.0,) * len(knots[1]))
                yield replace(model, knots=knots, heights=flat)


def _parts(model: _Model, samples: Numbers) -> Numbers:
    """Return, by sample, the part of its time that FLOPs and bytes explain: 0 for the smaller of the two."""
    computing, moving, launch = model.terms(samples)
    longer = np.maximum(computing, moving)
    bound = np.stack([computing > moving, computing <= moving], axis=1)
    return bound * (longer / (longer + launch))[:, None]


def _knots(sizes: Numbers) -> tuple[float, ...]:
    """Pick knots from ascending sizes, with equally many sizes between them, each at least twice the previous one."""
    count = min(_KNOTS, len(sizes) // _PER_KNOT)
    knots: list[float] = []
    for i in range(count if count > 1 else 0):
        size = sizes[round(i * (len(sizes) - 1) / (count - 1))]
        if not knots or size - knots[-1] >= math.log(2):
            knots.append(size)
    return tuple(knots) if len(knots) > 1 else ()


def _rate(family: str, dtype: str, model: _Model, samples: Numbers) -> OpRate:
    """Convert the model to a rate; a cost that matters in no sample becomes the lowest cost that a sample shows."""
    flop, byte, launch = map(math.exp, model.constants)
    bound = _parts(model, samples).max(axis=0) > _MATTERS
    seconds = samples[:, 2]
    working = np.maximum(seconds - launch, _MATTERS * seconds)
    seen = [float((samples[:, term] / working).max()) for term in (0, 1)]
    seen[1] = max(seen[1], math.exp(-model.dearest))
    flops, bandwidth = (1.0 / cost if bound[term] else seen[term] for term, cost in enumerate((flop, byte)))
    computing, moving = (
        tuple((math.exp(k), math.exp(h)) for k, h in zip(*pair, strict=True))
        for pair in zip(model.knots, model.heights, strict=True)
    )
    # Samples with only FLOPs or only bytes do not tell the other rate: FLOPs and bytes then have the same rate.
    # A shorter time would be refused in a cluster file.
    launch = max(launch, SECONDS.least)
    return OpRate(family, dtype, flops or bandwidth, bandwidth or flops, launch, computing, moving)
