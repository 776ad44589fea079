"""Find small shapes that represent large ones: equal sizes stay equal, and multiples stay multiples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ..calls.calls import Arg, Call

Shape = tuple[int, ...]

_KEPT = 12
"""The largest size that is kept unchanged."""

MOST_ELEMENTS = 1 << 14
"""The most elements of one operand or result in a probe."""


def small_sizes(sizes: Iterable[int], numbers: Iterable[int]) -> dict[int, int]:
    """
    Return a replacement for each size, as small as possible.

    Args:
        numbers: integer arguments of the op. A size that exceeds a number still exceeds it after replacement: a window
            of 128 has no effect on a dim of 6.
    """
    bounds = sorted({abs(number) for number in numbers if abs(number) > 1})
    small: dict[int, int] = {}
    for size in sorted(set(sizes)):
        small[size] = size if size <= _KEPT else _small(size, small, [b for b in bounds if b < size])
    return small


def _small(size: int, known: Mapping[int, int], bounds: Sequence[int]) -> int:
    unit = math.lcm(1, *(known[divisor] for divisor in known if divisor > 1 and size % divisor == 0))
    low = max([4, *(bound + 1 for bound in bounds)])
    return next(n for n in range(unit, unit * (len(known) + low + 2), unit) if n > low and n not in known.values())


def resized(shapes: Sequence[Shape], small: Mapping[int, int]) -> tuple[Shape, ...]:
    """Return the shapes with their sizes replaced."""
    return tuple(tuple(small[size] for size in shape) for shape in shapes)


def numbers_of(call: Call) -> list[int]:
    """Return the integers among the arguments of a call."""
    return [number for arg in (*call.args, *(value for _, value in call.kwargs)) for number in _numbers(arg)]


def _numbers(arg: Arg) -> list[int]:
    if isinstance(arg, tuple):
        return [number for item in arg for number in _numbers(item)]
    return [arg] if isinstance(arg, int) and not isinstance(arg, bool) else []
