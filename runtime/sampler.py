"""`ShareSampler`: hands each rank its own rows of every batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class ShareSampler(Sampler[list[int]]):
    """
    The indices of one rank's rows of every batch, as the `batch_sampler` of a DataLoader.

    All ranks shuffle alike, so that together they see each global batch once. What is left over after the last whole
    batch of an epoch is not used: a plan is for batches of one size.

    Args:
        length: of the data set.
        batch: the number of rows of a global batch.
        rows: those which this rank computes on (`DistributedStep.rows`).
        seed: for the order, together with the epoch; None leaves the data in its order.

    Raises:
        ValueError: rows outside of the batch, or a data set without one whole batch.
    """

    def __init__(self, length: int, batch: int, rows: range, seed: int | None = 0) -> None:
        if not 0 <= rows.start <= rows.stop <= batch or rows.step != 1:
            raise ValueError(f"the rows {rows} are not among the {batch} of a batch")
        if length < batch:
            raise ValueError(f"a data set of {length} samples has no whole batch of {batch} rows")
        self.length, self.batch, self.rows, self.seed, self.epoch = length, batch, rows, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of another epoch; the same on every rank."""
        self.epoch = epoch

    @property
    def sampler(self) -> ShareSampler:
        """Itself: what Lightning calls `set_epoch` of, for torch's `BatchSampler` has a sampler."""
        return self

    def __len__(self) -> int:
        return self.length // self.batch

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        for first in range(0, len(self) * self.batch, self.batch):
            yield order[first + self.rows.start : first + self.rows.stop]

    def _order(self) -> list[int]:
        if self.seed is None:
            return list(range(self.length))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self.length, generator=generator).tolist()
