"""Collectives on buckets of large and small tensors, on two ranks."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from shardwright.ir.collectives import ALONE_FROM_BYTES
from shardwright.runtime import collectives
from shardwright.runtime.groups import RankGroup
from shardwright.runtime.requests import Request

ROWS = ALONE_FROM_BYTES // 16
METHODS = {"all_reduce": "native", "all_gather": "padded", "reduce_scatter": "padded"}


def operands(rank: int, smalls: int) -> tuple[torch.Tensor, ...]:
    """Return two large tensors and `smalls` small ones, of whole numbers."""
    generator = torch.Generator().manual_seed(rank)
    shapes = [(ROWS, 4), (2 * ROWS, 4), *[(6, 2)] * smalls]
    return tuple(torch.randint(100, shape, generator=generator).float() for shape in shapes)


def whole(kind: str, rank: int, of_all: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
    """Return the expected results of a collective on one of two ranks."""
    by_operand = list(zip(*of_all, strict=True))
    if kind == "all_gather":
        return [torch.cat(parts) for parts in by_operand]
    sums = [torch.stack(parts).sum(0) for parts in by_operand]
    return [total.chunk(2)[rank] for total in sums] if kind == "reduce_scatter" else sums


def run_all(smalls: int) -> list[str]:
    """Return the collectives whose results are wrong on this rank."""
    rank, wrong = dist.get_rank(), list[str]()
    group = RankGroup(("x",), (0, 1), rank, dist.group.WORLD, "gloo")
    for backend in ("gloo", "nccl"):
        for kind, method in METHODS.items():
            mine = operands(rank, smalls)
            # Gloo can run the code for NCCL here too: several tensors in one launch.
            started = collectives.begin(replace(group, backend=backend), Request(kind, mine, ("x",), method=method))
            found, expected = started.wait(), whole(kind, rank, [operands(each, smalls) for each in (0, 1)])
            if not all(map(torch.equal, found, expected)):
                wrong.append(f"{kind} on {backend}")
            if not all(map(torch.equal, mine, operands(rank, smalls))):
                wrong.append(f"{kind} on {backend} changes its operands")
    mine = operands(rank, smalls)
    reduced = collectives.begin(group, Request("all_reduce", mine, ("x",), donate=(1,))).wait()
    if [each is other for each, other in zip(reduced, mine, strict=True)] != [False, True, *[False] * smalls]:
        wrong.append("what is donated is overwritten, and nothing else")
    return wrong
