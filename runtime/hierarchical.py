"""
Hierarchical all-reduce: each rank reduces a part inside its host, the parts are reduced across, and gathered inside.

With k ranks inside, each sends a k-th of the value across: where these share a NIC, it carries the value once, as in
one ring over all, but in as few steps as there are hosts.
"""

from __future__ import annotations

import torch

from .collectives import begin
from .groups import RankGroup
from .pieces import unflatten
from .requests import Pending, Request, even_sizes

HIERARCHICAL = "hierarchical"


def begin_hierarchical(across: RankGroup, inside: RankGroup, request: Request) -> Pending:
    """
    Start an all-reduce over axes of which the last is that of `inside`, and the others those of `across`.

    The reduction inside is under way at once; the rest is, when it is waited for, for only then is there what it needs.
    """
    flat = torch.cat([tensor.reshape(-1) for tensor in request.tensors])
    sizes = even_sizes(flat.numel(), inside.size)
    reduction = request.reduction
    scattered = begin(inside, Request("reduce_scatter", (flat,), inside.axes, sizes=sizes, reduction=reduction))

    def finish() -> list[torch.Tensor]:
        part = scattered.wait()
        between = Request("all_reduce", part, across.axes, reduction=reduction, donate=True)
        reduced = begin(across, between).wait()
        (whole,) = begin(inside, Request("all_gather", reduced, inside.axes, sizes=sizes)).wait()
        return unflatten(whole, [tensor.shape for tensor in request.tensors])

    return Pending([], finish)
