"""The line that a profile fits."""

import pytest

from shardwright.runtime.profile.fit import fit_line

SIZES = [64.0 * 4**i for i in range(11)]


def line(alpha: float, beta: float) -> list[tuple[float, float]]:
    return [(count, alpha + beta * count) for count in SIZES]


def test_an_exact_line_is_found():
    found = fit_line(line(2e-4, 3e-9))
    assert (found.alpha, found.beta) == (pytest.approx(2e-4), pytest.approx(3e-9))
    assert found.worst_error < 1e-9


def test_noise_at_large_sizes_does_not_change_latency():
    noisy = [(count, seconds * (1.2 if i % 2 else 1 / 1.2)) for i, (count, seconds) in enumerate(line(1e-4, 1e-9))]
    found = fit_line(noisy)
    assert found.alpha == pytest.approx(1e-4, rel=0.2)
    assert found.beta == pytest.approx(1e-9, rel=0.3)
    assert 0.1 < found.middle_error < 0.3


def test_an_outlier_hardly_moves_the_line():
    points = line(1e-4, 1e-9)
    points[4] = (points[4][0], 20 * points[4][1])
    found = fit_line(points)
    assert found.alpha == pytest.approx(1e-4, rel=0.05)
    assert found.beta == pytest.approx(1e-9, rel=0.05)
    assert found.worst_error > 0.9


def test_neither_number_is_negative():
    rising = fit_line([(1e3, 1e-6), (1e6, 4e-3)])
    assert rising.alpha == 0
    assert 1e-9 < rising.beta < 4e-9
    falling = fit_line([(1e3, 4e-3), (1e6, 1e-3)])
    assert falling.beta == 0
    assert 1e-3 < falling.alpha < 4e-3


def test_one_size_gives_latency_alone():
    found = fit_line([(4096, 1e-3), (4096, 1e-3)])
    assert (found.alpha, found.beta) == (pytest.approx(1e-3), 0.0)
