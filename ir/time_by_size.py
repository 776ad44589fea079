"""
Time as a function of bytes: a line, or measured times with interpolation between and beyond them.

Between two measured times there is a power law. Below all, there is the line scaled to meet the first; above all, the
line scaled to meet the last, or a line through the last two if that is steeper.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

Point = tuple[float, float]
"""Bytes and seconds."""


@dataclass(frozen=True)
class TimeBySize:
    """
    The seconds of a collective as a function of its bytes.

    fixed, per_byte  the line, alpha and beta
    points           measured (bytes, seconds), ascending in bytes, all above 0
    """

    fixed: float
    per_byte: float
    points: tuple[Point, ...] = ()

    def seconds(self, size: float) -> float:
        """Return the seconds of `size` bytes."""
        if not self.points:
            return self.fixed + self.per_byte * size
        above = bisect_right(self.points, size, key=lambda point: point[0])
        if above == 0:
            fixed, per_byte = self._line_through(self.points[0])
            return fixed + per_byte * size
        if above == len(self.points):
            return max(fixed + per_byte * size for fixed, per_byte in self._beyond)
        (small, low), (large, high) = self.points[above - 1], self.points[above]
        return low * (high / low) ** (math.log(size / small) / math.log(large / small))

    @cached_property
    def least_per_byte(self) -> float:
        """The lower bound of the seconds per byte over all sizes."""
        # Seconds per byte are monotonic between neighbours, and on each line beyond the last point.
        limit = max(per_byte for _, per_byte in self._beyond)
        return min([limit, *(seconds / size for size, seconds in self.points)])

    def least_from(self, size: float) -> float:
        """Return a lower bound on the seconds of any size from `size` on, since measured times may decrease."""
        return min([self.seconds(size), *(seconds for at, seconds in self.points if at > size)])

    def per_byte_at(self, size: float) -> float:
        """Return the seconds per byte of a message of `size` bytes; the least for size 0 or infinity."""
        return self.seconds(size) / size if 0 < size < math.inf else self.least_per_byte

    def size_within(self, excess: float) -> float:
        """Return the smallest size whose seconds per byte exceed the least by at most the fraction `excess`."""
        if not self.least_per_byte:
            return math.inf
        if not self.points:
            return self.fixed / (excess * self.per_byte)
        most = (1.0 + excess) * self.least_per_byte
        at = next((i for i, (size, seconds) in enumerate(self.points) if seconds <= most * size), None)
        if at is None:
            return max(fixed / (most - per_byte) for fixed, per_byte in self._beyond)
        if at == 0:
            fixed, per_byte = self._line_through(self.points[0])
            return fixed / (most - per_byte) if fixed else 0.0
        (small, low), (large, high) = self.points[at - 1], self.points[at]
        before, after = low / small, high / large
        return small * (large / small) ** (math.log(most / before) / math.log(after / before))

    @cached_property
    def _beyond(self) -> tuple[Point, ...]:
        """The lines beyond the measured times, as seconds at 0 bytes and per byte; the higher line applies."""
        if not self.points:
            return ((self.fixed, self.per_byte),)
        scaled = self._line_through(self.points[-1])
        if len(self.points) == 1:
            return (scaled,)
        (before, earlier), (size, seconds) = self.points[-2:]
        slope = (seconds - earlier) / (size - before)
        return (scaled, (seconds - slope * size, slope))

    def _line_through(self, point: Point) -> Point:
        """Return `fixed` and `per_byte`, scaled by one factor to meet a point; a constant if both are 0."""
        size, seconds = point
        expected = self.fixed + self.per_byte * size
        if not expected:
            return (seconds, 0.0)
        return (self.fixed * seconds / expected, self.per_byte * seconds / expected)
