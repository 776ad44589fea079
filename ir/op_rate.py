"""The fitted roofline of a family of ops: the fraction of its rates that an op reaches, by the op's size."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class OpRate:
    """
    The fitted roofline of one family and dtype on a kind of device.

    family        the cost class; empty for all others
    dtype         name of the dtype; empty for all others
    flops         FLOP/s of large ops
    bandwidth     bytes/s of large ops
    launch        fixed seconds of an op
    curve         (FLOPs, fraction of `flops` that is reached), ascending; linear in the logarithm of the size between
                  entries, constant beyond
    moving_curve  (bytes, fraction of `bandwidth`), in the same form; above 1 where caches help
    """

    family: str
    dtype: str
    flops: float
    bandwidth: float
    launch: float
    curve: tuple[tuple[float, float], ...] = ()
    moving_curve: tuple[tuple[float, float], ...] = ()

    def seconds(self, flops: float, moved: float) -> float:
        """Return the seconds of an op with `flops` operations that reads and writes `moved` bytes."""
        computing = _at_full_rate(self.curve, flops) / self.flops
        moving = _at_full_rate(self.moving_curve, moved) / self.bandwidth
        return max(computing, moving) + self.launch

    def least_seconds(self, flops: float, moved: float) -> float:
        """Return a lower bound on the seconds of `flops` operations and `moved` bytes, in ops of any size."""
        computing = flops / (self.flops * max((part for _, part in self.curve), default=1.0))
        moving = moved / (self.bandwidth * max((part for _, part in self.moving_curve), default=1.0))
        return max(computing, moving)


def _at_full_rate(curve: Sequence[tuple[float, float]], size: float) -> float:
    """Return the size that takes as long at the full rate; a larger op takes no less time than a smaller entry."""
    return max([size / efficiency(curve, size), *(at / part for at, part in curve if at < size)])


def efficiency(curve: Sequence[tuple[float, float]], size: float) -> float:
    """Return the fraction of its rates that an op of `size` reaches; 1 without a curve."""
    if not curve:
        return 1.0
    above = bisect_right(curve, size, key=lambda point: point[0])
    if above in (0, len(curve)):
        return curve[max(above - 1, 0)][1]
    (small, low), (large, high) = curve[above - 1], curve[above]
    return low + (high - low) * math.log(size / small) / math.log(large / small)
