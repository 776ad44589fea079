"""
Random tensors that do not depend on their sharding: each element is drawn by its place in the full tensor.

These functions replace `aten.random_*` in a generated program. A rank draws its part alone, and the parts together
equal the tensor that one device would draw (`ir.counter` defines the bits). Common parameters:

- `seed`: seed of the step, an int64 scalar tensor in host memory, or on a GPU the first states of all streams
  (`SeedTable`); `stream`: the number of the stream;
- `size`: shape of the part; `start`: index of its first element in the tensor of shape `whole`. Without `start` and
  `whole`, the part is the full tensor;
- `like`: a tensor with the shape of the part, whose numbers do not matter;
- `independent`: draw from torch's own generator, seeded by seed, stream and start. Ranks that hold the same part draw
  the same numbers, but another sharding gives other numbers.

Masks, integers and uniform numbers have the same bits on every device. Normal and exponential numbers are computed in
float64, where devices may differ in the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Required, TypedDict, Unpack

import torch

from ..ir.counter import LAST_SHIFT, MIX, Stream, blocks_of_row, limit_of, signed

_ROWS = 64
"""The number of streams in a block of memory, which keeps its address from step to step."""


class SeedTable:
    """
    The generators of all random streams of the present step's seed, as two int64 scalars each, on a device.

    A new stream is added when it is first drawn from. From the next step on, the generators of all known streams are
    copied from pinned memory before the step begins, without blocking.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seed = 0
        self._places: dict[int, int] = {}
        self._blocks: list[torch.Tensor] = []

    def begin(self, seed: int) -> None:
        """Begin the step with a seed."""
        self.seed = seed
        streams = list(self._places)
        for number, block in enumerate(self._blocks):
            self._copy(block, streams[_ROWS * number : _ROWS * (number + 1)])

    def of(self, stream: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return base and gamma of a stream."""
        new = stream not in self._places
        number, row = divmod(self._places.setdefault(stream, len(self._places)), _ROWS)
        if number == len(self._blocks):
            self._blocks.append(torch.empty((_ROWS, 2), dtype=torch.int64, device=self.device))
        if new:
            self._copy(self._blocks[number][row:], [stream])
        base, gamma = self._blocks[number][row]
        return base, gamma

    def _copy(self, rows: torch.Tensor, streams: list[int]) -> None:
        generators = [Stream.of(self.seed, stream) for stream in streams]
        numbers = torch.tensor([(signed(generator.base), signed(generator.gamma)) for generator in generators])
        if self.device.type == "cuda":
            numbers = numbers.pin_memory()
        rows[: len(streams)].copy_(numbers, non_blocking=True)


_CHUNK = {"cpu": 1 << 15, "cuda": 1 << 22}
"""Blocks computed at a time, by device: as many as fit a CPU's cache; on other devices, at most 64 MB of memory."""

_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""The number of random bits of a uniform number: as many as the dtype can represent below one."""

Shape = Sequence[int]
Device = torch.device | str | None
Seed = torch.Tensor | SeedTable


class PlaceOfDraw(TypedDict, total=False):
    """The keyword arguments that all random functions share, as above."""

    stream: Required[int]
    size: Required[Shape]
    start: Shape | None
    whole: Shape | None
    independent: bool
    device: Device


class _Part(NamedTuple):
    """A part of a random tensor, with the source of its bits."""

    seed: Seed
    stream: int
    start: Shape
    size: Shape
    whole: Shape
    device: torch.device
    independent: bool

    @staticmethod
    def of(seed: Seed, like: torch.Tensor | None, **place: Unpack[PlaceOfDraw]) -> _Part:
        """Return a part with defaults for its place; it is on the device of `like` if `like` is given."""
        size, device = place["size"], like.device if like is not None else torch.device(place.get("device") or "cpu")
        start, whole = place.get("start") or (0,) * len(size), place.get("whole") or size
        return _Part(seed, place["stream"], start, size, whole, device, place.get("independent", False))

    def generator(self) -> torch.Generator:
        seed = self.seed.seed if isinstance(self.seed, SeedTable) else int(self.seed)
        part = Stream.of(seed, self.stream).seed_of_part(self.whole, self.start)
        return torch.Generator(self.device).manual_seed(part)

    def base_and_gamma(self) -> tuple[torch.Tensor, torch.Tensor] | tuple[int, int]:
        """Return base and gamma, the two constants that determine the bits of the stream."""
        if isinstance(self.seed, SeedTable):
            return self.seed.of(self.stream)
        stream = Stream.of(int(self.seed), self.stream)
        return signed(stream.base), signed(stream.gamma)

    def empty(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(tuple(self.size), dtype=dtype, device=self.device)


def random_dropout(
    input: torch.Tensor,
    seed: Seed,
    p: float,
    *,
    stream: int,
    start: Shape | None = None,
    whole: Shape | None = None,
    independent: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Zero each element with probability `p`, and divide the others by ``1 - p``.

    Returns:
        The result, and a boolean tensor that is true where an element is kept.
    """
    part = _Part.of(seed, input, size=input.shape, stream=stream, start=start, whole=whole, independent=independent)
    mask = _below(part, 1 - p)
    # Torch multiplies by int8 three times as fast as by bool.
    out = input * mask.view(torch.int8)
    return out.mul_(1 / (1 - p) if p < 1 else 0.0), mask


def random_bernoulli(
    p: torch.Tensor | float, like: torch.Tensor | None, seed: Seed, *, dtype: torch.dtype, **place: Unpack[PlaceOfDraw]
) -> torch.Tensor:
    """Draw one with probability `p`, which may be a tensor of probabilities, and otherwise zero."""
    part = _Part.of(seed, p if isinstance(p, torch.Tensor) else like, **place)
    if not isinstance(p, torch.Tensor):
        return _below(part, p).to(dtype)
    if part.independent:
        return torch.bernoulli(p, generator=part.generator()).to(dtype)
    limits = (p.double() * 2**32).ceil_().sub_(2**31)
    return _filled(part, 2, torch.float64, lambda bits, out: out.copy_(bits)).lt(limits).to(dtype)


def random_uniform(
    like: torch.Tensor | None, seed: Seed, low: float, high: float, *, dtype: torch.dtype, **place: Unpack[PlaceOfDraw]
) -> torch.Tensor:
    """Draw uniform numbers from `low` up to `high`."""
    part = _Part.of(seed, like, **place)
    if part.independent:
        return part.empty(dtype).uniform_(low, high, generator=part.generator())
    unit = _unit(part, dtype)
    return unit if (low, high) == (0, 1) else unit.mul_(high - low).add_(low)


def random_normal(
    like: torch.Tensor | None, seed: Seed, mean: float, std: float, *, dtype: torch.dtype, **place: Unpack[PlaceOfDraw]
) -> torch.Tensor:
    """Draw normal numbers."""
    part = _Part.of(seed, like, **place)
    if part.independent:
        return part.empty(dtype).normal_(mean, std, generator=part.generator())

    def write(bits: torch.Tensor, out: torch.Tensor) -> None:
        # The midpoint between two numbers is never one, whose inverse error function is infinite.
        out.copy_(bits >> 12).add_(0.5).mul_(2.0**-51).erfinv_()

    return _filled(part, 1, torch.float64, write).mul_(math.sqrt(2) * std).add_(mean).to(dtype)


def random_exponential(
    like: torch.Tensor | None, seed: Seed, lambd: float, *, dtype: torch.dtype, **place: Unpack[PlaceOfDraw]
) -> torch.Tensor:
    """Draw exponential numbers of rate `lambd`."""
    part = _Part.of(seed, like, **place)
    if part.independent:
        return part.empty(dtype).exponential_(lambd, generator=part.generator())
    return _unit(part, torch.float64).neg_().log1p_().div_(-lambd).to(dtype)


def random_integers(
    like: torch.Tensor | None, seed: Seed, low: int, high: int, *, dtype: torch.dtype, **place: Unpack[PlaceOfDraw]
) -> torch.Tensor:
    """Draw integers from `low` to below `high`."""
    part = _Part.of(seed, like, **place)
    if part.independent:
        return part.empty(dtype).random_(low, high, generator=part.generator())
    return _filled(part, 1, torch.int64, lambda bits, out: out.copy_(bits)).remainder_(high - low).add_(low).to(dtype)


def _below(part: _Part, probability: float) -> torch.Tensor:
    """Draw booleans that are true with `probability`."""
    if part.independent:
        return part.empty(torch.bool).bernoulli_(probability, generator=part.generator())
    limit = limit_of(probability)
    if not -(2**31) < limit < 2**31:
        return part.empty(torch.bool).fill_(limit > 0)
    return _filled(part, 2, torch.bool, lambda bits, out: torch.lt(bits, limit, out=out))


def _unit(part: _Part, dtype: torch.dtype) -> torch.Tensor:
    """Draw uniform numbers from zero up to one."""
    digits = _DIGITS[dtype]
    lanes = 1 if digits > 32 else 2

    def write(bits: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(bits >> 64 // lanes - digits).mul_(2.0**-digits).add_(0.5)

    return _filled(part, lanes, dtype, write)


def _filled(
    part: _Part, lanes: int, dtype: torch.dtype, write: Callable[[torch.Tensor, torch.Tensor], object]
) -> torch.Tensor:
    """
    Draw a part, several rows at a time: `write(bits, out)` turns signed random integers into the numbers of the rows.

    Args:
        lanes: how many numbers 64 bits give, one or two.
    """
    result = part.empty(dtype)
    if not result.numel():
        return result
    (base, gamma), width = part.base_and_gamma(), result.shape[-1] if result.dim() else 1
    first = part.start[-1] if part.start else 0
    blocks = range(first // lanes, -(-(first + width) // lanes))
    skipped = first - blocks.start * lanes
    rows = _row_numbers(part) * blocks_of_row(part.whole, lanes) + 1
    starts = (rows * gamma + base).unsqueeze(-1)
    steps = torch.arange(blocks.start, blocks.stop, device=part.device) * gamma
    out = result.view(-1, width)
    count = max(_CHUNK.get(part.device.type, _CHUNK["cuda"]) // len(blocks), 1)
    state = torch.empty((min(count, len(out)), len(blocks)), dtype=torch.int64, device=part.device)
    shifted = torch.empty_like(state)
    for at in range(0, len(out), count):
        rows_here = out[at : at + count]
        bits = torch.add(starts[at : at + count], steps, out=state[: len(rows_here)])
        _mix(bits, shifted[: len(rows_here)])
        numbers = bits if lanes == 1 else bits.view(torch.int32)
        write(numbers[:, skipped : skipped + width], rows_here)
    return result


def _row_numbers(part: _Part) -> torch.Tensor:
    """Return the index, in the full tensor, of every row of a part."""
    numbers = torch.zeros(1, dtype=torch.int64, device=part.device)
    for start, size, whole in zip(part.start[:-1], part.size[:-1], part.whole[:-1], strict=True):
        here = torch.arange(start, start + size, device=part.device)
        numbers = (numbers.unsqueeze(-1) * whole + here).flatten()
    return numbers


def _mix(state: torch.Tensor, shifted: torch.Tensor) -> None:
    """Apply `ir.counter.mix` in place; torch shifts arithmetically, so the copies of the sign bit are masked out."""
    for shift, factor in MIX:
        torch.bitwise_right_shift(state, shift, out=shifted)
        state.bitwise_xor_(shifted.bitwise_and_((1 << 64 - shift) - 1)).mul_(signed(factor))
    torch.bitwise_right_shift(state, LAST_SHIFT, out=shifted)
    state.bitwise_xor_(shifted.bitwise_and_((1 << 64 - LAST_SHIFT) - 1))
