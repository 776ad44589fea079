"""
Counter-based random numbers: seed, stream and index give 64 bits, on any rank and in any order.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, with
its `mix64`, `mixGamma` and `split`): output i of a generator is a mix of ``base + (i + 1) * gamma``, so it can be had
without those before it. Every stream of a seed is one split off the seed's own generator, with a base and a gamma of
its own.

Elements of a row of a tensor (along its last dim) take the lanes of a block in order, the lowest bits first, and each
row begins with a new block. So the bits of an element depend on its place in the full tensor alone. They are read as
a signed number, with half the range added where it is to begin at zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_BITS = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""The rounds of the mix: the high bits, shifted down by so many, go into the low ones; then a product."""

LAST_SHIFT = 31
"""What the mix ends with."""


def mix(state: int) -> int:
    """64 bits of which each depends on all bits of `state`."""
    for shift, factor in MIX:
        state = (state ^ state >> shift) * factor & _BITS
    return state ^ state >> LAST_SHIFT


def _mix_gamma(state: int) -> int:
    """An odd number whose bits change often enough."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        state = (state ^ state >> 33) * factor & _BITS
    state = (state ^ state >> 33) | 1
    return state if (state ^ state >> 1).bit_count() >= 24 else state ^ 0xAAAAAAAAAAAAAAAA


def signed(bits: int) -> int:
    """64 bits as the number that an int64 with these bits is."""
    bits &= _BITS
    return bits - (1 << 64) if bits >> 63 else bits


def step_seed(seed: int, step: int) -> int:
    """The seed of one training step, counted from 0, as an int64."""
    return signed(mix(mix(seed & _BITS) + (step + 1) * _GOLDEN & _BITS))


@dataclass(frozen=True)
class Stream:
    """One generator: block `i` of its output is ``mix(base + (i + 1) * gamma)``."""

    base: int
    gamma: int

    @staticmethod
    def of(seed: int, number: int) -> Stream:
        """Stream `number`, from 0, of a seed."""
        base, gamma = (seed + (2 * number + which) * _GOLDEN & _BITS for which in (1, 2))
        return Stream(mix(base), _mix_gamma(gamma))

    def block(self, index: int) -> int:
        """64 bits."""
        return mix(self.base + (index + 1) * self.gamma & _BITS)

    def number(self, whole: Sequence[int], place: Sequence[int], lanes: int) -> int:
        """The signed number in ``64 / lanes`` bits of the element at `place` of a tensor of shape `whole`."""
        row = flat_index(whole[:-1], place[:-1])
        block, lane = divmod(place[-1] if place else 0, lanes)
        width = 64 // lanes
        bits = self.block(row * blocks_of_row(whole, lanes) + block) << 64 - (lane + 1) * width
        return signed(bits) >> 64 - width

    def seed_of_part(self, whole: Sequence[int], start: Sequence[int]) -> int:
        """The seed, an int64, of another generator for the part of a tensor of shape `whole` that begins at `start`."""
        return signed(self.block(flat_index(whole, start)))


def flat_index(shape: Sequence[int], place: Sequence[int]) -> int:
    """The number of the element at `place`, counted along the last dim first."""
    index = 0
    for size, at in zip(shape, place, strict=True):
        index = index * size + at
    return index


def blocks_of_row(whole: Sequence[int], lanes: int) -> int:
    """How many blocks a row takes."""
    return -(-whole[-1] // lanes) if whole else 1


def limit_of(probability: float) -> int:
    """What signed numbers of 32 bits are below with `probability`, which is rounded up to 32 bits."""
    return min(max(math.ceil(probability * 2**32), 0), 2**32) - 2**31
