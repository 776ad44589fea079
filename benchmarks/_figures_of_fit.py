"""Figures that say how well predictions fit measurements."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The linear correlation; ZeroDivisionError where one of the two does not vary."""
    return statistics.correlation(xs, ys)


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The correlation of ranks; equal numbers have the middle of their ranks."""
    return pearson(_ranks(xs), _ranks(ys))


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> list[float]:
    """(predicted - measured) / measured, of each."""
    return [(p - m) / m for p, m in zip(predicted, measured, strict=True)]


def median_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """The median absolute relative error."""
    return statistics.median(map(abs, relative_errors(predicted, measured)))


def mean_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """The mean absolute relative error."""
    return statistics.fmean(map(abs, relative_errors(predicted, measured)))


def regret(predicted: Mapping[str, float], measured: Mapping[str, float]) -> float:
    """By which share of the measured best the one that is predicted best is slower."""
    chosen = min(predicted, key=lambda name: predicted[name])
    return measured[chosen] / min(measured.values()) - 1


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [(order.index(value) + len(order) - 1 - order[::-1].index(value)) / 2 for value in values]
