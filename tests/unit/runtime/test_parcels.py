"""Pieces that are sent in one message, and their arrival in the right place."""

import pytest
import torch

from shardwright.ir.collectives import ALONE_FROM_BYTES
from shardwright.runtime.pieces import Parcel, ReceiveBuffers, message, parcels, parcels_of_bucket

EMPTY, TINY, MEDIUM = torch.empty(0), torch.rand(3, 5), torch.rand(300, 100)
LARGE = torch.rand(ALONE_FROM_BYTES // 4)


def sizes(found: list[Parcel]) -> list[list[int]]:
    """Return the elements of the pieces of each parcel."""
    return [[piece.numel() for piece in parcel] for parcel in found]


def test_pieces_of_small_mean_size_are_sent_together():
    assert sizes(parcels([TINY, EMPTY, TINY])) == [[15, 15]]
    assert sizes(parcels([TINY, MEDIUM])) == [[15], [30_000]]
    assert parcels([EMPTY]) == []


def test_small_pieces_of_a_bucket_are_sent_together_and_large_ones_separately():
    assert sizes(parcels_of_bucket([TINY, LARGE, MEDIUM, EMPTY])) == [[15, 30_000], [LARGE.numel()]]
    assert sizes(parcels_of_bucket([LARGE])) == [[LARGE.numel()]]
    assert parcels_of_bucket([EMPTY, EMPTY]) == []


@pytest.mark.parametrize("sent", [[TINY, EMPTY, MEDIUM], [MEDIUM], [TINY, LARGE]])
def test_sent_pieces_arrive_in_their_slots(sent: list[torch.Tensor]):
    slots = [torch.zeros_like(piece) for piece in sent]
    mail = ReceiveBuffers()
    for outgoing, incoming in zip(parcels_of_bucket(sent), parcels_of_bucket(slots), strict=True):
        mail.expect(incoming).copy_(message(outgoing))
    mail.unpack()
    assert all(map(torch.equal, slots, sent))
