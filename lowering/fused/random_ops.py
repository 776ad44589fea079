"""
Define random tensors as pure functions of a seed, a stream and a place, in plain tensor arithmetic.

Capture replaces torch's random ops by these functions, and the interpreter runs them. The runtime's fast functions of
the same names are tested against them: bit for bit, except for the last bit of normal and exponential numbers. Common
arguments:

- `seed`: the seed of the step, a 0-d int64; `stream`: the number of the stream;
- `size`: the shape of the shard to draw; `start`: the index of its first element in the tensor of shape `whole`;
  by default the shard is the full tensor;
- `like`: a tensor of the shape of the shard, whose values are not read; its sharding is preferred for the result;
- `independent`: draw from torch's own generator, seeded by seed, stream and start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...ir.counter import LAST_SHIFT, MIX, Stream, blocks_of_row, limit_of, signed
from .fused_op import FusedOp

_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}

_Shape = Sequence[int]


def random_dropout(
    input: torch.Tensor,
    seed: torch.Tensor,
    p: float,
    *,
    stream: int,
    start: _Shape | None = None,
    whole: _Shape | None = None,
    independent: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Set each element to zero with probability `p`, else divide it by ``1 - p``; also return the mask of kept ones."""
    kept = random_bernoulli(
        1 - p,
        None,
        seed,
        stream=stream,
        dtype=torch.bool,
        size=input.shape,
        start=start,
        whole=whole,
        independent=independent,
    )
    return input * kept * (1 / (1 - p) if p < 1 else 0.0), kept


def random_bernoulli(
    p: torch.Tensor | float,
    like: torch.Tensor | None,
    seed: torch.Tensor,
    *,
    stream: int,
    dtype: torch.dtype,
    size: _Shape,
    start: _Shape | None = None,
    whole: _Shape | None = None,
    independent: bool = False,
) -> torch.Tensor:
    """Draw 1 with probability `p`, which may be a tensor of probabilities, else 0."""
    if independent:
        generator = _generator(seed, stream, size, start, whole)
        if isinstance(p, torch.Tensor):
            return torch.bernoulli(p, generator=generator).to(dtype)
        return torch.empty(tuple(size), dtype=torch.bool).bernoulli_(p, generator=generator).to(dtype)
    limit = (p.double() * 2**32).ceil() - 2**31 if isinstance(p, torch.Tensor) else limit_of(p)
    return (_numbers(seed, stream, size, start, whole, 2) < limit).to(dtype)


def random_uniform(
    like: torch.Tensor | None,
    seed: torch.Tensor,
    low: float,
    high: float,
    *,
    stream: int,
    dtype: torch.dtype,
    size: _Shape,
    start: _Shape | None = None,
    whole: _Shape | None = None,
    independent: bool = False,
) -> torch.Tensor:
    """Draw uniform numbers from `low` up to `high`."""
    if independent:
        generator = _generator(seed, stream, size, start, whole)
        return torch.empty(tuple(size), dtype=dtype).uniform_(low, high, generator=generator)
    return _unit(seed, stream, size, start, whole, dtype) * (high - low) + low


def random_normal(
    like: torch.Tensor | None,
    seed: torch.Tensor,
    mean: float,
    std: float,
    *,
    stream: int,
    dtype: torch.dtype,
    size: _Shape,
    start: _Shape | None = None,
    whole: _Shape | None = None,
    independent: bool = False,
) -> torch.Tensor:
    """Draw normal numbers."""
    if independent:
        generator = _generator(seed, stream, size, start, whole)
        return torch.empty(tuple(size), dtype=dtype).normal_(mean, std, generator=generator)
    # The offset of half a step excludes 1 and -1, where erfinv is infinite.
    between = ((_numbers(seed, stream, size, start, whole, 1) >> 12).double() + 0.5) * 2.0**-51
    return (torch.erfinv(between) * (math.sqrt(2) * std) + mean).to(dtype)


def random_exponential(
    like: torch.Tensor | None,
    seed: torch.Tensor,
    lambd: float,
    *,
    stream: int,
    dtype: torch.dtype,
    size: _Shape,
    start: _Shape | None = None,
    whole: _Shape | None = None,
    independent: bool = False,
) -> torch.Tensor:
    """Draw exponential numbers of rate `lambd`."""
    if independent:
        generator = _generator(seed, stream, size, start, whole)
        return torch.empty(tuple(size), dtype=dtype).exponential_(lambd, generator=generator)
    unit = _unit(seed, stream, size, start, whole, torch.float64)
    return (torch.log1p(-unit) / -lambd).to(dtype)


def random_integers(
    like: torch.Tensor | None,
    seed: torch.Tensor,
    low: int,
    high: int,
    *,
    stream: int,
    dtype: torch.dtype,
    size: _Shape,
    start: _Shape | None = None,
    whole: _Shape | None = None,
    independent: bool = False,
) -> torch.Tensor:
    """Draw integers from `low` to below `high`."""
    if independent:
        generator = _generator(seed, stream, size, start, whole)
        return torch.empty(tuple(size), dtype=dtype).random_(low, high, generator=generator)
    return (torch.remainder(_numbers(seed, stream, size, start, whole, 1), high - low) + low).to(dtype)


OPS = (
    FusedOp(random_dropout),
    *(
        FusedOp(drawn, takes_device=True)
        for drawn in (random_bernoulli, random_uniform, random_normal, random_exponential, random_integers)
    ),
)
"""The random ops. Capture uses the table in `random_draws` for them, since the model's calls have no seed argument."""


def _unit(
    seed: torch.Tensor, stream: int, size: _Shape, start: _Shape | None, whole: _Shape | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return numbers from 0 up to 1, with all binary digits that the dtype has below 1."""
    digits = _DIGITS[dtype]
    lanes = 1 if digits > 32 else 2
    numbers = _numbers(seed, stream, size, start, whole, lanes) >> 64 // lanes - digits
    return numbers.to(dtype) * 2.0**-digits + 0.5


def _numbers(
    seed: torch.Tensor, stream: int, size: _Shape, start: _Shape | None, whole: _Shape | None, lanes: int
) -> torch.Tensor:
    """Return `ir.counter.Stream.number` of every element of a shard."""
    generator, shape = Stream.of(int(seed), stream), tuple(size)
    whole, start = tuple(whole or shape), tuple(start or (0,) * len(shape))
    row = torch.zeros((), dtype=torch.int64)
    for first, length, extent in zip(start[:-1], shape[:-1], whole[:-1], strict=True):
        row = row.unsqueeze(-1) * extent + torch.arange(first, first + length)
    column = torch.arange(start[-1], start[-1] + shape[-1]) if shape else torch.zeros((), dtype=torch.int64)
    row = row.unsqueeze(-1) if shape else row
    index = row * blocks_of_row(whole, lanes) + column // lanes
    state = (index + 1) * signed(generator.gamma) + signed(generator.base)
    for shift, factor in MIX:
        state = (state ^ _shifted(state, shift)) * signed(factor)
    bits = state ^ _shifted(state, LAST_SHIFT)
    width = 64 // lanes
    return bits << 64 - width * (column % lanes + 1) >> 64 - width


def _shifted(state: torch.Tensor, shift: int) -> torch.Tensor:
    """Shift right logically; torch's shift would repeat the sign bit."""
    return state >> shift & (1 << 64 - shift) - 1


def _generator(
    seed: torch.Tensor, stream: int, size: _Shape, start: _Shape | None, whole: _Shape | None
) -> torch.Generator:
    part = Stream.of(int(seed), stream).seed_of_part(whole or size, start or (0,) * len(size))
    return torch.Generator().manual_seed(part)
