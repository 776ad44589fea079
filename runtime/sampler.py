"""`ShareSampler`: gives each rank its own rows of every batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class ShareSampler(Sampler[list[int]]):
    """
    The indices of one rank's rows of every batch, as the `batch_sampler` of a DataLoader.

    All ranks shuffle in the same order, so that together they see each global batch once.

    Args:
        batch: the number of rows of a global batch.
        rows: rows of the batch that this rank computes on (`DistributedStep.rows`).
        seed: seed of the order, together with the epoch; if None, the data set's order is used.
        last: this rank's rows of the partial batch at the end of an epoch; if None, the partial batch is skipped.

    `first` is the index of the first batch of the epoch; earlier batches are skipped.

    Raises:
        ValueError: rows are outside the batch, or the data set is smaller than a batch.
    """

    def __init__(self, length: int, batch: int, rows: range, seed: int | None = 0, last: range | None = None) -> None:
        if not 0 <= rows.start <= rows.stop <= batch or rows.step != 1:
            raise ValueError(f"the rows {rows} are not within the {batch} rows of a batch")
        if length < batch and last is None:
            raise ValueError(f"a data set of {length} samples has no full batch of {batch} rows")
        if last is not None and not 0 <= last.start <= last.stop <= length % batch:
            raise ValueError(f"the rows {last} are not within the {length % batch} rows of the last, partial batch")
        self.length, self.batch, self.rows, self.seed, self.epoch = length, batch, rows, seed, 0
        self.last = last
        self.first = 0

    def set_epoch(self, epoch: int) -> None:
        """Use the order of another epoch, the same on every rank."""
        self.epoch = epoch

    @property
    def sampler(self) -> ShareSampler:
        """The sampler itself: Lightning calls `set_epoch` on this attribute, as on the sampler of a `BatchSampler`."""
        return self

    def __len__(self) -> int:
        return self.length // self.batch + (self.last is not None)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        whole = self.length - self.length % self.batch
        for first in range(self.first * self.batch, whole, self.batch):
            yield order[first + self.rows.start : first + self.rows.stop]
        if self.last is not None and self.first < len(self):
            yield order[whole + self.last.start : whole + self.last.stop]

    def _order(self) -> list[int]:
        if self.seed is None:
            return list(range(self.length))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self.length, generator=generator).tolist()
