"""Which pieces travel together, and that they arrive where they should."""

import pytest
import torch

from shardwright.ir.collectives import ALONE_FROM_BYTES
from shardwright.runtime.pieces import Parcel, ReceiveBuffers, message, parcels, parcels_of_bucket

EMPTY, TINY, MEDIUM = torch.empty(0), torch.rand(3, 5), torch.rand(300, 100)
LARGE = torch.rand(ALONE_FROM_BYTES // 4)


def sizes(found: list[Parcel]) -> list[list[int]]:
    """Return the elements of the pieces of each parcel."""
    return [[piece.numel() for piece in parcel] for parcel in found]


def test_pieces_that_are_small_in_the_mean_travel_together():
    assert sizes(parcels([TINY, EMPTY, TINY])) == [[15, 15]]
    assert sizes(parcels([TINY, MEDIUM])) == [[15], [30_000]]
    assert parcels([EMPTY]) == []


def test_in_a_bucket_the_small_ones_travel_together_and_the_others_alone():
    assert sizes(parcels_of_bucket([TINY, LARGE, MEDIUM, EMPTY])) == [[15, 30_000], [LARGE.numel()]]
    assert sizes(parcels_of_bucket([LARGE])) == [[LARGE.numel()]]
    assert parcels_of_bucket([EMPTY, EMPTY]) == []


@pytest.mark.parametrize("sent", [[TINY, EMPTY, MEDIUM], [MEDIUM], [TINY, LARGE]])
def test_what_is_sent_arrives_in_its_slots(sent: list[torch.Tensor]):
    slots = [torch.zeros_like(piece) for piece in sent]
    mail = ReceiveBuffers()
    for outgoing, incoming in zip(parcels_of_bucket(sent), parcels_of_bucket(slots), strict=True):
        mail.expect(incoming).copy_(message(outgoing))
    mail.unpack()
    assert all(map(torch.equal, slots, sent))
