"""A memory meter counts each allocation once, until its last view is deleted."""

import torch
from _memory_meter import MemoryMeter


def test_memory_counts_from_its_allocation_until_its_last_view_is_deleted():
    held = torch.zeros(256)
    with MemoryMeter([held]) as meter:
        assert meter.bytes == 1024
        made = held + 1
        view = made[:10]
        assert meter.bytes == 2048
        del made
        assert meter.bytes == 2048
        del view
        assert meter.bytes == 1024
        held.add_(1)
    assert (meter.peak, meter.peak_op) == (2048, "aten.add.Tensor")


def test_memory_that_is_lent_does_not_count():
    lent = torch.zeros(256)
    with MemoryMeter(lent=[lent]) as meter:
        part = lent[128:].contiguous()
        assert meter.bytes == 0
        own = part.clone()
        assert meter.bytes == own.nbytes == 512
