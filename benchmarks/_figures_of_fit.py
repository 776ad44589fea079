"""Figures that show how well predictions fit measurements."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the linear correlation. Raises ZeroDivisionError if `xs` or `ys` is constant."""
    return statistics.correlation(xs, ys)


def spearman(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the rank correlation. Equal numbers share the mean of their ranks."""
    return pearson(_ranks(xs), _ranks(ys))


def relative_errors(predicted: Sequence[float], measured: Sequence[float]) -> list[float]:
    """Return (predicted - measured) / measured for each pair."""
    return [(p - m) / m for p, m in zip(predicted, measured, strict=True)]


def median_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return the median absolute relative error."""
    return statistics.median(map(abs, relative_errors(predicted, measured)))


def mean_error(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return the mean absolute relative error."""
    return statistics.fmean(map(abs, relative_errors(predicted, measured)))


def regret(predicted: Mapping[str, float], measured: Mapping[str, float]) -> float:
    """Return measured[chosen] / min(measured) - 1, where `chosen` has the smallest prediction."""
    chosen = min(predicted, key=lambda name: predicted[name])
    return measured[chosen] / min(measured.values()) - 1


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [(order.index(value) + len(order) - 1 - order[::-1].index(value)) / 2 for value in values]
