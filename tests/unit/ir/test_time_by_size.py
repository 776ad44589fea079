"""Times by size: between and beyond measurements, the least seconds per byte, and sizes close to it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.time_by_size import TimeBySize

_SIZES = st.floats(1.0, 1e9)
_SECONDS = st.floats(1e-6, 10.0)


@st.composite
def curves(draw: st.DrawFn) -> TimeBySize:
    """Draw a line with measured times whose sizes differ by at least a hundredth."""
    sizes = sorted({round(math.log(size) * 100) for size in draw(st.lists(_SIZES, max_size=6))})
    points = tuple((math.exp(size / 100), draw(_SECONDS)) for size in sizes)
    return TimeBySize(draw(st.just(0.0) | _SECONDS), draw(st.just(0.0) | st.floats(1e-12, 1e-3)), points)


def test_without_measured_times_the_line_holds():
    line = TimeBySize(2e-3, 1e-6)
    assert line.seconds(1000) == 2e-3 + 1e-6 * 1000
    assert line.least_per_byte == 1e-6
    assert line.size_within(1 / 8) == 8 * 2e-3 / 1e-6
    assert TimeBySize(2e-3, 0.0).size_within(1 / 8) == math.inf


def test_times_beyond_the_measurements_rise_with_the_last_slope():
    dearer_from_here = TimeBySize(1.0, 1.0, ((1.0, 1.0), (4.0, 2.0), (16.0, 14.0)))
    assert dearer_from_here.seconds(64.0) == pytest.approx(14.0 + 48.0)
    falling = TimeBySize(0.0, 1.0, ((1.0, 3.0), (4.0, 2.0)))
    assert falling.seconds(8.0) == pytest.approx(4.0)
    assert TimeBySize(0.0, 0.0, ((8.0, 3.0),)).seconds(16.0) == 3.0


@given(curves(), _SIZES)
def test_no_size_is_below_the_least_seconds_per_byte(curve: TimeBySize, size: float):
    assert curve.per_byte_at(size) >= curve.least_per_byte * (1 - 1e-9)


@given(curves(), st.floats(0.01, 0.99))
def test_size_within_is_the_smallest_size_close_to_the_least(curve: TimeBySize, part: float):
    size = curve.size_within(1 / 8)
    most = 9 / 8 * curve.least_per_byte
    if 0.0 < size < math.inf:
        assert curve.per_byte_at(size) == pytest.approx(most, rel=1e-6)
        assert curve.per_byte_at(part * size) >= most * (1 - 1e-6)
