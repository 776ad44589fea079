"""The random streams of a step in the memory of a GPU, so that no launch there depends on a number of the host."""

from __future__ import annotations

import torch

from ..ir.counter import Stream, signed

_ROWS = 64
"""Streams of a block of memory, which stays where it is from step to step."""


class SeedTable:
    """
    The generators of all streams of the present step's seed, as two int64 of no dims each, on a device.

    It gets to know a stream when that is first drawn from; from the next step on, all that it knows are there before
    the step begins, copied from pinned memory, which waits for nothing.

    Args:
        device: where they are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seed = 0
        self._places: dict[int, int] = {}
        self._blocks: list[torch.Tensor] = []

    def begin(self, seed: int) -> None:
        """Begin the step of a seed."""
        self.seed = seed
        known = list(self._places)
        for number, block in enumerate(self._blocks):
            self._copy(block, known[_ROWS * number : _ROWS * (number + 1)])

    def of(self, stream: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The base and the gamma of a stream."""
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
        numbers = torch.tensor([(signed(each.base), signed(each.gamma)) for each in generators])
        if self.device.type == "cuda":
            numbers = numbers.pin_memory()
        rows[: len(streams)].copy_(numbers, non_blocking=True)
