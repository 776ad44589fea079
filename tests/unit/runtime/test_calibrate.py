"""The line that calibration fits."""

import pytest

from shardwright.runtime.calibrate import SIZES, fit


def line(alpha: float, beta: float) -> list[tuple[float, float]]:
    return [(count, alpha + beta * count) for count in SIZES]


def test_an_exact_line_is_found():
    found = fit(line(2e-4, 3e-9))
    assert (found.alpha, found.beta) == (pytest.approx(2e-4), pytest.approx(3e-9))


def test_noise_of_large_sizes_leaves_latency_alone():
    noisy = [(count, seconds * (1.2 if i % 2 else 1 / 1.2)) for i, (count, seconds) in enumerate(line(1e-4, 1e-9))]
    found = fit(noisy)
    assert found.alpha == pytest.approx(1e-4, rel=0.2)
    assert found.beta == pytest.approx(1e-9, rel=0.3)


def test_neither_number_is_negative():
    rising = fit([(1e3, 1e-6), (1e6, 4e-3)])
    assert rising.alpha == 0
    assert 1e-9 < rising.beta < 4e-9
    falling = fit([(1e3, 4e-3), (1e6, 1e-3)])
    assert falling.beta == 0
    assert 1e-3 < falling.alpha < 4e-3


def test_one_size_gives_latency_alone():
    found = fit([(4096, 1e-3), (4096, 1e-3)])
    assert (found.alpha, found.beta) == (pytest.approx(1e-3), 0.0)
