"""The fitted roofline of a family of ops: which part of its rates an op reaches by its size."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class OpRate:
    """
    The fitted roofline of one family and dtype on a kind of device.

    family        the class of cost; empty: all others
    dtype         by name; empty: all others
    flops         FLOP/s where ops are large
    bandwidth     bytes/s where ops are large
    launch        the fixed seconds of an op
    curve         (FLOPs, the part of `flops` that is reached), ascending. Linear in the logarithm of the size between,
                  constant beyond
    moving_curve  (bytes, the part of `bandwidth`), likewise. It exceeds 1 where caches help
    """

    family: str
    dtype: str
    flops: float
    bandwidth: float
    launch: float
    curve: tuple[tuple[float, float], ...] = ()
    moving_curve: tuple[tuple[float, float], ...] = ()

    def seconds(self, flops: float, moved: float) -> float:
        """The time of an op of so many operations that reads and writes `moved` bytes."""
        computing = _at_full_rate(self.curve, flops) / self.flops
        moving = _at_full_rate(self.moving_curve, moved) / self.bandwidth
        return max(computing, moving) + self.launch

    def least_seconds(self, flops: float, moved: float) -> float:
        """What so many operations and bytes take at the least, in ops of any size."""
        computing = flops / (self.flops * max((part for _, part in self.curve), default=1.0))
        moving = moved / (self.bandwidth * max((part for _, part in self.moving_curve), default=1.0))
        return max(computing, moving)


def _at_full_rate(curve: Sequence[tuple[float, float]], size: float) -> float:
    """The size that takes as long at the full rate; where a curve rises so steeply that more were faster, as long."""
    return max([size / efficiency(curve, size), *(at / part for at, part in curve if at < size)])


def efficiency(curve: Sequence[tuple[float, float]], size: float) -> float:
    """The part of its rates that an op of `size` reaches; all of them where there is no curve."""
    if not curve:
        return 1.0
    above = bisect_right(curve, size, key=lambda point: point[0])
    if above in (0, len(curve)):
        return curve[max(above - 1, 0)][1]
    (small, low), (large, high) = curve[above - 1], curve[above]
    return low + (high - low) * math.log(size / small) / math.log(large / small)
