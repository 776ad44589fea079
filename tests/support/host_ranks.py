"""Messages between ranks other than the collectives of a program, run on some ranks."""

from __future__ import annotations

from itertools import permutations
from unittest.mock import patch

import torch
import torch.distributed as dist

from shardwright.runtime import all_ranks
from shardwright.runtime.transfers import Lines


def numbers_over_lines(own: list[tuple[int, int]]) -> list[float]:
    """Return the numbers that this rank receives from each other rank, if some pairs have their own groups."""
    lines = Lines()
    lines.open(own)
    lines.open(own)
    me, received = dist.get_rank(), list[torch.Tensor]()
    works = []
    for sender, receiver in permutations(range(dist.get_world_size()), 2):
        if me == sender:
            works.append(lines.end(sender, receiver).send(torch.tensor([10.0 * sender + receiver]), 0))
        elif me == receiver:
            received.append(torch.empty(1))
            works.append(lines.end(sender, receiver).receive(received[-1], 0))
    for work in works:
        work.wait()
    return [each.item() for each in received]


def objects_beside_nccl() -> tuple[object, list[int], int]:
    """Exchange objects twice in a job whose group has no gloo; return them and the number of groups this creates."""
    with patch.object(all_ranks, "backends", lambda: {"cuda": "nccl"}):
        before = len(dist.distributed_c10d._world.pg_map)
        from_0 = all_ranks.from_rank_0({"rank": dist.get_rank()})
        of_all = all_ranks.of_all_ranks(dist.get_rank())
        return from_0, of_all, len(dist.distributed_c10d._world.pg_map) - before
