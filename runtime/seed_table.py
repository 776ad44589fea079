"""The random streams of a step in GPU memory, so that no kernel launch depends on a number of the host."""

from __future__ import annotations

import torch

from ..ir.counter import Stream, signed

_ROWS = 64
"""The number of streams in a block of memory, which keeps its address from step to step."""


class SeedTable:
    """
    The generators of all random streams of the present step's seed, as two int64 scalars each, on a device.

    A new stream is added when it is first drawn from. From the next step on, the generators of all known streams are
    copied from pinned memory before the step begins, without blocking.

    Args:
        device: device of the generators.
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
