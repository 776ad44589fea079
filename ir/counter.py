"""
Counter-based random numbers: 64 bits from a seed, a stream and an index, on any rank and in any order.

The generator is SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, with
its `mix64`, `mixGamma` and `split`): output i of a generator is a mix of ``base + (i + 1) * gamma``, so it does not
depend on earlier outputs. Every stream of a seed is split off the seed's generator, with a separate base and gamma.

Elements of a row of a tensor (along its last dim) take the lanes of a block in order, the lowest bits first, and each
row begins with a new block, so the bits of an element depend only on its place in the full tensor. They are read as a
signed number; half of the range is added for numbers that begin at zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_BITS = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15

MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""The rounds of the mix: an XOR with the state shifted right by the first number, then a product with the second."""

LAST_SHIFT = 31
"""The shift of the XOR that ends the mix."""


def mix(state: int) -> int:
    """Return 64 bits that each depend on all bits of `state`."""
    for shift, factor in MIX:
        state = (state ^ state >> shift) * factor & _BITS
    return state ^ state >> LAST_SHIFT


def _mix_gamma(state: int) -> int:
    """Return an odd number whose bits change often enough."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        state = (state ^ state >> 33) * factor & _BITS
    state = (state ^ state >> 33) | 1
    return state if (state ^ state >> 1).bit_count() >= 24 else state ^ 0xAAAAAAAAAAAAAAAA


def signed(bits: int) -> int:
    """Return the int64 number with these 64 bits."""
    bits &= _BITS
    return bits - (1 << 64) if bits >> 63 else bits


def step_seed(seed: int, step: int) -> int:
    """Return the seed of one training step, counted from 0, as an int64."""
    return signed(mix(mix(seed & _BITS) + (step + 1) * _GOLDEN & _BITS))


@dataclass(frozen=True)
class Stream:
    """One generator: block `i` of its output is ``mix(base + (i + 1) * gamma)``."""

    base: int
    gamma: int

    @staticmethod
    def of(seed: int, number: int) -> Stream:
        """Return stream `number` of a seed, counted from 0."""
        base, gamma = (seed + (2 * number + which) * _GOLDEN & _BITS for which in (1, 2))
        return Stream(mix(base), _mix_gamma(gamma))

    def block(self, index: int) -> int:
        """Return block `index`, 64 bits."""
        return mix(self.base + (index + 1) * self.gamma & _BITS)

    def number(self, whole: Sequence[int], place: Sequence[int], lanes: int) -> int:
        """Return the signed number in ``64 / lanes`` bits of the element at `place` of a tensor of shape `whole`."""
        row = flat_index(whole[:-1], place[:-1])
        block, lane = divmod(place[-1] if place else 0, lanes)
        width = 64 // lanes
        bits = self.block(row * blocks_of_row(whole, lanes) + block) << 64 - (lane + 1) * width
        return signed(bits) >> 64 - width

    def seed_of_part(self, whole: Sequence[int], start: Sequence[int]) -> int:
        """Return the int64 seed of a generator for the part of a tensor of shape `whole` that begins at `start`."""
        return signed(self.block(flat_index(whole, start)))


def flat_index(shape: Sequence[int], place: Sequence[int]) -> int:
    """Return the number of the element at `place` in row-major order."""
    index = 0
    for size, at in zip(shape, place, strict=True):
        index = index * size + at
    return index


def blocks_of_row(whole: Sequence[int], lanes: int) -> int:
    """Return the number of blocks of a row."""
    return -(-whole[-1] // lanes) if whole else 1


def limit_of(probability: float) -> int:
    """Return the limit that a signed 32-bit number is below with `probability`, rounded up to 32 bits."""
    return min(max(math.ceil(probability * 2**32), 0), 2**32) - 2**31
